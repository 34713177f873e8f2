"""When a run ends: the limits of section `stop`, of which the first one reached is named."""

import pytest

from podzero.config import parse


def experiment(**sections):
    return parse({"name": "small", "env": {"name": "tic_tac_toe"}} | sections, "test")


@pytest.mark.parametrize(
    ("minutes", "steps", "games", "reached"),
    [(59.9, 9, 99.0, None), (60.0, 9, 0.0, "stop.minutes=60"), (0.0, 10, 100.0, "stop.steps=10"),
     (0.0, 0, 100.0, "stop.games=100")],
)  # fmt: skip
def test_the_first_reached_limit_is_named(minutes, steps, games, reached):
    stop = experiment(stop={"minutes": 60, "steps": 10, "games": 100}).stop
    done = stop.done({"elapsed_s": 60 * minutes, "games": games}, steps, 0.0, None)
    assert stop.reached(done) == reached
    assert experiment().stop.reached(done) is None


def test_a_run_ends_at_a_score_and_after_evaluations_that_are_no_better():
    stop = experiment(stop={"score": 0.95, "patience": 3}).stop
    assert stop.unlimited  # neither is certain to be reached
    judged = [({}, None), ({"best_score": 0.9, "evaluations_since_best": 2.0}, None)]
    judged += [({"best_score": 0.95}, "stop.score=0.95"), ({"evaluations_since_best": 3.0}, "stop.patience=3")]
    for counters, reached in judged:
        assert stop.reached(stop.done(counters, 0, 0.0, None)) == reached


@pytest.mark.parametrize(
    ("stop", "most"), [({"hours": 5}, 5), ({"cost": 60}, 3), ({"hours": 2, "cost": 60}, 2), ({}, None)]
)
def test_the_most_hours_are_the_smaller_of_hours_and_those_that_the_cost_allows(stop, most):
    found = experiment(stop=stop, cluster={"price_per_hour": 20})
    assert found.most_hours == most
    for hours in (most or 100, (most or 100) - 0.01):
        reached = found.stop.reached(found.stop.done({}, 0, hours, found.cluster.cost(hours)))
        assert (reached is not None) == (hours == most)
