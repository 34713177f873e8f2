"""`podzero sweep`: what it refuses, the table, and sweeps with stand-ins for the processes of `podzero train`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster
from ray_nodes import add_node
from run_files import evaluation, line

from podzero.config import load
from podzero.files.workdir import Workdir
from podzero.runtime.monitoring.status import RunStatus, write_status

FAKE = Path(__file__).parents[2] / "fakes" / "fake_sweep_run.py"
RATES = "learner.optimizer.learning_rate=0.25,0.5"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tic_tac_toe", "search.q_scal=tree,bounds"], "q_scale"),
        (["tic_tac_toe", "seed=0..1", "--minutes", "2", "stop.minutes=3"], "twice"),
        (["tic_tac_toe", "seed=0..1", "stop.minutes=null"], "--minutes"),
        (["tic_tac_toe", "seed=0..1", "--steps", "8", "stop.steps=9"], "twice"),
        (["tic_tac_to", "seed=0..1"], "tic_tac_toe"),
        (["tic_tac_toe", "seed=0..1", "cluster.hosts=2"], "cluster.hosts"),
        (["tic_tac_toe", "seed=0..1", "--to", "gs://bucket/sweep"], "bucket"),
        (["tic_tac_toe", "seed=0..1", "--env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["othello", "seed=0..1", "--minutes", "2", "--positions", "9"], "othello has no solver"),
    ],
)
def test_what_cannot_be_run_is_refused_before_ray_starts(command, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, error = command("sweep", *arguments)
    assert code == 2
    assert message in error
    assert not list(tmp_path.iterdir())


def test_a_sweep_that_has_ended_prints_its_table_at_once(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for rate in ("0.25", "0.5"):
        for seed in (0, 1):
            run = Workdir(tmp_path / "runs" / "tic_tac_toe-sweep" / f"learning_rate{rate}-seed{seed}")
            run.open(load("tic_tac_toe", [f"learner.optimizer.learning_rate={rate}", f"seed={seed}", "stop.minutes=2"]))
            value = float(rate) + seed / 10
            lines = [line("learner", 1, 1, learner__loss=2.0), evaluation(60, 2, keeps_value=value)]
            run.metrics_file.write_bytes(b"\n".join([*lines, b""]))
            write_status(run, RunStatus("tic_tac_toe", "ended", 120.0, step=2))
    code, out, _ = command("sweep", "tic_tac_toe", RATES, "seed=0..1", "--minutes", "2", "--json")
    assert code == 0
    first, second = json.loads(out)["combinations"]
    assert (first["mean"], second["mean"]) == pytest.approx((0.3, 0.55))
    assert second["difference"]["mean"] == pytest.approx(0.25)
    code, out, _ = command("sweep", "tic_tac_toe", RATES, "seed=0..1", "--minutes", "2")
    assert code == 0
    assert "podzero report" in out
    asked = []

    def judge(who, positions):
        asked.append((Path(who).name, positions))
        return {"keeps_value": 0.5, "bands": {}, "network": {"value_error": 0.25, "bands": {}}}

    monkeypatch.setattr("podzero.evaluation.evaluate.evaluate", judge)
    for _ in range(2):
        code, out, _ = command(
            "sweep", "tic_tac_toe", RATES, "seed=0..1", "--minutes", "2", "--positions", "30", "--json"
        )
        judged = json.loads(out)["judged"]
        assert {name: [one["mean"] for one in found] for name, found in judged.items()} == {
            "all plies: keeps the value": [0.5, 0.5], "all plies: value error": [0.25, 0.25],
        }  # fmt: skip
    # Each run once, although the command was typed twice.
    assert asked == [(f"learning_rate{rate}-seed{seed}", 30) for seed in (0, 1) for rate in ("0.25", "0.5")]
    # The folder stands for its runs elsewhere too.
    assert command("compare", "runs/tic_tac_toe-sweep", "--json")[0] == 0
    code, out, _ = command("report", "runs/tic_tac_toe-sweep", "--json")
    assert code == 0
    assert Path(json.loads(out)["report"]).parent.name == "tic_tac_toe-sweep"


@pytest.mark.parametrize(
    ("settings", "limits", "warned"),
    [
        (["--steps", "40"], {"steps": 40}, ""),
        (["--steps", "40", "--minutes", "9"], {"steps": 40, "minutes": 9.0}, ""),
        (["--steps", "40", "stop.minutes=9"], {"steps": 40, "minutes": 9.0}, ""),
        (["--minutes", "0.6"], {"minutes": 0.6}, "at their end"),
        (["--minutes", "0.6", "evaluation.final_minutes=0"], {"minutes": 0.6}, "evaluation.final_minutes=0"),
    ],
)
def test_limits_replace_those_of_the_experiment_and_a_sweep_without_curves_is_told(
    command, tmp_path, monkeypatch, settings, limits, warned
):
    """The experiment has stop.minutes, and is judged every minute."""
    monkeypatch.chdir(tmp_path)
    seen = {}

    def train_runs(folder, config, runs, *_):
        seen.update(runs[0].experiment.stop.model_dump(exclude_none=True))
        return {}

    monkeypatch.setattr("podzero.tools.sweep.tuning.train_runs", train_runs)
    code, _, error = command("sweep", "tic_tac_toe", "seed=0..1", *settings)
    assert (code, seen) == (0, limits)
    assert warned in error if warned else not error


SWEEP = f"""
from podzero.launch.main import main
from podzero.tools.sweep import tuning
tuning.PROGRAM = ({str(FAKE)!r},)
main()
"""


PATH = os.pathsep.join([str(FAKE.parent), os.environ.get("PYTHONPATH", "")])
"""The value of PYTHONPATH with which the stand-ins find their modules."""


def start(folder, *arguments, program=SWEEP, **variables):
    """Starts `podzero sweep` in a process of its own, with stand-ins for its runs."""
    return subprocess.Popen(
        [sys.executable, "-c", program, "sweep", "tic_tac_toe", *arguments, "stop.minutes=2", "--to", str(folder)],
        env=os.environ | {"PYTHONPATH": PATH, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_killed_run_is_resumed_and_one_that_always_fails_is_given_up_and_named(tmp_path):
    process = start(tmp_path / "sweep", RATES, "seed=0..2", "--parallel", "3", "--json")
    out, error = process.communicate(timeout=280)
    assert process.returncode == 1, error
    found = json.loads(out)
    assert {run["seed"]: run["state"] for run in found["runs"]} == {
        "0": "finished",
        "1": "finished",
        "2": "given up: the learner failed",
    }
    assert [one["values"] for one in found["combinations"]] == [[0.25, 0.35], [0.5, 0.6]]
    assert found["combinations"][1]["difference"]["mean"] == pytest.approx(0.25)
    # Only what has not finished is run again.
    again = start(tmp_path / "sweep", RATES, "seed=0..2", "--parallel", "3")
    out, _ = again.communicate(timeout=280)
    assert "4 have ended" in out
    assert "seed0: " not in out


@pytest.mark.slow
def test_runs_that_are_worse_than_others_are_stopped_early_and_not_resumed(tmp_path):
    arguments = ("learner.optimizer.learning_rate=0.5,0.25", "seed=3", "--parallel", "1", "--asha")
    out, error = start(tmp_path / "sweep", *arguments, "--json").communicate(timeout=280)
    assert [run["state"] for run in json.loads(out)["runs"]] == ["finished", "stopped early"], error
    assert json.loads(out)["combinations"][1]["values"] == []
    out, _ = start(tmp_path / "sweep", *arguments).communicate(timeout=100)
    assert "2 have ended" in out


@pytest.mark.slow
def test_a_signal_ends_all_runs_in_order(tmp_path):
    process = start(tmp_path / "sweep", "seed=4..9", "--parallel", "2")
    statuses = [tmp_path / "sweep" / f"seed{seed}" / "status.json" for seed in (4, 5)]
    deadline = time.monotonic() + 200
    while not all(status.exists() for status in statuses) and time.monotonic() < deadline:
        time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 128 + signal.SIGTERM
    assert "2 runs write" in out
    assert all(Workdir(status.parent).holder() is None for status in statuses)
    assert not (tmp_path / "sweep" / "seed9").exists()


KEPT = "import shutil; shutil.rmtree = lambda *_, **__: None\n"
"""Keeps the files of Ray Tune, which a sweep removes at its end."""


@pytest.fixture
def other_nodes(monkeypatch):
    """A Ray cluster whose nodes have the stand-ins, and none of the variables that a test sets later."""
    monkeypatch.setenv("PYTHONPATH", PATH)
    nodes = Cluster()
    try:
        yield add_node(nodes, 8)
    finally:
        nodes.shutdown()


@pytest.mark.slow
def test_runs_on_other_nodes_have_a_variable_of_the_driver_whose_value_is_in_no_file(tmp_path, other_nodes):
    value, folder = "s3cret-value", tmp_path / "sweep"
    arguments = ("seed=0..1", "--env", "API_KEY", "--address", other_nodes.address)
    process = start(folder, *arguments, program=KEPT + SWEEP, API_KEY=value)
    out, error = process.communicate(timeout=280)
    assert process.returncode == 0, error
    assert value not in out + error
    assert "seed1: failed, and is tried again" in out
    assert [file.read_text() for file in folder.glob("*/variables")] == [value[::-1]] * 2
    files = [*folder.rglob("*"), *Path(other_nodes.get_session_dir_path()).rglob("*")]
    written = [file for file in files if file.is_file()]
    assert any(".tune" in file.parts for file in written)
    assert not [file for file in written if value.encode() in file.read_bytes()]
