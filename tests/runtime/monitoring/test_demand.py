"""How many actors are wanted, in a model of a learner that uses up the samples of so many actors."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podzero.runtime.monitoring.monitor import DECIDE_EVERY_S, Demand, wanted_actors
from podzero.runtime.monitoring.status import RunStatus

LEAST, MOST = 2, 200


@pytest.mark.parametrize(
    ("wanted", "running", "starved", "blocked", "expected"),
    [
        (20, 20, 0.4, 0.0, 22),
        (20, 20, 0.15, 0.15, 20),  # neither waits long
        (20, 20, 0.4, 0.4, 20),  # replay is slow
        (20, 20, 0.0, 0.5, 18),
        (20, 20, 0.0, 0.16, 18),
        (6, 6, 0.0, 0.16, 6),  # five could do only 83% of what six do with 84% of their time
        (1, 1, 0.9, 0.0, 2),
        (20, 8, 0.4, 0.0, 20),  # others wait for machines
        (20, 8, 0.0, 0.5, 7),
    ],
)
def test_a_tenth_of_the_actors_comes_or_goes(wanted, running, starved, blocked, expected):
    assert wanted_actors(wanted, running, starved, blocked) == expected


def shares(actors, enough):
    """The learner's wait for replay and the actors' for it, where `enough` actors would keep both busy."""
    return max(0.0, 1.0 - actors / enough), max(0.0, 1.0 - enough / actors)


def status(starved, blocked, phase="training"):
    return RunStatus(
        "run", phase, 0.0, shares={"learner": {"wait_replay": starved}, "actor": {"write": blocked, "search": 0.1}}
    )


def numbers(demand, enough, minutes):
    """The numbers of actors that are wanted, minute by minute, if as many run."""
    now, found = 0.0, [demand.wanted]
    for _ in range(minutes):
        for _ in range(3):
            demand.look(status(*shares(demand.wanted, enough)), demand.wanted, now)
            now += DECIDE_EVERY_S / 2
        found.append(demand.wanted)
    return found


@given(enough=st.floats(0.5, 300.0), start=st.integers(LEAST, MOST))
def test_at_constant_rates_the_number_settles_within_its_bounds_and_turns_back_at_most_once(enough, start):
    demand = Demand(LEAST, MOST)
    demand.wanted = start
    found = numbers(demand, enough, 150)
    assert all(LEAST <= count <= MOST for count in found)
    assert len(set(found[-60:])) == 1
    steps = [after - before for before, after in pairwise(found) if after != before]
    turns = sum((step > 0) != (following > 0) for step, following in pairwise(steps))
    assert turns <= 1
    starved, blocked = shares(found[-1], enough)
    assert starved <= 0.15 or found[-1] == MOST
    assert blocked <= 0.15 or found[-1] in (LEAST, math.ceil(enough))


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 1.0),
            st.floats(0.0, 1.0),
            st.integers(0, MOST),
            st.sampled_from(["training", "starting", "collecting"]),
            st.floats(0.0, 100.0),
        ),
        max_size=60,
    )
)
def test_the_number_stays_within_its_bounds_and_changes_once_a_minute_whatever_is_reported(looks):
    demand, now, changed_at = Demand(LEAST, MOST), 0.0, -math.inf
    for starved, blocked, running, phase, passed in looks:
        now, before = now + passed, demand.wanted
        assert demand.look(status(starved, blocked, phase), running, now) == (demand.wanted != before)
        assert LEAST <= demand.wanted <= MOST
        if demand.wanted != before:
            assert now - changed_at >= DECIDE_EVERY_S
            assert phase == "training"
            changed_at = now


def test_the_mean_of_a_minute_decides():
    demand = Demand(1, 10)
    for now, blocked in ((0, 0.9), (20, 0.0), (40, 0.0), (60, 0.0)):
        assert demand.wanted == 10
        demand.look(status(0.0, blocked), 10, now)
    assert demand.wanted == 9
    for now, blocked in ((61, 0.4), (90, 0.0), (121, 0.0)):
        demand.look(status(0.0, blocked), 9, now)
    assert demand.wanted == 9


def test_the_wait_before_the_first_step_and_while_the_learner_restarts_counts_for_nothing():
    demand = Demand(1, 10)
    for minute in range(5):
        demand.look(status(0.0, 1.0, "collecting"), 10, 60.0 * minute)
        demand.look(RunStatus("run", "training", 0.0), 10, 60.0 * minute)
    assert demand.wanted == 10


def test_without_a_smaller_number_all_actors_are_always_wanted():
    demand = Demand(10, 10)
    assert set(numbers(demand, 2.0, 5)) == {10}
