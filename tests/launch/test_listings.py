"""Runs found below a directory, and the status of a run that is followed."""

import json

import pytest

from podzero.config import load
from podzero.files.workdir import Workdir, WorkdirError
from podzero.launch.runs import find_runs, watch_status
from podzero.runtime.monitoring.status import RunStatus, write_status


def make_run(folder, status=None):
    workdir = Workdir(folder)
    workdir.open(load("tic_tac_toe"))
    if status is not None:
        write_status(workdir, status)
    return workdir


def test_runs_are_found_with_their_state_and_metrics(tmp_path):
    make_run(tmp_path / "a", RunStatus("tic_tac_toe", "ended", 300.0, step=4321, loss=0.5, keeps_value=0.97))
    make_run(tmp_path / "group" / "b", RunStatus("tic_tac_toe", "training", 10.0, step=5))
    make_run(tmp_path / "c")
    running = make_run(tmp_path / "d", RunStatus("tic_tac_toe", "training", 10.0))
    (tmp_path / "other").mkdir()
    with running.lock():
        found = {run.directory: run for run in find_runs(tmp_path)}
    states = {directory.removeprefix(f"{tmp_path}/"): run.state for directory, run in found.items()}
    assert states == {"a": "ended", "group/b": "interrupted", "c": "not started", "d": "running"}
    ended = found[f"{tmp_path}/a"]
    assert (ended.step, ended.metrics) == (4321, {"loss": 0.5, "keeps_value": 0.97})


def test_a_missing_directory_is_refused(tmp_path):
    with pytest.raises(WorkdirError, match="no such directory"):
        find_runs(tmp_path / "runs")


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("experiment.yaml", b"", "is empty"),
        ("experiment.yaml", b"- 1", "holds a list"),
        ("experiment.yaml", b"# \xff", "utf-8"),
        ("experiment.yaml", b"env: [", "line 1"),
        ("status.json", b"{", "damaged"),
    ],
)
def test_a_damaged_run_hides_no_other(command, tmp_path, file, content, problem):
    for name in ("a", "b", "c"):
        make_run(tmp_path / name, RunStatus("tic_tac_toe", "ended", 300.0, step=4321))
    (tmp_path / "b" / file).write_bytes(content)
    code, out, _ = command("runs", str(tmp_path), "--json")
    found = json.loads(out)["runs"]
    assert (code, [run["state"] for run in found]) == (0, ["ended", "damaged", "ended"])
    assert f"{tmp_path}/b/{file}" in found[1]["problem"]
    assert problem in found[1]["problem"]
    assert "damaged" in command("runs", str(tmp_path))[1]


def test_the_list_of_runs(command, tmp_path):
    make_run(tmp_path / "a", RunStatus("tic_tac_toe", "ended", 300.0, step=4321, rating=810.0))
    code, out, _ = command("runs", str(tmp_path), "--json")
    assert code == 0
    (run,) = json.loads(out)["runs"]
    assert (run["state"], run["step"], run["metrics"]) == ("ended", 4321, {"rating": 810.0})
    out = command("runs", str(tmp_path))[1]
    assert "ended" in out
    assert "4,321" in out


def test_a_watched_run_is_followed_until_its_process_ends(tmp_path):
    workdir = make_run(tmp_path, RunStatus("tic_tac_toe", "training", 1.0, step=1))
    lock = workdir.lock()
    statuses = watch_status(workdir, every_s=0.0)
    assert next(statuses).status.step == 1
    write_status(workdir, RunStatus("tic_tac_toe", "training", 2.0, step=2))
    assert next(statuses).status.step == 2
    lock.close()
    assert [found.alive for found in statuses] == [False]


def test_watching_prints_a_line_of_json_per_status(command, tmp_path):
    make_run(tmp_path, RunStatus("tic_tac_toe", "ended", 1.0, step=3))
    code, out, _ = command("status", str(tmp_path), "--watch", "--json")
    assert code == 0
    assert [json.loads(line)["step"] for line in out.splitlines()] == [3]
