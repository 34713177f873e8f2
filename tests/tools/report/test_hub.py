"""`podzero push` and `hf:USER/NAME`, against a stand-in for the Hugging Face hub."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
from hub import served_hub

from podzero.core.errors import ConfigError
from podzero.evaluation.evaluate import records_file
from podzero.files import players
from podzero.files.players import hub_repository
from podzero.files.workdir import Workdir
from podzero.networks.snapshots import load_snapshot


@pytest.fixture(scope="module")
def hub():
    with served_hub() as server:
        yield server


@pytest.fixture
def podzero(hub, tmp_path):
    """Runs a command whose hub is the stand-in, or `address`, with a new cache."""

    def run(*arguments, address=hub.address, **environment):
        variables = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "secret"}
        variables |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
        command = [sys.executable, "-c", "from podzero.launch.main import main; main()", *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=240, check=False, env=os.environ | variables
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_an_agent_is_pushed_with_its_card_and_plays_from_the_hub(hub, podzero):
    code, out, err = podzero("push", "zoo:tic_tac_toe", "hf:ann/mine", "--private", "--json")
    assert code == 0, err
    assert json.loads(out)["pushed"] == "hf:ann/mine"
    files = hub.repos["ann/mine"]
    assert hub.private["ann/mine"]
    assert {"README.md", "experiment.yaml", "metrics.jsonl"} <= files.keys()
    assert sum(name.endswith("params.msgpack") for name in files) == 1
    weights = safetensors.numpy.load(files["model.safetensors"])
    params = load_snapshot(players.zoo_workdir("tic_tac_toe").snapshots).params
    np.testing.assert_array_equal(weights["heads.value.kernel"], params["heads"]["value"]["kernel"])
    card = files["README.md"].decode()
    assert "library_name: podzero" in card
    assert "| network | resnet" in card
    code, out, err = podzero("evaluate", "hf:ann/mine", "--games", "2", "--simulations", "4", "--json")
    assert code == 0, err
    assert json.loads(out)["player"] == "hf:ann/mine"
    # From now on the cache has it: a hub that does not answer is no hindrance.
    code, out, err = podzero("info", "hf:ann/mine", "--json", address="http://127.0.0.1:9")
    assert code == 0, err
    assert json.loads(out)["game"] == "tic_tac_toe"


def test_the_address_of_a_webhook_stays_here(hub, podzero, tmp_path):
    run = shutil.copytree(players.zoo_workdir("tic_tac_toe").root, tmp_path / "run")
    text = (run / "experiment.yaml").read_text()
    (run / "experiment.yaml").write_text(text.replace("alert: null", "alert: https://hooks.example/T0/secret"))
    code, _, err = podzero("push", str(run), "hf:ann/quiet")
    assert code == 0, err
    assert hub.repos["ann/quiet"]["experiment.yaml"]
    assert not any(b"hooks.example" in content for content in hub.repos["ann/quiet"].values())


def test_an_older_snapshot_in_the_repository_is_replaced(hub, podzero):
    newer = {"snapshots/000009999/params.msgpack": b"newer", "code/0123/own.py": b"", "notes.md": b"mine"}
    hub.repos["ann/again"] = dict(newer)
    code, _, err = podzero("push", "zoo:tic_tac_toe", "hf:ann/again")
    assert code == 0, err
    assert newer.keys() & hub.repos["ann/again"].keys() == {"notes.md"}


def test_matches_of_an_agent_of_the_hub_are_not_written_into_its_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(players, "hub_workdir", lambda name: Workdir(tmp_path))
    assert records_file("hf:ann/mine", "hf:ann/mine", "random", None) is None


def test_a_damaged_snapshot_is_found_by_its_digest(hub, podzero):
    assert podzero("push", "zoo:tic_tac_toe", "hf:ann/broken")[0] == 0
    (name,) = [name for name in hub.repos["ann/broken"] if name.endswith("params.msgpack")]
    data = bytearray(hub.repos["ann/broken"][name])
    data[len(data) // 2] ^= 1
    hub.repos["ann/broken"][name] = bytes(data)
    code, _, err = podzero("evaluate", "hf:ann/broken", "--games", "2")
    assert code == 2
    assert "no intact snapshot" in err


def test_what_is_no_agent_of_podzero_is_refused(hub, podzero):
    hub.repos["ann/other"] = {"README.md": b"a model of something else"}
    code, _, err = podzero("evaluate", "hf:ann/other")
    assert code == 2
    assert "no agent of podzero: the repository holds no experiment.yaml" in err


@pytest.mark.parametrize("address", [None, "http://127.0.0.1:9"])
def test_without_the_repository_or_a_network_the_error_says_what_to_check(hub, podzero, address):
    code, _, err = podzero("evaluate", "hf:ann/missing", address=address or hub.address)
    assert code == 2
    assert "'hf:ann/missing' cannot be downloaded" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["hf:", "hf:ann", "hf:ann/a/b", "hf:/a", "hf:ann/a@", "hf:../../etc/x y"])
def test_other_names_are_refused(name):
    with pytest.raises(ConfigError, match=r"expected hf:USER/NAME"):
        hub_repository(name)


def test_only_trained_agents_are_pushed(podzero):
    code, _, err = podzero("push", "mcts:8", "hf:ann/mine")
    assert code == 2
    assert "has not been trained" in err
