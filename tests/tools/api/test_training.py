"""`podzero.train`: the handle on a run, with a stand-in for the process of `podzero train`."""

import os
import sys
from pathlib import Path

import pytest

import podzero
from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.files.workdir import Workdir, WorkdirError
from podzero.runtime import driver_process
from podzero.runtime.driver_process import TrainingFailed
from podzero.runtime.stopping import NotStopped

FAKES = Path(__file__).parents[2] / "fakes"


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a run whose process behaves in a way; see tests/fakes/fake_train.py."""
    monkeypatch.setattr(driver_process, "PROGRAM", (sys.executable, str(FAKES / "fake_train.py")))
    monkeypatch.chdir(tmp_path)

    def begin(behaviour, experiment="tic_tac_toe", *overrides, **options):
        monkeypatch.setenv("FAKE_TRAIN", behaviour)
        return podzero.train(experiment, *overrides, **options)

    return begin


def test_a_run_gives_its_metrics_as_they_come_and_ends(start, tmp_path):
    run = start("ends", "tic_tac_toe", "seed=1")
    assert run.workdir == tmp_path / "runs" / "tic_tac_toe-seed1"
    lines = [(line.worker, line.step, line.metrics) for line in run.metrics()]
    assert lines == [
        ("learner", 1, {"learner/loss": 2.0}),
        ("actor-0", 1, {"count/games": 3.0}),
        ("learner", 2, {"learner/loss": 1.0}),
    ]
    assert run.wait().status.step == 2
    assert not run.running
    assert run.stop() is run


def test_a_run_that_goes_on_is_stopped(start, tmp_path):
    run = start("hangs", workdir=tmp_path / "mine")
    assert next(run.metrics()).metrics == {"learner/loss": 2.0}
    assert run.running
    with pytest.raises(NotStopped, match="goes on"):
        run.wait(0.1)
    with run:
        assert run.status.phase == "training"
    assert not run.running


def test_an_experiment_may_be_an_object(start, tmp_path):
    experiment = load("hex", ["seed=3"])
    run = start("ends", experiment, workdir=tmp_path / "run").wait()
    assert Workdir(run.workdir).experiment() == experiment


@pytest.mark.parametrize(
    ("error", "name", "overrides"),
    [
        (ConfigError, "tic_tac_to", []),
        (ConfigError, "tic_tac_toe", ["learner.batchsize=3"]),
        (WorkdirError, "hdfs://bucket/run", []),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(start, error, name, overrides):
    with pytest.raises(error):
        start("ends", name, *overrides)


def test_what_the_process_refuses_is_raised_at_the_start(start):
    with pytest.raises(TrainingFailed, match=r"^the solver is not installed$"):
        start("refuses")


def test_a_directory_in_which_another_process_works_is_not_taken_for_the_run(start, tmp_path):
    with Workdir(tmp_path / "run").lock(), pytest.raises(TrainingFailed, match=f"process {os.getpid()}"):
        start("ends", workdir=tmp_path / "run")


@pytest.mark.parametrize(("behaviour", "message"), [("fails", "the learner failed"), ("dies", r"train\.log")])
def test_a_run_that_fails_raises_its_error_after_its_metrics(start, behaviour, message):
    run, lines = start(behaviour), []
    with pytest.raises(TrainingFailed, match=message):
        lines.extend(run.metrics())
    assert lines[-1].step == 2
    with pytest.raises(TrainingFailed, match=message):
        run.wait()
