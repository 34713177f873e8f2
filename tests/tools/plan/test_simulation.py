"""The laws of the simulation, in numbers computed by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podzero.tools.plan.simulation import Players, System, simulate

HOUR = 3600.0


@pytest.fixture(autouse=True)
def _few_events(monkeypatch):
    monkeypatch.setattr("podzero.tools.plan.simulation.EVENTS", 4_000)


SMALL = System([Players(4, 10.0)], step_s=0.5, batch_size=100, reads_per_move=4)
"""40 moves/s, and a learner of 200 samples/s, which needs 50."""


def test_a_learner_that_is_slower_than_its_actors_sets_the_rate():
    """2 steps/s of 100 samples, each move learned from 4 times: 50 moves/s, half of the 100 that 10 actors make."""
    found = simulate(SMALL._replace(nodes=[Players(10, 10.0)]), HOUR)
    assert found["steps_per_s"] == pytest.approx(2.0, rel=0.01)
    assert found["moves_per_s"] == pytest.approx(50.0, rel=0.01)
    assert found["actor_time"]["playing"] == pytest.approx(0.5, abs=0.01)
    assert found["learner_time"]["training"] == pytest.approx(1.0, abs=0.01)


def test_actors_that_are_slower_than_the_learner_set_the_rate():
    """4 actors of 10 moves/s: 160 samples/s, 1.6 steps/s, 0.8 of what the learner could make."""
    found = simulate(SMALL, HOUR)
    assert found["moves_per_s"] == pytest.approx(40.0, rel=0.01)
    assert found["steps_per_s"] == pytest.approx(1.6, rel=0.01)
    assert found["learner_time"]["waiting"] == pytest.approx(0.2, abs=0.01)


def test_a_node_of_half_the_speed_makes_half_as_many_moves():
    found = simulate(SMALL._replace(nodes=[Players(1, 10.0), Players(1, 5.0)]), HOUR)
    assert found["moves_per_s"] == pytest.approx(15.0, rel=0.01)


def test_chips_that_play_and_train_take_the_time_of_both():
    """A second's 100 moves are 400 samples, 2 s of training at 200 samples/s: 100 moves in 3 s."""
    found = simulate(SMALL._replace(nodes=[Players(1, 100.0)], cores=1), HOUR)
    assert found["moves_per_s"] == pytest.approx(100 / 3, rel=0.01)
    assert found["learner_time"]["training"] == pytest.approx(2 / 3, abs=0.01)
    assert found["actor_time"]["playing"] == pytest.approx(1 / 3, abs=0.01)


def test_processes_that_share_cores_have_their_work_done_in_the_time_of_all():
    """A move takes 0.1 core-seconds, its 4 samples 4 / 200 s on both cores, 0.04: 2 cores make 2 / 0.14 moves/s."""
    found = simulate(SMALL._replace(cores=2), HOUR)
    assert found["moves_per_s"] == pytest.approx(2 / 0.14, rel=0.01)
    used = found["learner_time"]["training"] + found["actor_time"]["playing"] * 4 / 2
    assert used == pytest.approx(1.0, abs=0.01)


def test_an_actor_alone_with_a_learner_on_two_cores_is_slowed_only_while_it_trains():
    """A move takes 0.1 s alone, 0.15 s beside training. Its samples take 0.02 s of training alone, 0.03 s beside it."""
    found = simulate(SMALL._replace(nodes=[Players(1, 10.0)], step_s=0.5, cores=2), HOUR)
    # In the 0.03 s of training, 0.02 s of play are done: 0.11 s a move.
    assert found["moves_per_s"] == pytest.approx(1 / 0.11, rel=0.01)


def test_a_learner_of_recorded_games_waits_for_nobody():
    found = simulate(SMALL._replace(nodes=[]), 100.0)
    assert found["steps_per_s"] == pytest.approx(2.0, rel=0.02)
    assert found["actor_time"]["playing"] == found["moves"] == 0


def test_training_begins_when_replay_is_full_enough():
    """2 s of start, then 4,000 moves at 40 a second."""
    found = simulate(SMALL._replace(min_moves=4_000, start_s=2.0), HOUR)
    assert found["first_step_s"] == pytest.approx(102.0, abs=2.0)
    assert math.isinf(simulate(SMALL._replace(min_moves=4_000), 60.0)["first_step_s"])


@pytest.mark.parametrize("tolerance", [1.0, 1_000.0])
def test_the_limiter_lets_neither_side_run_ahead(tolerance):
    """4 samples for each move, but for the tolerance on either side, or else a block and a dispatch."""
    found = simulate(SMALL._replace(tolerance=tolerance, min_moves=500, nodes=[Players(10, 10.0)]), 300.0)
    block = 4 * 10
    assert abs(4 * (found["moves"] - 500) - 100 * found["steps"]) <= max(tolerance, block + 100) + 2 * block + 100


def test_a_lost_learner_is_away_for_the_repair_and_makes_its_last_steps_again():
    """A loss every 9 hours and an hour of repair: a tenth of the time is lost, and with it half of a minute's steps."""
    found = simulate(SMALL._replace(shards=0, hosts=2, mtbf_s=18 * HOUR, repair_s=HOUR), 10_000 * HOUR)
    assert found["learner_time"]["lost"] == pytest.approx(1 / 10, rel=0.1)
    assert found["actor_time"]["lost"] == pytest.approx(1 / 19, rel=0.1)
    losses = 10_000 / 10
    assert found["lost_machines"] == pytest.approx(losses + 10_000 / 19, rel=0.1)
    assert found["lost_steps"] == pytest.approx(losses * 30 * found["steps_per_s"], rel=0.15)


def test_a_lost_replay_shard_keeps_the_learner_waiting(monkeypatch):
    monkeypatch.setattr("podzero.tools.plan.simulation.EVENTS", 40_000)
    faults = SMALL._replace(nodes=[Players(10, 10.0)] * 2, mtbf_s=9 * HOUR, repair_s=HOUR)
    without, beside = (simulate(faults._replace(shards=shards), 1_000 * HOUR, 3) for shards in (0, 1))
    assert beside["learner_time"]["lost"] > 1.5 * without["learner_time"]["lost"]


def test_equal_seeds_give_equal_runs():
    faults = SMALL._replace(mtbf_s=HOUR, repair_s=60.0)
    assert simulate(faults, 10 * HOUR, 1) == simulate(faults, 10 * HOUR, 1)
    assert simulate(faults, 10 * HOUR, 1) != simulate(faults, 10 * HOUR, 2)


def test_ten_thousand_actors_on_625_nodes_make_the_moves_of_ten_thousand(monkeypatch):
    """A learner of 64 hosts that is never full, for a day, with a loss of a machine every hour and a half."""
    pod = SMALL._replace(
        nodes=[Players(16, 5.0)] * 625, step_s=0.01, batch_size=8_192, shards=64, hosts=64,
        mtbf_s=1_000 * HOUR, repair_s=300.0,
    )  # fmt: skip
    monkeypatch.setattr("podzero.tools.plan.simulation.EVENTS", 40_000)
    found = simulate(pod, 24 * HOUR)
    assert found["moves_per_s"] == pytest.approx(50_000, rel=0.02)
    assert found["lost_machines"] > 0


@settings(max_examples=25)
@given(
    st.integers(1, 8), st.floats(1.0, 100.0), st.floats(0.05, 1.0), st.floats(0.5, 8.0),
    st.sampled_from([None, 1.0, 2.0]),
)  # fmt: skip
def test_more_actors_a_faster_learner_and_less_reuse_never_make_fewer_moves(
    count, moves_per_s, step_s, reads_per_move, cores
):
    system = System([Players(count, moves_per_s)], step_s, 64, reads_per_move, cores=cores)
    made = simulate(system, 100.0)["moves"]
    for better in (
        system._replace(nodes=[Players(count + 1, moves_per_s)]),
        system._replace(nodes=[Players(count, 1.5 * moves_per_s)]),
        system._replace(step_s=step_s / 1.5),
        system._replace(reads_per_move=reads_per_move / 1.5),
    ):
        assert simulate(better, 100.0)["moves"] >= 0.97 * made - 64 / reads_per_move - 10 * (count + 1)
