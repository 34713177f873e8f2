"""A failing environment ends its episode, or all running episodes of the vector, but never the run."""

import logging
import multiprocessing
import re
import sys

import numpy as np
import pytest

from podzero.config import environments
from podzero.core.errors import ConfigError
from podzero.envs import EnvironmentFailed

GOOD, FAULT = 1, 2
"""Actions of the toy."""


@pytest.fixture
def make(make_vector):
    """Makes and resets vectors of the toy whose action `FAULT` causes the given fault."""

    def make(fault, count=3, *, length=None, **config):
        kwargs = {"fault": fault} if length is None else {"fault": fault, "length": length}
        vector = make_vector(count, id="toys/Toy-v0", module="gymnasium_toys", kwargs=kwargs, **config)
        vector.reset()
        return vector

    return make


def step(vector, *actions):
    return vector.step(np.array(actions, np.int32))


@pytest.mark.parametrize(
    ("fault", "message", "vectorization"),
    [
        ("raise", "ZeroDivisionError: the toy broke", "sync"),
        ("exit", "SystemExit: the toy left", "sync"),
        ("nan reward", "its reward is nan", "sync"),
        ("no reward", "ValueError: its reward is None; expected a number", "sync"),
        ("long reward", r"ValueError: its reward is array\(\[1.\]\), of shape \[1\]; expected one value", "sync"),
        ("two rewards", r"ValueError: its reward is \[1.0, 2.0\], of shape \[2\]", "sync"),
        ("word", "ValueError: its reward is '1.0'; expected a number", "sync"),
        ("nan", "its observation contains nan", "sync"),
        ("far", "its observation contains 5002.0, outside the range -1011 to 1110", "sync"),
        ("shape", r"ValueError: shape \[2\] instead of \[3\]", "sync"),
        ("kind", "ValueError: dtype complex128 instead of float32", "sync"),
        ("raise", "ZeroDivisionError: the toy broke", "async"),
        ("exit", "SystemExit: the toy left", "async"),
        ("nan", "its observation contains nan", "async"),
    ],
)
def test_a_failing_environment_loses_its_episode_and_the_others_continue(make, vectorization, fault, message, caplog):
    vector = make(fault, vectorization=vectorization)
    step(vector, GOOD, GOOD, GOOD)
    second = step(vector, GOOD, FAULT, GOOD)
    np.testing.assert_array_equal(second.observation, [[2, 1, 1], [0, -1, 1], [2, 1, 1]])  # new: episode 1
    assert second.reward.tolist() == [1, 0, 1]
    assert second.failed.tolist() == second.started.tolist() == [False, True, False]
    assert not (second.terminated | second.truncated).any()
    assert vector.failures == 1
    assert re.search(message, caplog.text)

    third = step(vector, GOOD, GOOD, GOOD)
    np.testing.assert_array_equal(third.observation[:, 0], [3, 1, 3])
    assert not (third.failed | third.started).any()
    fourth = step(vector, GOOD, GOOD, GOOD)
    assert fourth.terminated.tolist() == [True, False, True]


def test_floats_may_lie_up_to_ten_widths_outside_their_bounds(make):
    """The toy's bounds are -1 and 100: 502 is accepted, 5002 was not."""
    vector = make("near")
    step(vector, GOOD, GOOD, GOOD)
    assert step(vector, FAULT, GOOD, GOOD).observation[0].tolist() == [502, 502, 501]
    assert vector.failures == 0


def test_two_environments_fail_in_one_step(make):
    vector = make("nan")
    both = step(vector, FAULT, GOOD, FAULT)
    assert both.failed.tolist() == [True, False, True]
    assert vector.failures == 2


@pytest.mark.parametrize(
    ("vectorization", "fault", "message"),
    [
        ("sync", "hang", r"TimeoutError: no answer within 1.5 s \(env.step_timeout_s\)"),
        ("sync", "loop", "TimeoutError"),
        ("async", "hang", "TimeoutError"),
        ("async", "die", "EOFError|ConnectionResetError|BrokenPipeError"),
        ("own", "hang", "TimeoutError"),
        ("own", "raise", "ZeroDivisionError: the toy broke"),
        ("own", "exit", "SystemExit: the toy left"),
        ("own", "nan", "its observation contains nan"),
        ("own", "nan reward", "its reward is nan"),
        ("own", "shape", "ValueError"),
    ],
)
def test_a_hang_or_a_dead_process_loses_all_running_episodes(make, vectorization, fault, message, caplog):
    """With `own`, environment 0 has just ended its episode of two steps, so it has no running episode to lose."""
    vector = make(fault, vectorization=vectorization, length=None if vectorization == "own" else 2, step_timeout_s=1.5)
    step(vector, GOOD, GOOD, GOOD)
    if vectorization != "own":
        step(vector, GOOD, GOOD, GOOD)
        after = step(vector, GOOD, GOOD, FAULT)  # all episodes ended: this step resets them and ignores the action
        assert not after.failed.any()
        step(vector, GOOD, GOOD, GOOD)
        expected = [True, True, True]
    else:
        assert step(vector, GOOD, GOOD, GOOD).terminated.tolist() == [True, False, False]
        expected = [False, True, True]
    lost = step(vector, GOOD, GOOD, FAULT)
    assert lost.failed.tolist() == expected
    assert lost.started.all()
    assert not lost.terminated.any()
    np.testing.assert_array_equal(lost.observation, [[0, -1, 1]] * 3)
    assert lost.reward.tolist() == [0, 0, 0]
    assert vector.failures == sum(expected)
    assert re.search(message, caplog.text)
    np.testing.assert_array_equal(step(vector, GOOD, GOOD, GOOD).observation[:, 0], [1, 1, 1])


def test_max_failures_counts_failures_since_the_last_completed_episode(make):
    vector = make("raise", 1, length=1, max_failures=2)
    for _ in range(3):
        step(vector, FAULT)
        step(vector, FAULT)
        assert step(vector, GOOD).terminated.all()
        assert step(vector, GOOD).started.all()
    assert vector.failures == 6
    step(vector, FAULT)
    step(vector, FAULT)
    with pytest.raises(
        EnvironmentFailed,
        match=r"Toy-v0 failed 3 times.* 2 .*ZeroDivisionError",
    ):
        step(vector, FAULT)


def test_simultaneous_failures_count_once_towards_max_failures(make):
    vector = make("raise", 3, max_failures=2)
    for _ in range(2):
        assert step(vector, FAULT, FAULT, FAULT).failed.all()
    assert vector.failures == 6
    with pytest.raises(EnvironmentFailed, match="failed 3 times"):
        step(vector, FAULT, FAULT, FAULT)


def test_the_error_of_an_environment_that_cannot_be_made_in_its_process_is_reported(make_vector):
    vector = make_vector(
        2, id="toys/Homebody-v0", module="gymnasium_toys", vectorization="async", max_failures=2
    )  # fmt: skip
    with pytest.raises(EnvironmentFailed, match="ZeroDivisionError: the toy broke"):
        vector.reset()


def test_processes_that_hang_while_making_an_environment_are_killed(make_vector, monkeypatch):
    monkeypatch.setattr(environments, "BUILD_TIMEOUT_S", 4.0)
    before = set(multiprocessing.active_children())
    config = {"id": "toys/Homebody-v0", "module": "gymnasium_toys", "kwargs": {"in_subprocess": "hang"}}
    with pytest.raises(ConfigError, match="no answer within 4 s"):
        make_vector(2, **config, vectorization="async")
    assert set(multiprocessing.active_children()) <= before


def test_a_registered_vector_environment_is_closed_before_it_is_replaced(make):
    vector = make("raise", vectorization="own")
    closed = sys.modules["gymnasium_toys"].CLOSED
    before = closed["vectors"]
    step(vector, FAULT, GOOD, GOOD)
    assert closed["vectors"] == before + 1


@pytest.mark.parametrize("allowed", [1, 0])
def test_a_failing_reset_is_retried_max_failures_times(make, allowed):
    """The episodes of two environments end, but only one more reset, or none, succeeds."""
    vector = make("raise", 2, length=1, max_failures=3)
    step(vector, GOOD, GOOD)
    resets = sys.modules["gymnasium_toys"].RESETS
    resets["allowed"] = allowed
    try:
        with pytest.raises(EnvironmentFailed, match="OSError: no more resets"):
            step(vector, GOOD, GOOD)
    finally:
        resets["allowed"] = 10**9


def test_failures_are_logged_at_most_once_a_second(make, caplog):
    vector = make("raise", 1)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            step(vector, FAULT)
    (record,) = caplog.records
    assert "gymnasium/toys/Toy-v0 failed (1 episodes lost so far): ZeroDivisionError" in record.getMessage()
    assert vector.failures == 5


def test_a_run_with_failures_is_reproducible(make):
    def play():
        vector = make("raise", 2)
        return [step(vector, *actions) for actions in ((1, 1), (1, 2), (2, 1), (1, 1), (1, 1), (1, 1))]

    for one, other in zip(play(), play(), strict=True):
        for field, again in zip(one, other, strict=True):
            np.testing.assert_array_equal(field, again)
