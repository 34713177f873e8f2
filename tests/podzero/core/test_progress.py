"""The progress of a run against numbers computed by hand."""

import pytest

from podzero.core.clock import Progress, share_of_rest


@pytest.mark.parametrize(
    ("limit", "before", "done", "share"),
    [(None, 0, 9, 0.0), (20, 0, 5, 0.25), (20, 10, 15, 0.5), (20, 0, 25, 1.0), (10, 10, 10, 1.0), (20, 10, 9, 0.0)],
)
def test_a_share_is_of_what_was_left(limit, before, done, share):
    assert share_of_rest(limit, before, done) == share


def test_the_progress_is_that_of_the_limit_which_is_nearest():
    progress = Progress(0.0, 0, 100)
    assert progress.at(0) == 0.0
    progress.tell(0.25)
    assert [progress.at(step) for step in (10, 25, 50, 100, 108)] == [0.25, 0.25, 0.5, 1.0, 1.0]


def test_without_limits_there_is_no_progress():
    assert Progress(0.0, 0, None).at(10**6) == 0.0


def test_a_run_resumed_with_the_same_limit_goes_on_as_if_it_had_not_ended():
    assert [Progress(0.25, 25, 100).at(step) for step in (25, 50, 100)] == pytest.approx([0.25, 0.5, 1.0])


def test_after_a_stop_in_between_the_progress_is_bit_by_bit_what_it_would_have_been():
    """What is saved is that of the last dispatch, of 4 steps, as float32: 0.33333334 for a third."""
    straight, resumed = Progress(0.0, 0, 300, 4), Progress(0.3333333432674408, 104, 300, 4)
    assert [resumed.at(step) for step in range(104, 300)] == [straight.at(step) for step in range(104, 300)]
    resumed.tell(0.5)
    assert resumed.at(108) == pytest.approx(2 / 3)


def test_a_run_resumed_with_a_higher_limit_neither_falls_back_nor_jumps():
    """At 0.5 after 50 of 100 steps; with 200 the other half is spread over the 150 steps that are left."""
    resumed = Progress(0.5, 50, 200)
    assert [resumed.at(step) for step in (50, 125, 200)] == pytest.approx([0.5, 0.75, 1.0])
    assert [Progress(1.0, 100, 200).at(step) for step in (100, 150, 200)] == [1.0, 1.0, 1.0]


def test_what_was_told_never_falls():
    progress = Progress(0.0, 0, None)
    for share in (0.5, 0.25):
        progress.tell(share)
        assert progress.at(0) == 0.5
