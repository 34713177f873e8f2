"""The jitted self-play step: auto-reset, openings, and how much is explored."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.actors.core import SelfPlayCore, explore
from podzero.config import ActorsConfig, SimulatorConfig, parse
from podzero.core.types import SearchResult
from podzero.envs import make_env


def first_legal(env):
    """A search that plays the first legal action; its value is the temperature plus ten times the noise."""

    def search(params, key, roots, exploration):
        legal = jax.vmap(env.view)(roots).legal
        action = jnp.argmax(legal, axis=-1).astype(jnp.int32)
        policy = jax.nn.one_hot(action, legal.shape[-1])
        value = 10 * exploration.noise + exploration.temperature
        return SearchResult(action, policy, value, policy.astype(int))

    return search


def core_for(game="tic_tac_toe", **config):
    env = make_env(game)
    config = ActorsConfig(**({"games": 8} | config))
    core = SelfPlayCore(env, first_legal(env), config)
    return jax.jit(jax.vmap(env.view)), jax.jit(core.init), jax.jit(core.move)


def test_host_games_and_jax_games_are_played_alike():
    """Openings and moves are equal; only the first player differs, which pgx draws at random and OpenSpiel does not."""
    config = {"opening_fraction": 0.5, "opening_plies": 3}
    _, init, move = core_for(**config)
    _, host_init, host_move = core_for(SimulatorConfig(name="open_spiel", id="tic_tac_toe"), **config)
    state, host_state = init(jax.random.key(0)), host_init(jax.random.key(0))
    for _ in range(12):
        (state, ours), (host_state, theirs) = move(None, state), host_move(None, host_state)
        for field in ("legal", "action", "done", "value"):
            np.testing.assert_array_equal(getattr(ours, field), getattr(theirs, field))
        won = [np.take_along_axis(m.rewards, m.player[:, None], axis=1) for m in jax.device_get((ours, theirs))]
        np.testing.assert_array_equal(*won)


def test_finished_games_are_replaced_and_the_others_go_on():
    """With moves 0 1 2 3 4 5 6 the first player holds 2, 4, 6 and wins on the seventh move."""
    view_of, init, move = core_for()
    state = init(jax.random.key(0))
    for number in range(1, 15):
        state, played = move(None, state)
        over = number % 7 == 0
        assert np.all(np.asarray(played.done) == over)
        assert np.all(np.asarray(state.plies) == (0 if over else number % 7))
        view = view_of(state.games)
        assert not np.any(view.done)
        if over:
            np.testing.assert_array_equal(view.observation, np.zeros_like(view.observation))
            mover = np.take_along_axis(np.asarray(played.rewards), np.asarray(played.player)[:, None], axis=1)
            np.testing.assert_array_equal(mover[:, 0], np.ones(8))


def resigning(at, **config):
    """Games of seven moves, which the first player wins; the one to move gives up hope `at` so many stones."""
    env = make_env("tic_tac_toe")

    def search(params, key, roots, exploration):
        found = first_legal(env)(params, key, roots, exploration)
        stones = jnp.sum(jax.vmap(env.view)(roots).observation, axis=(1, 2, 3))
        return found._replace(value=jnp.where(stones == at, -0.95, 0.1))

    core = SelfPlayCore(env, search, ActorsConfig(resign_value=-0.9, **config))
    return jax.jit(core.init), jax.jit(core.move)


def test_whoever_sees_no_hope_resigns_after_the_move():
    init, move = resigning(at=3, games=8, resign_fraction=1.0)
    state = init(jax.random.key(0))
    for number in range(1, 9):
        state, played = move(None, state)
        over = number % 4 == 0
        for ended in (played.done, played.truncated, played.resignations.resigned):
            assert np.all(np.asarray(ended) == over)
        assert np.all(np.asarray(state.plies) == number % 4)
        assert not np.any(played.resignations.played_on)
        if over:
            mover = np.asarray(played.player)[:, None] == np.arange(2)
            np.testing.assert_array_equal(played.rewards, np.where(mover, -1.0, 1.0))


@pytest.mark.parametrize(("at", "false"), [(3, False), (4, True), (6, True)])
def test_a_game_that_may_not_be_resigned_shows_whether_that_would_have_been_right(at, false):
    """Stones are even where the first player moves, who wins with the seventh; a game that is over is not resigned."""
    init, move = resigning(at=at, games=8, resign_fraction=0.0)
    state = init(jax.random.key(0))
    for number in range(1, 15):
        state, played = move(None, state)
        over, noticed = number % 7 == 0, at < 6
        assert np.all(np.asarray(played.done) == over)
        assert not np.any(played.truncated)
        assert not np.any(played.resignations.resigned)
        assert np.all(np.asarray(played.resignations.played_on) == (over and noticed))
        assert np.all(np.asarray(played.resignations.false) == (over and noticed and false))


def test_each_new_game_draws_anew_whether_it_may_be_resigned():
    init, move = resigning(at=3, games=512, resign_fraction=0.8)
    state, drawn = init(jax.random.key(0)), []
    for _ in range(28):
        drawn.append(np.asarray(state.resignation.allowed))
        state, _ = move(None, state)
    assert abs(np.mean(drawn[0]) - 0.8) < 0.08
    # Games that are resigned begin anew after four moves, the others after seven.
    assert np.mean(drawn[0] != drawn[-1]) > 0.2


def test_a_move_records_the_position_before_it():
    view_of, init, move = core_for()
    state = init(jax.random.key(0))
    before = view_of(state.games)
    _, played = move(None, state)
    np.testing.assert_array_equal(played.observation, before.observation)
    np.testing.assert_array_equal(played.legal, before.legal)
    np.testing.assert_array_equal(played.player, before.player)


def test_the_choice_is_greedy_after_the_temperature_plies_and_the_noise_does_not_change():
    _, init, move = core_for(temperature=0.8, temperature_plies=2, noise=0.5)
    state, seen = init(jax.random.key(0)), []
    for _ in range(4):
        state, played = move(None, state)
        seen.append(float(played.value[0]))
    np.testing.assert_allclose(seen, [5.8, 5.8, 5.0, 5.0], rtol=1e-6)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_the_configured_fraction_of_games_gets_an_opening(fraction):
    _, init, _ = core_for("connect_four", games=512, opening_fraction=fraction, opening_plies=10)
    plies = np.asarray(init(jax.random.key(3)).plies)
    assert abs(np.mean(plies > 0) - fraction) < 0.08
    assert plies.max() <= 10
    if fraction:
        assert set(plies[plies > 0].tolist()) == set(range(1, 11))


def test_openings_never_end_a_game_and_count_as_plies():
    view_of, init, _ = core_for("connect_four", games=256, opening_fraction=1.0, opening_plies=42)
    state = init(jax.random.key(5))
    view = view_of(state.games)
    assert not np.any(view.done)
    assert np.all(np.any(view.legal, axis=-1))
    stones = np.asarray(view.observation).sum((1, 2, 3))
    np.testing.assert_array_equal(stones, state.plies)


def test_each_new_game_is_the_next_of_the_pool_and_a_short_pool_is_replaced():
    _, init, move = core_for("connect_four", games=8, opening_fraction=1.0, opening_plies=6)
    state, replaced = init(jax.random.key(1)), 0
    for _ in range(60):
        before, (state, played) = state, jax.device_get(move(None, state))
        done = np.flatnonzero(played.done)
        used, used_before = int(state.starts.used), int(before.starts.used)
        assert used == (used_before + len(done) if used_before + len(done) <= 8 else len(done))
        for order, slot in enumerate(done):
            pick = used - len(done) + order
            assert state.plies[slot] == state.starts.plies[pick]
            for kept, start in zip(jax.tree.leaves(state.games), jax.tree.leaves(state.starts.games), strict=True):
                np.testing.assert_array_equal(kept[slot], start[pick])
        replaced += len(done)
    assert replaced > 16


def test_only_finished_games_get_a_new_opening():
    _, init, move = core_for("connect_four", games=64, opening_fraction=1.0, opening_plies=6)
    state = init(jax.random.key(5))
    after, played = move(None, state)
    going_on = ~np.asarray(played.done)
    np.testing.assert_array_equal(np.asarray(after.plies)[going_on], np.asarray(state.plies)[going_on] + 1)


def test_an_episode_of_any_length_is_explored_to_its_end():
    """Atari's have 27,000 steps. With the defaults of an experiment that learns a model."""
    tree = {"name": "t", "env": {"name": "gymnasium", "id": "CartPole-v1"}, "network": {"name": "muzero_mlp"}}
    found = explore(parse(tree, "test").actors, np.array([0, 1000, 27_000]))
    np.testing.assert_array_equal(found.temperature, [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(found.noise, [1.0, 1.0, 1.0])


@pytest.mark.parametrize(("age", "expected"), [(0, 0.75), (19, 0.75), (20, 0.0), (21, 0.0)])
def test_the_choice_is_greedy_after_the_temperature_plies(age, expected):
    config = ActorsConfig(temperature=0.75, temperature_plies=20)
    assert explore(config, np.array([age])).temperature == expected
