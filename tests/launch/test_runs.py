"""`podzero logs` and `podzero stop` of runs that end, have ended or never were."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import podzero
from podzero.config import load
from podzero.files.workdir import Workdir
from podzero.runtime.monitoring.status import RunStatus, write_status

LOG = """\
2026-01-01 10:00:01,001 INFO actor-0: built in 15.3 s
2026-01-01 10:00:03,001 ERROR learner: broke
Traceback (most recent call last):
"""


@pytest.fixture
def ended(tmp_path):
    """A run that has ended."""
    workdir = Workdir(tmp_path / "run")
    workdir.open(load("tic_tac_toe"))
    write_status(workdir, RunStatus("tic_tac_toe", "ended", 60.0, step=7))
    workdir.log_file.write_text(LOG)
    return workdir


@pytest.mark.parametrize(
    ("options", "lines"),
    [([], 3), (["actor"], 1), (["learner", "-f"], 2), (["--level", "error"], 2), (["driver"], 0)],
)
def test_the_log_is_printed_and_following_ends_with_the_run(command, ended, options, lines):
    code, out, _ = command("logs", str(ended.root), *options)
    assert code == 0
    assert len(out.splitlines()) == lines


def test_a_log_of_which_only_the_beginning_is_wanted_is_no_error(ended):
    ended.log_file.write_text(LOG * 10_000)
    script = "from podzero.launch.cli import main; main()"
    command = [sys.executable, "-P", "-c", script, "logs", str(ended.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == LOG.splitlines(keepends=True)[0]
        process.stdout.close()
        assert process.stderr.read() == ""


def test_a_process_that_the_run_does_not_have_is_refused_with_those_it_has(command, ended):
    code, out, error = command("logs", str(ended.root), "leaner")
    assert (code, out) == (2, "")
    assert "did you mean 'learner'" in error
    assert "evaluator" in error


def test_a_folder_without_a_log_is_refused(command, tmp_path):
    code, _, error = command("logs", str(tmp_path))
    assert code == 2
    assert "train.log" in error


def test_a_start_that_failed_has_left_a_log(command, tmp_path):
    (tmp_path / "train.log").write_text(LOG)
    assert len(command("logs", str(tmp_path), "actor-0")[1].splitlines()) == 1


def test_stopping_a_run_that_has_ended_says_so(command, ended):
    code, out, _ = command("stop", str(ended.root))
    assert code == 0
    assert "ended" in out
    assert json.loads(command("stop", str(ended.root), "--json")[1])["stopped"] is False


def test_stopping_what_is_no_run_is_refused(command, tmp_path):
    code, _, error = command("stop", str(tmp_path))
    assert code == 2
    assert "experiment.yaml" in error


def test_runs_are_compared_as_tables_or_json(command, ended, tmp_path):
    other = Workdir(tmp_path / "other")
    other.open(load("tic_tac_toe", ["seed=1"]))
    code, out, _ = command("compare", str(ended.root), str(other.root), "zoo:tic_tac_toe")
    assert code == 0
    assert "seed" in out
    found = json.loads(command("compare", str(ended.root), str(other.root), "--json")[1])
    assert found["settings"] == {"seed": [0, 1]}
    assert command("compare", str(ended.root), str(ended.root))[0] == 2


def test_the_report_of_several_runs_is_a_file_of_the_first(command, ended, tmp_path):
    code, out, _ = command("report", str(ended.root), "zoo:tic_tac_toe", "--json")
    assert code == 0
    assert json.loads(out)["report"] == str(ended.root / "comparison.html")
    code, _, error = command("report", str(ended.root), "zoo:tic_tac_toe", "--serve")
    assert code == 2
    assert "several runs" in error


@pytest.mark.slow
def test_the_processes_of_a_run_are_traced(command, tmp_path):
    with podzero.train("tic_tac_toe", "actors.inference=server", "stop.minutes=9", workdir=tmp_path / "run") as run:
        next(line for line in run.metrics() if "learner/loss" in line.metrics)
        code, out, _ = command("trace", str(run.workdir), "--seconds", "1", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["processes"] == {"learner": None, "inference-0": None, "actor-0": None}
    for name in found["processes"]:
        (file,) = Path(found["folder"], name).rglob("*.xplane.pb")
        assert file.stat().st_size > 1000
