"""Search through callbacks: the same search as over the rules in JAX, whatever the cache holds."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import SearchConfig, SimulatorConfig
from podzero.envs import HostEnv, make_env
from podzero.envs.open_spiel import OpenSpielGame
from podzero.search import make_search, rules_model

GAMES = ([], [4], [0, 3, 1, 4], [0, 4, 1], [0, 1, 2, 4, 3, 5], [8, 0, 4])
"""Tic-tac-toe: among them a win in one, and a loss in one that can be averted."""


@pytest.fixture(autouse=True, scope="module")
def _quick_compilation():
    """Small programs that run once: most of their time would be spent on making them fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@cache
def in_jax():
    return make_env("tic_tac_toe")


def hosted(kept=1000):
    return HostEnv(OpenSpielGame("tic_tac_toe", {}), "tic_tac_toe", max_plies=9, kept=kept)


def by_the_cells(mine):
    """Judges by cells alone: a hand-made policy and value of the mover's `[B, 3, 3]` cells less the other's."""
    worth = jnp.array([3.0, 1.0, 2.0, 1.0, 4.0, 1.0, 2.5, 1.0, 3.5])
    cells = mine.reshape(-1, 9)
    return worth * (1 + 0.1 * jnp.roll(cells, 1, axis=1)), jnp.tanh(cells @ worth / 10)


def evaluate_in_jax(params, key, states):
    board = jax.vmap(in_jax().view)(states).observation.astype(jnp.float32)
    return by_the_cells(board[..., 0] - board[..., 1])


def evaluate_hosted(params, key, states):
    """OpenSpiel's planes are empty, player 1, player 0; the adapter's fourth is who moves."""
    board = states.view.observation
    sign = 1 - 2 * board[..., 3]
    return by_the_cells(sign * (board[..., 2] - board[..., 1]))


def reached(env):
    """States after the moves of GAMES, batched."""
    states, step = [], jax.jit(env.step)
    for game in GAMES:
        state = env.init(jax.random.key(0))
        for action in game:
            state = step(state, jnp.int32(action))
        states.append(state)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def searched(env, evaluate, algorithm, temperature=1.0):
    config = SearchConfig(algorithm=algorithm, simulations=24)
    search = jax.jit(make_search(config, rules_model(env, evaluate)))
    return jax.device_get(search(None, jax.random.key(2), reached(env), jnp.full(len(GAMES), temperature)))


@pytest.mark.parametrize("algorithm", ["gumbel", "puct"])
def test_the_same_moves_as_over_the_rules_in_jax(algorithm):
    ours = searched(in_jax(), evaluate_in_jax, algorithm)
    theirs = searched(hosted(), evaluate_hosted, algorithm)
    np.testing.assert_array_equal(ours.action, theirs.action)
    np.testing.assert_array_equal(ours.visits, theirs.visits)
    np.testing.assert_allclose(ours.policy, theirs.policy, atol=1e-5)
    np.testing.assert_allclose(ours.value, theirs.value, atol=1e-5)


def test_a_tiny_cache_changes_nothing():
    large, small = hosted(), hosted(kept=4)
    jax.tree.map(
        np.testing.assert_array_equal,
        searched(large, evaluate_hosted, "gumbel"),
        searched(small, evaluate_hosted, "gumbel"),
    )
    assert len(small._held) == 4
    assert len(large._held) > 100


def test_one_player_is_led_to_the_reward():
    """Cliff walking: 24 simulations see that stepping off the cliff at once costs a hundred times a step."""
    env = make_env(SimulatorConfig(name="open_spiel", id="cliff_walking", reward_scale=0.005, discount=0.9))

    def blind(params, key, states):
        return jnp.zeros((1, 4)), jnp.zeros(1)

    search = jax.jit(make_search(SearchConfig(simulations=24), rules_model(env, blind, 0.9)))
    result = search(None, jax.random.key(0), jax.vmap(env.init)(jax.random.split(jax.random.key(0), 1)), jnp.zeros(1))
    assert int(result.action[0]) != 0
    assert float(result.policy[0, 0]) < 0.2
