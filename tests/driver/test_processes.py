"""What the processes of a run do in their own process, without Ray."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from podzero.cluster.remote import BUILD_TIMEOUT_S
from podzero.driver import processes, producers
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


class Shards:
    """Remote actors of shards that note how long each is waited for."""

    def __init__(self):
        self.node, self.waits = "home", []

    def ask(self, method, timeout_s=0.0):
        self.waits.append(timeout_s)
        return f"{method}:{len(self.waits)}"


def test_actors_wait_for_a_shard_as_long_as_the_driver_does():
    """Otherwise a replay that restores for longer could never be resumed from."""
    shard = Shards()
    producers._addresses([shard])
    assert shard.waits == [BUILD_TIMEOUT_S]


def test_the_learner_waits_for_a_shard_as_long_as_the_driver_does(monkeypatch):
    shard = Shards()
    monkeypatch.setattr(processes, "watch_for_notices", lambda announce: None)
    monkeypatch.setattr("podzero.learner.join", lambda membership, experiment: None)
    monkeypatch.setattr("podzero.driver.build.learner_parts", lambda experiment: (None, None, None))

    def stop(addresses, *_):
        raise InterruptedError(addresses)

    monkeypatch.setattr("podzero.replay.make_reader", stop)
    experiment = SimpleNamespace(cluster=SimpleNamespace(learner_hosts=1, tpu=None))
    arguments = dict.fromkeys(("store", "directory", "snapshots", "restore_from"))
    process = LearnerProcess("l", rank=0, coordinator="", experiment=experiment, shards=[shard], **arguments)
    with pytest.raises(InterruptedError):
        process.ready()
    assert shard.waits == [BUILD_TIMEOUT_S]
