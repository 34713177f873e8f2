"""What `podzero info` tells of a run, of one of its snapshots, and of an agent of the zoo."""

import hashlib
import json

import pytest
from run_files import evaluation, lines_of
from untrained_agents import write_untrained

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.files.workdir import Workdir, write_atomically
from podzero.runtime.monitoring.status import RunStatus, write_status
from podzero.tools.report.info import agent_info, own_code


@pytest.fixture
def folder(tmp_path):
    """A run of ten minutes with evaluations of steps 20 and 40, and a snapshot of step 20."""
    workdir = Workdir(write_untrained(tmp_path / "run", "tic_tac_toe", 20))
    lines = [*lines_of(600), evaluation(210, 20, elo=300.0, elo_error=50.0), evaluation(410, 40, elo=400.0)]
    workdir.metrics_file.write_bytes(b"\n".join([*lines, b""]))
    hardware = {
        "driver": {"processor": "a CPU", "podzero": "0.1.0"},
        "nodes": [{"host": "here", "cpus": 2.0, "memory_gib": 8.0, "accelerators": {"H100": 1}}],
    }
    write_atomically(workdir.hardware_file, json.dumps(hardware))
    write_status(workdir, RunStatus("tiny", "ended", 7200.0, step=59, games=700, samples=9000))
    return str(workdir.root)


def test_of_a_run_the_newest_state_is_told(folder):
    found = agent_info(folder)
    assert [found[name] for name in ("snapshot", "step", "samples", "games", "hours")] == [20, 59, 9000, 700, 2.0]
    assert (found["game"], found["podzero"]) == ("tic_tac_toe", "0.1.0")
    assert found["network"] == {"name": "resnet", "channels": 4, "blocks": 1, "value_hidden": 4}
    assert found["parameters"] > 500
    assert found["strength"] == {"step": 40, "elo": 400.0}
    assert found["hardware"] == ["a CPU", "here: 2 CPUs, 8.0 GiB, accelerators: 1 H100"]


def test_of_a_snapshot_its_own_moment_is_told(folder):
    found = agent_info(f"{folder}@20")
    assert (found["step"], found["samples"], found["games"]) == (20, 20 * 2 * 90 + 90, 20 * 10 + 5)
    assert found["hours"] == pytest.approx(200 / 3600, abs=1e-3)
    assert found["strength"] == {"step": 20, "elo": 300.0, "elo_error": 50.0}


def test_an_agent_of_the_zoo_has_the_facts_of_its_card():
    found = agent_info("zoo:tic_tac_toe")
    assert found["who"] == "zoo:tic_tac_toe"
    assert found["command"].startswith("podzero train")
    assert found["podzero"].startswith("commit ")
    assert found["hours"] > 0
    assert found["judged"]


def test_an_agent_whose_metrics_lack_counts_has_the_games_of_its_card():
    found = agent_info("zoo:hex_7x7")
    assert (found["samples"], found["games"], found["step"]) == (None, 35558, 2552)


def test_a_run_that_never_trained_has_no_parameters_and_no_times(tmp_path):
    workdir = Workdir(tmp_path / "run")
    workdir.open(load("tic_tac_toe", ["init_from=zoo:tic_tac_toe"]))
    found = agent_info(str(workdir.root))
    assert (found["parameters"], found["step"], found["began"], found["hours"]) == (None, 0, None, None)
    assert found["init_from"] == "zoo:tic_tac_toe"


def test_own_code_has_the_digest_that_the_run_recorded_or_that_of_the_file_now(tmp_path):
    files = {name: tmp_path / f"{name}.py" for name in ("net", "game", "wrap")}
    for name, file in files.items():
        file.write_text(name)
    experiment = tmp_path / "mine.yaml"
    experiment.write_text(
        "env: {name: gymnasium, id: Own-v0, module: game.py, wrappers: [{name: wrap.py:Wrap}]}\n"
        "network: {name: net.py:Net, learns_model: true}\n"
        'learner: {optimizer: {name: "optax.contrib:muon"}}\n'
    )
    mine = load(str(experiment))
    for file in files.values():
        file.write_text("changed")
    found = {code["path"]: (code["sha256"], code["recorded"]) for code in own_code(mine)}
    digests = {text: hashlib.sha256(text.encode()).hexdigest() for text in ("net", "game", "changed")}
    assert found[f"{files['net']}:Net"] == (digests["net"], True)
    assert found[str(files["game"])] == (digests["game"], True)
    assert found[f"{files['wrap']}:Wrap"] == (digests["changed"], False)
    assert found["optax.contrib:muon"] == (None, False)
    assert own_code(load("cartpole")) == []


def test_every_part_of_the_users_own_is_named(tmp_path):
    """The game in JAX, the search and the loss, which are in files; all have recorded digests."""
    for name in ("game", "search", "loss"):
        (tmp_path / f"{name}.py").write_text(name)
    experiment = tmp_path / "mine.yaml"
    experiment.write_text(
        'env: {name: "game.py:Game"}\nsearch: {algorithm: {name: "search.py:make"}}\n'
        'learner: {objective: {name: "loss.py:make"}}\n'
    )
    found = {code["path"]: (code["sha256"], code["recorded"]) for code in own_code(load(str(experiment)))}
    assert found == {
        f"{tmp_path / name}.py:{part}": (hashlib.sha256(name.encode()).hexdigest(), True)
        for name, part in (("game", "Game"), ("search", "make"), ("loss", "make"))
    }


def test_a_player_without_training_is_refused():
    with pytest.raises(ConfigError, match="trained"):
        agent_info("mcts:200")


def test_the_command_prints_lines_or_json(folder, command):
    code, out, _ = command("info", folder)
    assert code == 0
    lines = dict(line.split(None, 1) for line in out.splitlines())
    assert "9,000 samples" in out
    assert "extends" not in lines
    found = json.loads(command("info", f"{folder}@20", "--json")[1])
    assert (found["step"], found["extends"]) == (20, None)
