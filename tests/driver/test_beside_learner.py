"""What runs beside the learner begins and ends with training."""

import queue
import threading

from podzero.driver import beside_learner as module
from podzero.driver.beside_learner import running_beside


class Actor:
    """Plays until it is stopped, or fails at once."""

    def __init__(self, failure=None, deaf=False):
        self.began, self.stopped, self.failure, self.deaf = threading.Event(), threading.Event(), failure, deaf
        self.ended = threading.Event()

    def run(self):
        self.began.set()
        if self.failure is not None:
            raise self.failure
        self.stopped.wait(10.0)
        self.ended.set()

    def stop(self):
        if not self.deaf:
            self.stopped.set()


def test_the_actor_plays_until_training_ends():
    actor = Actor()
    with running_beside(actor, fail=lambda _: None):
        assert actor.began.wait(10.0)
        assert not actor.ended.is_set()
    assert actor.ended.is_set()


def test_training_is_told_of_a_failure_of_the_actor():
    failures, failure = queue.Queue(), ValueError("no such move")
    with running_beside(Actor(failure), failures.put):
        assert failures.get(timeout=10.0) is failure


def test_an_actor_that_does_not_end_is_left_behind(monkeypatch, caplog):
    monkeypatch.setattr(module, "STOP_TIMEOUT_S", 0.05)
    caplog.set_level("INFO")
    actor = Actor(deaf=True)
    with running_beside(actor, fail=lambda _: None):
        assert actor.began.wait(10.0)
    assert "did not end within 0.05 s" in caplog.text
    actor.stopped.set()
