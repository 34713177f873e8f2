"""Which snapshots are kept."""

import math

from podzero.runtime.snapshots import PER_DOUBLING, kept_snapshots, rated_steps


def test_the_newest_are_kept():
    assert kept_snapshots(range(0, 1000, 10), newest=3, rated=()) == {970, 980, 990}


def test_few_are_all_kept():
    assert kept_snapshots([5, 10], newest=20, rated=()) == {5, 10}


def test_a_long_run_keeps_few_and_the_evaluator_finds_the_opponents_that_it_asks_for():
    """The evaluator plays the last rated snapshot, and the one nearest to half of the present step."""
    kept = set()
    for step in range(100, 200_000, 100):
        rated = {other for other in kept if other % 300 == 0}
        kept = kept_snapshots({*kept, step}, newest=5, rated=rated)
        assert len(kept) <= 6 + PER_DOUBLING * math.log2(step)
        if step > 5000:
            assert max(rated) in kept
            nearest = min(rated & kept, key=lambda other: abs(other - step / 2))
            assert abs(nearest - step / 2) < 0.15 * step


def test_the_last_rated_snapshot_is_kept_however_old_it_is():
    assert 15 in kept_snapshots(range(0, 1000, 5), newest=2, rated=[10, 11, 12, 13, 14, 15])


def test_rated_steps_are_the_snapshots_of_the_ladder():
    ladder = {"results": [{"first": "@120", "second": "random"}, {"first": "@120", "second": "@40"}], "ratings": {}}
    assert rated_steps(ladder) == {40, 120}
    assert rated_steps({}) == set()
