from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podzero.actors import ActorClients, SelfPlayActor, SelfPlayCore
from podzero.actors.resignation import LEAST_RESIGNED, LowestValues, ResignThreshold, lowest_values
from podzero.config import ActorsConfig, parse
from podzero.envs import make_env
from podzero.errors import ConfigError
from podzero.types import EnvSpec

from .test_core import first_legal
from .test_reanalysis import Source, Writer


def threshold_of(games, max_false=0.05):
    threshold = ResignThreshold(max_false)
    for game in games:
        threshold.add(game)
    return threshold.value


def test_lowest_values_are_those_of_the_loser_and_of_the_others():
    values = np.array([0.5, -0.25, -0.75, -0.5], np.float32)
    assert lowest_values(values, np.array([False, True, False, True])) == LowestValues(loser=-0.5, others=-0.75)
    assert lowest_values(values, np.zeros(4, bool)) == LowestValues(loser=np.inf, others=-0.75)


def test_nobody_resigns_before_enough_games_are_known():
    game = LowestValues(loser=-0.9, others=0.1)
    assert threshold_of([game] * (LEAST_RESIGNED - 1)) == -np.inf
    assert threshold_of([game] * LEAST_RESIGNED) == pytest.approx(-0.9)


def test_the_threshold_is_the_highest_at_which_few_resignations_are_false():
    """At -0.9 the losers of 95 games resign, and in 5 games a player who does not lose: 5%. With 6 it is too many."""
    lost, saved = LowestValues(loser=-0.9, others=0.1), LowestValues(loser=np.inf, others=-0.95)
    late = LowestValues(loser=-0.5, others=-0.4)
    assert threshold_of([lost] * 95 + [saved] * 5) == pytest.approx(-0.9)
    assert threshold_of([lost] * 94 + [saved] * 6) == -np.inf
    assert threshold_of([lost] * 95 + [saved] * 5 + [late] * 10) == pytest.approx(-0.5)
    assert threshold_of([lost] * 94 + [saved] * 6, max_false=0.1) == pytest.approx(-0.9)


def test_nobody_resigns_a_position_that_is_not_bad():
    assert threshold_of([LowestValues(loser=0.2, others=0.5)] * 100) == -np.inf


lows = st.floats(-1, 1, width=32)


@given(st.lists(st.builds(LowestValues, lows, lows), min_size=LEAST_RESIGNED, max_size=60), st.floats(0, 0.5))
def test_false_resignations_never_exceed_their_limit(games, max_false):
    value = threshold_of(games, max_false)
    resigned = [game for game in games if min(game) <= value]
    assert value < 0
    assert sum(game.others <= value for game in resigned) <= max_false * len(resigned)


def bad_for_the_second(env):
    """A search that plays the first legal action and gives -0.9 to the second player, 0.9 to the first."""
    search = first_legal(env)

    def found(params, key, roots, exploration):
        stones = jnp.sum(jax.vmap(env.view)(roots).observation, axis=(1, 2, 3))
        value = jnp.where(stones % 2 == 0, 0.9, -0.9)
        return search(params, key, roots, exploration)._replace(value=value)

    return found


def test_a_player_resigns_and_loses_unless_the_game_is_played_on():
    env = make_env("tic_tac_toe")
    config = ActorsConfig(games=256, resignation=True, played_on_fraction=0.25)
    core = SelfPlayCore(env, bad_for_the_second(env), config)
    move = jax.jit(core.move, static_argnames="fast")
    state, first = move(None, jax.jit(core.init)(jax.random.key(0)), resign_at=-0.5)
    assert not np.any(first.resigned)
    _, fast = move(None, state, fast=True, resign_at=-0.5)
    assert not np.any(fast.resigned)
    after, second = move(None, state, resign_at=-0.5)
    np.testing.assert_array_equal(second.resigned, ~np.asarray(second.plays_on))
    np.testing.assert_array_equal(second.done, second.resigned)
    assert abs(np.mean(second.plays_on) - 0.25) < 0.1
    mover = np.take_along_axis(np.asarray(second.rewards), np.asarray(second.player)[:, None], 1)[:, 0]
    np.testing.assert_array_equal(mover, np.where(second.resigned, -1, 0))
    np.testing.assert_array_equal(np.asarray(second.rewards).sum(axis=1), np.zeros(256))
    np.testing.assert_array_equal(after.plies, np.where(second.resigned, 0, 2))
    assert 0 < np.mean(np.asarray(after.plays_on)[np.asarray(second.resigned)]) < 0.5  # drawn anew


def test_without_resignation_moves_do_not_tell_of_it():
    env = make_env("tic_tac_toe")
    core = SelfPlayCore(env, bad_for_the_second(env), ActorsConfig(games=4))
    _, played = core.move(None, core.init(jax.random.key(0)), resign_at=1.0)
    assert played.resigned is None
    assert played.plays_on is None
    assert not np.any(played.done)


def test_a_single_player_cannot_resign():
    alone = SimpleNamespace(spec=EnvSpec("solitaire", (1,), "bool", 2, players=1))
    with pytest.raises(ConfigError, match=r"actors\.resignation: solitaire has one player"):
        SelfPlayCore(alone, None, ActorsConfig(resignation=True))


def test_an_actor_calibrates_the_threshold_and_shortens_its_games():
    """The second player loses at ply 7, and resigns at ply 2 once enough games were played on."""
    actors = {"games": 4, "resignation": True, "played_on_fraction": 0.5}
    tree = {"name": "test", "env": {"name": "tic_tac_toe"}, "actors": actors, "replay": {"samples_per_item": 1}}
    experiment, reports = parse(tree, "test"), []
    env, writer = make_env(experiment.env), Writer([], "samples", writes=120)
    search = bad_for_the_second(env)
    actor = SelfPlayActor(
        experiment=experiment,
        name="actor-0",
        seed=0,
        core=SelfPlayCore(env, search, experiment.actors, {experiment.search.simulations: search}),
        fold=lambda params: params,
        clients=ActorClients(Source(), writer, lambda name, metrics: reports.append(metrics)),
    )
    writer.enough = actor.stop
    actor.run()
    targets = np.concatenate([samples.value_target for samples in writer.written])
    assert set(np.abs(targets).tolist()) == {1.0}
    assert any(report.get("selfplay/resigned", 0) > 0 for report in reports)
    assert min(report["selfplay/plies_per_game"] for report in reports if "selfplay/plies_per_game" in report) < 7
