"""Search over games on the host, through callbacks, gives the same results as over games in JAX, with any cache."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explorations import full

from podzero.config import SearchConfig, SimulatorConfig
from podzero.core.types import Exploration
from podzero.envs import HostEnv, make_env
from podzero.envs.open_spiel import OpenSpielGame
from podzero.search import make_search, rules_model

GAMES = ([], [4], [0, 3, 1, 4], [0, 4, 1], [0, 1, 2, 4, 3, 5], [8, 0, 4])
"""Moves of tic-tac-toe; among the positions are a win in one move and a threat that must be blocked."""


@pytest.fixture(autouse=True, scope="module")
def _quick_compilation():
    """Optimizing small programs that run once would take longer than running them."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@cache
def in_jax():
    return make_env("tic_tac_toe")


def hosted(cache_size=1000):
    return HostEnv(OpenSpielGame("tic_tac_toe", {}), "tic_tac_toe", max_plies=9, cache_size=cache_size)


def evaluate_cells(cells):
    """A made-up policy and value of boards `[B, 3, 3]`: 1 for the mover's cells, -1 for the opponent's."""
    weight = jnp.array([3.0, 1.0, 2.0, 1.0, 4.0, 1.0, 2.5, 1.0, 3.5])
    cells = cells.reshape(-1, 9)
    return weight * (1 + 0.1 * jnp.roll(cells, 1, axis=1)), jnp.tanh(cells @ weight / 10)


def evaluate_in_jax(params, key, states):
    board = jax.vmap(in_jax().view)(states).observation.astype(jnp.float32)
    return evaluate_cells(board[..., 0] - board[..., 1])


def evaluate_hosted(params, key, states):
    """OpenSpiel's planes are: empty, player 1, player 0. The adapter adds a fourth: the player to move."""
    board = states.view.observation
    sign = 1 - 2 * board[..., 3]
    return evaluate_cells(sign * (board[..., 2] - board[..., 1]))


def states_of_games(env):
    """States after the moves of GAMES, batched."""
    states, step = [], jax.jit(env.step)
    for game in GAMES:
        state = env.init(jax.random.key(0))
        for action in game:
            state = step(state, jnp.int32(action))
        states.append(state)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def search_games(env, evaluate, algorithm):
    config = SearchConfig(algorithm=algorithm, simulations=24)
    search = jax.jit(make_search(config, rules_model(env, evaluate)))
    return jax.device_get(search(None, jax.random.key(2), states_of_games(env), full(len(GAMES))))


@pytest.mark.parametrize("algorithm", ["gumbel", "puct"])
def test_search_over_the_host_game_equals_search_over_the_jax_game(algorithm):
    jax_result = search_games(in_jax(), evaluate_in_jax, algorithm)
    host_result = search_games(hosted(), evaluate_hosted, algorithm)
    np.testing.assert_array_equal(jax_result.action, host_result.action)
    np.testing.assert_array_equal(jax_result.visits, host_result.visits)
    np.testing.assert_allclose(jax_result.policy, host_result.policy, atol=1e-5)
    np.testing.assert_allclose(jax_result.value, host_result.value, atol=1e-5)


def test_the_size_of_the_cache_does_not_change_the_result(monkeypatch):
    """A small cache forgets positions, whose moves are then played again."""
    step, moves = OpenSpielGame.step, []
    monkeypatch.setattr(OpenSpielGame, "step", lambda game, action: moves.append(action) or step(game, action))
    large = search_games(hosted(), evaluate_hosted, "gumbel")
    with_large_cache = len(moves)
    small = search_games(hosted(cache_size=4), evaluate_hosted, "gumbel")
    jax.tree.map(np.testing.assert_array_equal, large, small)
    assert len(moves) > 3 * with_large_cache


def test_the_last_position_of_a_truncated_game_is_evaluated_and_that_of_a_decided_one_is_not():
    """With one simulation the chosen action's value is that of the next position for the opponent: here 0.5."""
    config = SimulatorConfig(name="open_spiel", id="tic_tac_toe")

    def optimist(params, key, states):
        return jnp.zeros((1, 9)), jnp.full(1, 0.5)

    for max_plies, expected in ((1, -0.5), (9, -0.5)):
        env = make_env(config.model_copy(update={"max_plies": max_plies}))
        search = jax.jit(make_search(SearchConfig(simulations=1, root_value="action"), rules_model(env, optimist)))
        roots = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 1))
        assert float(search(None, jax.random.key(0), roots, Exploration.none(1)).value[0]) == expected
    won = make_env(config)
    search = jax.jit(make_search(SearchConfig(simulations=9, root_value="action"), rules_model(won, optimist)))
    roots = jax.vmap(won.init)(jax.random.split(jax.random.key(0), 1))
    for action in (0, 3, 1, 4):
        roots = jax.vmap(won.step)(roots, jnp.array([action]))
    result = search(None, jax.random.key(0), roots, Exploration.none(1))
    assert (int(result.action[0]), float(result.value[0])) == (2, 1.0)


def test_single_player_search_avoids_a_negative_reward():
    """Cliff walking: stepping off the cliff costs a hundred times as much as another step."""
    env = make_env(SimulatorConfig(name="open_spiel", id="cliff_walking", reward_scale=0.005, discount=0.9))

    def uniform(params, key, states):
        return jnp.zeros((1, 4)), jnp.zeros(1)

    search = jax.jit(make_search(SearchConfig(simulations=24), rules_model(env, uniform, 0.9)))
    roots = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 1))
    result = search(None, jax.random.key(0), roots, Exploration.none(1))
    assert int(result.action[0]) != 0
    assert float(result.policy[0, 0]) < 0.2
