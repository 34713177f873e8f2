"""Hours without pauses, steps that never fall, games summed over actors."""

import numpy as np
from run_files import BEGAN, line

from podzero.tools.report.history import History
from podzero.tools.report.timeline import SHORTEST_PAUSE_S, Timeline


def timeline_of(*lines):
    history = History()
    for one in lines:
        history.add_line(one)
    return Timeline(history)


def test_a_time_without_reports_is_no_training_time():
    pause = 10 * SHORTEST_PAUSE_S
    timeline = timeline_of(*(line("learner", t, 0) for t in (0, 100, 100 + pause, 200 + pause)))
    assert timeline.end_hours == 200 / 3600
    np.testing.assert_allclose(timeline.hours(np.array([BEGAN + 100, BEGAN + 150 + pause])), [100 / 3600, 150 / 3600])


def test_reports_of_a_year_that_are_far_apart_are_no_pause():
    """A worker's lines are at least 1/5,000 of the elapsed time apart: 1.75 hours after a year."""
    year, apart = 365 * 24 * 3600, 1 / 5000
    times = 1000.0 * (1 + apart) ** np.arange(np.log(year / 1000) / np.log1p(apart))
    assert np.diff(times).max() > 5 * SHORTEST_PAUSE_S
    timeline = timeline_of(*(line("learner", t, 0) for t in times))
    np.testing.assert_allclose(timeline.end_hours, (times[-1] - times[0]) / 3600)


def test_steps_and_games_at_a_moment():
    timeline = timeline_of(
        line("actor-0", 0, 0, count__games=4.0), line("actor-1", 0, 0, count__games=2.0),
        line("learner", 180, 10), line("actor-0", 360, 20, count__games=6.0),
    )  # fmt: skip
    axes = timeline.at_hours(np.array([0.0, 0.05, 0.1]))
    np.testing.assert_allclose(axes.steps, [0, 10, 20])
    np.testing.assert_allclose(axes.games, [6, 6, 12])


def test_the_moment_at_which_a_step_was_reached():
    timeline = timeline_of(*(line("learner", 36 * k, k, count__games=0.0) for k in range(11)))
    np.testing.assert_allclose(timeline.at_steps(np.array([0.0, 5.0, 10.0, 99.0])).hours, [0.0, 0.05, 0.1, 0.1])


def test_an_empty_run_has_no_time():
    timeline = timeline_of()
    assert timeline.end_hours == 0
    np.testing.assert_array_equal(timeline.at_hours(np.array([0.0])).games, [0.0])
