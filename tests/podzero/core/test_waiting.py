"""Waits under a clock that the test moves."""

import math
import threading

import pytest

from podzero.core import waiting
from podzero.core.types import Versioned
from podzero.core.waiting import Wait, doubled, first_params, waits_in


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, in a list of one."""
    now = [1000.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    return now


def messages(wait, clock, until_s):
    """The seconds at which messages are due, asked once a second."""
    began, due = clock[0], []
    while clock[0] - began < until_s:
        clock[0] += 1.0
        if wait.message_due():
            due.append(wait.seconds)
    return due


def test_pauses_double_up_to_the_longest_however_many_failures_there_are():
    assert [doubled(15.0, failures, 100.0) for failures in (1, 2, 3, 4, 5, 100_000)] == [15, 30, 60, 100, 100, 100]


def test_messages_about_a_wait_become_rarer_up_to_one_in_ten_minutes(clock):
    assert messages(Wait(30.0), clock, 3000) == [30, 60, 120, 240, 480, 960, 1560, 2160, 2760]


def test_a_first_message_later_than_ten_minutes_is_no_contradiction(clock):
    assert messages(Wait(1000.0), clock, 3500) == [1000, 2000, 3000]


def test_a_wait_without_a_limit_is_never_over(clock):
    wait = Wait()
    clock[0] += 1e9
    assert not wait.over


def test_a_wait_is_over_after_its_limit(clock):
    wait = Wait(limit_s=5.0)
    clock[0] += 5.0
    assert not wait.over
    clock[0] += 0.1
    assert wait.over


def test_a_wait_says_how_long_it_has_lasted_and_since_when(clock, monkeypatch):
    monkeypatch.setattr(waiting.time, "strftime", lambda form: "2026-11-24 14:03:10")
    wait = Wait()
    clock[0] += 61.2
    assert f"the learner has waited {wait} for a batch" == (
        "the learner has waited 61 s, since 2026-11-24 14:03:10, for a batch"
    )


class Source:
    """A source whose parameters are there after a number of waits, each of which takes what it may."""

    def __init__(self, waits, clock):
        self.waits, self.clock = waits, clock

    def wait(self, timeout_s):
        if self.waits == 0:
            return Versioned(8, "params")
        self.waits -= 1
        self.clock[0] += timeout_s
        raise TimeoutError("the learner has not published any")


def test_the_first_parameters_are_waited_for_however_long(clock, caplog):
    """Replay and learner may take half an hour to restore."""
    assert first_params(Source(2000, clock), threading.Event()) == (8, "params")
    assert clock[0] == 1000.0 + 2000 * 5.0
    assert 0 < len(caplog.messages) < 25
    for message in caplog.messages:
        assert "for the first parameters: the learner has not published any" in message


def test_the_wait_for_the_first_parameters_ends_when_the_process_is_to_stop(clock):
    stopping = threading.Event()
    source = Source(10**9, clock)

    def wait(timeout_s):
        stopping.set()
        raise TimeoutError

    source.wait = wait
    assert first_params(source, stopping) is None


def test_a_process_waits_from_its_first_look_until_a_minute_after_its_last(clock, monkeypatch):
    monkeypatch.setattr(Wait, "looked_at", ("", -math.inf))
    assert waits_in() == ""
    wait = Wait(stage="write")
    assert waits_in() == ""
    for _ in range(10):
        wait.message_due()
        clock[0] += 30.0
        assert waits_in() == "write"
    clock[0] += 60.0
    assert waits_in() == ""
