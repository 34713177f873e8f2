"""When a silence is long: a multiple of a worker's own median, within limits; and what does not count as silence."""

import math

import pytest

from podzero.runtime.monitoring.pace import FACTOR, LONGEST_S, NAMED_S, Pace


def lasting(pace, seconds, since=0.0, step=2.0):
    """The driver looks every few seconds, and nothing happens."""
    for number in range(1, int(seconds / step) + 1):
        pace.look(since + number * step)
    return since + seconds


def paced(interval_s, times=5, first_s=1800.0, least_s=100.0):
    """What has happened regularly."""
    pace, now = Pace(0.0, first_s, least_s), 0.0
    for _ in range(times):
        now = lasting(pace, interval_s, now)
        pace.happened()
    return pace, now


@pytest.mark.parametrize(("interval_s", "limit_s"), [(2, 100.0), (10, 10 * FACTOR), (600, LONGEST_S)])
def test_a_silence_may_last_a_multiple_of_the_median_interval_within_limits(interval_s, limit_s):
    assert paced(interval_s)[0].limit_s == limit_s


def test_a_worker_that_usually_takes_longer_than_the_longest_limit_has_its_least_one():
    assert paced(2, least_s=2 * LONGEST_S)[0].limit_s == 2 * LONGEST_S
    assert paced(2, least_s=math.inf)[0].limit_s == math.inf


def test_the_first_time_has_a_limit_of_its_own_and_is_no_interval():
    pace, now = paced(0, times=0)
    assert pace.limit_s == 1800.0
    now = lasting(pace, 1000.0, now)
    pace.happened()
    assert pace.limit_s == 1800.0
    lasting(pace, 4.0, now)
    pace.happened()
    assert pace.limit_s == 100.0


def test_a_single_long_interval_does_not_change_the_limit():
    pace, now = paced(2)
    lasting(pace, 90.0, now)
    pace.happened()
    assert pace.limit_s == 100.0


def test_a_wait_is_neither_a_silence_nor_an_interval():
    pace, now = paced(2)
    for _ in range(100):
        now = lasting(pace, 60.0, now)
        pace.excuse()
    assert (pace.silent_s, pace.limit_s) == (0.0, 100.0)


def test_what_passes_while_the_driver_stands_still_is_no_silence_of_others():
    pace, now = paced(2)
    pace.look(now + 600.0)
    assert pace.silent_s < 10.0
    lasting(pace, 60.0, now + 600.0)
    assert 60.0 < pace.silent_s < 70.0


def test_a_silence_is_named_long_before_its_end_but_not_at_once():
    pace, now = paced(2)
    now = lasting(pace, NAMED_S, now)
    assert not pace.named
    lasting(pace, 4.0, now)
    assert pace.named
    assert pace.silent_s < pace.limit_s
