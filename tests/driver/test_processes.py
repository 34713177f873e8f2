"""What the processes of a run do in their own process, without Ray."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from podzero.driver.processes import LearnerProcess


@pytest.fixture
def checkpoint():
    """The future of the next checkpoint, and the learner's process that is asked for it."""
    future = Future()

    class Process(LearnerProcess):
        def _build(self):
            self._learner = SimpleNamespace(request_checkpoint=lambda folder: future)

    return future, Process("learner")


def test_a_checkpoint_that_takes_too_long_names_the_worker_and_the_time(checkpoint):
    _, process = checkpoint
    with pytest.raises(TimeoutError, match=r"waited 0\.05 s for learner"):
        process.checkpoint(Path("saves"), 0.05)


def test_a_checkpoint_is_answered_by_its_step(checkpoint):
    future, process = checkpoint
    future.set_result(40)
    assert process.checkpoint(Path("saves"), 0.05) == 40


def test_a_failed_checkpoint_raises_the_learners_own_error(checkpoint):
    future, process = checkpoint
    future.set_exception(TimeoutError("waited for replay"))
    with pytest.raises(TimeoutError, match="waited for replay"):
        process.checkpoint(Path("saves"), 0.05)


def test_an_error_of_the_constructor_keeps_its_type():
    class Broken(LearnerProcess):
        def _build(self):
            raise ValueError("the mesh does not fit")

    with pytest.raises(ValueError, match="the mesh does not fit"):
        Broken("learner").ready()
