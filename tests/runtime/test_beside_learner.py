"""What runs beside the learner begins and ends with training."""

import queue
import threading

import numpy as np
import zmq
from number_server import Running, client_of, expected, rows_of

from podzero.runtime.processes import learner as module
from podzero.runtime.processes.learner import running_beside


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
    monkeypatch.setattr(module, "COMPANION_END_S", 0.05)
    caplog.set_level("INFO")
    actor = Actor(deaf=True)
    with running_beside(actor, fail=lambda _: None):
        assert actor.began.wait(10.0)
    assert "did not end within 0.05 s" in caplog.text
    actor.stopped.set()


def test_no_message_to_a_server_beside_the_learner_ends_training():
    serving, failures, rows = Running(start=False), queue.Queue(), rows_of(0, 4)
    stranger = zmq.Context.instance().socket(zmq.DEALER)
    stranger.setsockopt(zmq.LINGER, 0)
    stranger.connect(serving.address)
    with running_beside(serving.server, failures.put):
        for content in (b'["x", Infinity, []]', b"[" * 60_000, b'["\\ud800", 8, ["run", "hex", "", 4, 3]]'):
            stranger.send_multipart([b"hello", content])
            assert stranger.poll(20_000)
            assert stranger.recv_multipart()[0] == b"refused"
        np.testing.assert_array_equal(client_of(serving).evaluate(0, rows), expected(rows))
    assert failures.empty()
    stranger.close()
