"""Search results of small positions, golden trees, and laws that hold for every search."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from podzero.config import SearchConfig
from podzero.envs import make_env
from podzero.search import make_search, network_evaluation, rules_model

ALGORITHMS = ("gumbel", "puct")


def uniform(params, key, states):
    """Equal logits, value zero."""
    batch = states.legal_action_mask.shape[0]
    return jnp.zeros((batch, states.legal_action_mask.shape[1])), jnp.zeros(batch)


def search_for(game, algorithm, simulations=32, evaluate=uniform):
    env = make_env(game)
    config = SearchConfig(algorithm=algorithm, simulations=simulations)
    return env, jax.jit(make_search(config, rules_model(env, evaluate)))


def play(env, games):
    """States reached by lists of actions, batched."""
    longest = max(map(len, games))
    actions = np.full((longest, len(games)), -1, np.int32)
    for column, game in enumerate(games):
        actions[: len(game), column] = game

    def ply(states, action):
        played = jax.vmap(env.step)(states, jnp.maximum(action, 0))
        return jax.vmap(optax.tree.where)(action >= 0, played, states), None

    @jax.jit
    def run(actions):
        start = jax.vmap(env.init)(jnp.stack([jax.random.key(0)] * len(games)))
        return jax.lax.scan(ply, start, actions)[0]

    return run(actions)


WIN_AT_2 = [0, 3, 1, 4]
"""Tic-tac-toe: the player to move holds 0 and 1 and wins at 2."""
MUST_BLOCK_2 = [0, 4, 1]
"""Tic-tac-toe: the player to move must block at 2."""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_winning_move_is_selected_and_valued(algorithm):
    env, search = search_for("tic_tac_toe", algorithm, 64)
    result = search(None, jax.random.key(1), play(env, [WIN_AT_2]), jnp.zeros(1))
    assert int(result.action[0]) == 2
    assert float(result.value[0]) > 0.2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_threat_is_blocked(algorithm):
    env, search = search_for("tic_tac_toe", algorithm, 128)
    result = search(None, jax.random.key(1), play(env, [MUST_BLOCK_2]), jnp.zeros(1))
    assert int(result.action[0]) == 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "game",
    ["tic_tac_toe", "othello", *(pytest.param(name, marks=pytest.mark.slow) for name in ("connect_four", "hex"))],
)
def test_policy_is_a_distribution_over_legal_actions(algorithm, game):
    env, search = search_for(game, algorithm, 8)
    roots = jax.vmap(env.init)(jax.random.split(jax.random.key(0), 3))
    legal = np.asarray(jax.vmap(env.view)(roots).legal)
    result = search(None, jax.random.key(1), roots, jnp.ones(3))
    np.testing.assert_allclose(result.policy.sum(-1), 1.0, rtol=1e-5)
    assert np.all(np.asarray(result.policy)[~legal] == 0.0)
    assert np.all(legal[np.arange(3), result.action])
    assert np.all(np.asarray(result.visits).sum(-1) == 8)
    assert result.policy.dtype == jnp.float32
    assert result.action.dtype == jnp.int32


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rows_of_a_batch_are_independent(algorithm):
    """A row with three legal actions gives the same result beside an empty board as beside a copy of itself."""
    env, search = search_for("tic_tac_toe", algorithm, 32)
    narrow, empty = [0, 1, 2, 4, 3, 5], []
    mixed = search(None, jax.random.key(1), play(env, [narrow, empty]), jnp.zeros(2))
    equal = search(None, jax.random.key(1), play(env, [narrow, narrow]), jnp.zeros(2))
    # PUCT breaks ties at random with a key per row index, so only row 0 is comparable.
    np.testing.assert_array_equal(mixed.visits[0], equal.visits[0])
    np.testing.assert_allclose(mixed.policy[0], equal.policy[0], rtol=1e-6)
    np.testing.assert_allclose(mixed.value[0], equal.value[0], rtol=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_temperature_zero_is_deterministic_and_one_explores(algorithm):
    env, search = search_for("connect_four", algorithm, 16)
    roots = play(env, [[]] * 32)
    greedy = search(None, jax.random.key(1), roots, jnp.zeros(32))
    exploring = search(None, jax.random.key(1), roots, jnp.ones(32))
    assert len(set(np.asarray(exploring.action).tolist())) > 1
    if algorithm == "gumbel":
        assert len(set(np.asarray(greedy.action).tolist())) == 1
    else:
        assert np.all(np.asarray(greedy.action) == np.asarray(greedy.visits).argmax(-1))


def test_golden_tree_of_gumbel_with_a_fixed_prior():
    """Sequential halving over 4 considered actions with 16 simulations, prior [3, 2, 1, 0, 0, ...], no noise.

    The schedule gives every considered action 2 visits, then the best two 4 more each. With values of zero the visits
    are therefore 6, 6, 2, 2 in the order of the prior.
    """

    def prior(params, key, states):
        batch = states.legal_action_mask.shape[0]
        return jnp.tile(jnp.array([3.0, 2.0, 1.0, 0.0, -9.0, -9.0, -9.0]), (batch, 1)), jnp.zeros(batch)

    env = make_env("connect_four")
    config = SearchConfig(simulations=16, max_considered_actions=4)
    search = jax.jit(make_search(config, rules_model(env, prior)))
    result = search(None, jax.random.key(0), play(env, [[]]), jnp.zeros(1))
    np.testing.assert_array_equal(result.visits[0], [6, 6, 2, 2, 0, 0, 0])
    np.testing.assert_allclose(result.policy[0], jax.nn.softmax(jnp.array([3.0, 2, 1, 0, -9, -9, -9])), atol=1e-6)
    assert int(result.action[0]) == 0
    assert float(result.value[0]) == 0.0


def test_values_change_sign_between_the_players():
    """A value for the player to move at a child counts negative for the opponent, who moved there."""

    def optimist(params, key, states):
        batch = states.legal_action_mask.shape[0]
        return jnp.zeros((batch, 9)), jnp.full(batch, 0.5)

    env, search = search_for("tic_tac_toe", "puct", 1, optimist)
    result = search(None, jax.random.key(0), play(env, [[]]), jnp.zeros(1))
    # The mean of the root's own 0.5 and one child's -0.5.
    np.testing.assert_allclose(result.value[0], 0.0, atol=1e-6)


def test_values_of_later_moves_are_discounted():
    """As above, with a discount of 0.8: (0.5 - 0.8 * 0.5) / 2."""

    def optimist(params, key, states):
        batch = states.legal_action_mask.shape[0]
        return jnp.zeros((batch, 9)), jnp.full(batch, 0.5)

    env = make_env("tic_tac_toe")
    search = jax.jit(make_search(SearchConfig(algorithm="puct", simulations=1), rules_model(env, optimist, 0.8)))
    result = search(None, jax.random.key(0), play(env, [[]]), jnp.zeros(1))
    np.testing.assert_allclose(result.value[0], 0.05, atol=1e-6)


def test_network_evaluation_passes_the_observations_to_the_network():
    env = make_env("connect_four")
    seen = []

    def apply(params, observation):
        seen.append(observation)
        return jnp.zeros((observation.shape[0], 7)), jnp.zeros(observation.shape[0])

    states = play(env, [[3], [3, 2]])
    network_evaluation(env, apply)(None, jax.random.key(0), states)
    np.testing.assert_array_equal(seen[0], jax.vmap(env.view)(states).observation)
