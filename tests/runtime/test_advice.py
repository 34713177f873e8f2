"""The command that a failed run names goes on from the failure."""

import pickle
import shlex

import pytest

from podzero.config import load
from podzero.launch.directories import find_start
from podzero.learner import TrainingDiverged
from podzero.runtime.advice import with_advice
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.learner_group import RunFailed
from podzero.workdir import Workdir

from .test_checkpoints import write


@pytest.fixture
def workdir(tmp_path):
    workdir = Workdir(tmp_path / "my run")
    workdir.open(load("tic_tac_toe"))
    for step in (10, 2000, 3000):
        write(workdir, step, keep=3)
    return workdir


def failed(cause):
    try:
        raise RunFailed(f"learner failed: {cause}") from cause
    except RunFailed as failure:
        return failure


def followed(failure, workdir):
    """What the command in the message of a failure starts."""
    message = str(with_advice(failure, workdir.experiment(), workdir))
    assert str(failure) in message
    line = next(line for line in message.splitlines() if "podzero train " in line)
    config, *words = shlex.split(line.partition("podzero train ")[2])
    chosen = words[words.index("--workdir") + 1] if "--workdir" in words else None
    overrides = [word for word in words if "=" in word]
    found = find_start(config, overrides, chosen and Workdir(chosen).root)
    Workdir(found.root).open(found.experiment, found.step or 0)
    return found


def test_after_a_divergence_the_run_goes_on_from_before_it_with_a_smaller_learning_rate(workdir):
    held = workdir.experiment().learner.optimizer.learning_rate
    found = followed(failed(TrainingDiverged(1000, 2500)), workdir)
    assert (found.root, found.step) == (workdir.root, 2000)
    assert 0 < found.experiment.learner.optimizer.learning_rate < held / 2
    (record,) = workdir.changes()
    assert (record.step, record.change.setting) == (2000, "learner.optimizer.learning_rate")


def test_after_a_divergence_at_once_a_new_run_begins_with_a_smaller_learning_rate(workdir):
    held = workdir.experiment().learner.optimizer.learning_rate
    found = followed(failed(TrainingDiverged(1000, 9)), workdir)
    assert (found.root, found.step) == (workdir.root.with_name("my run-2"), None)
    assert 0 < found.experiment.learner.optimizer.learning_rate < held / 2
    assert checkpoints(Workdir(found.root)) == []


def test_after_another_failure_the_run_goes_on_from_its_newest_checkpoint(workdir):
    found = followed(failed(ValueError("the reader is gone")), workdir)
    assert (found.root, found.step) == (workdir.root, None)
    assert found.experiment == workdir.experiment()


def test_a_divergence_keeps_its_step_on_the_way_to_another_process():
    error = pickle.loads(pickle.dumps(TrainingDiverged(1000, 2500)))
    assert error.step == 2500
    assert str(error) == "the loss or gradient of the last 1,000 steps, after step 2,500, was not finite"
