"""Searches against hand-made trees, golden results, and the laws every search must keep."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import SearchConfig
from podzero.envs import make_env
from podzero.search import make_search, network_evaluation, rules_model

ALGORITHMS = ("gumbel", "puct")


def uniform(params, key, states):
    """Knows nothing: flat logits, value zero."""
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
        return jax.vmap(lambda go, new, old: jax.tree.map(lambda a, b: jnp.where(go, a, b), new, old))(
            action >= 0, played, states
        ), None

    @jax.jit
    def run(actions):
        start = jax.vmap(env.init)(jnp.stack([jax.random.key(0)] * len(games)))
        return jax.lax.scan(ply, start, actions)[0]

    return run(actions)


WIN_AT_2 = [0, 3, 1, 4]
"""Tic-tac-toe: the mover holds 0 and 1 and wins at 2."""
MUST_BLOCK_2 = [0, 4, 1]
"""Tic-tac-toe: the mover must answer at 2."""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_win_in_one_is_played_and_valued(algorithm):
    env, search = search_for("tic_tac_toe", algorithm, 64)
    result = search(None, jax.random.key(1), play(env, [WIN_AT_2]), jnp.zeros(1))
    assert int(result.action[0]) == 2
    assert float(result.value[0]) > 0.2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_loss_in_one_is_averted(algorithm):
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
def test_rows_of_a_batch_do_not_know_of_one_another(algorithm):
    """The row with three legal actions searches alike beside an empty board and beside itself."""
    env, search = search_for("tic_tac_toe", algorithm, 32)
    narrow, empty = [0, 1, 2, 4, 3, 5], []
    mixed = search(None, jax.random.key(1), play(env, [narrow, empty]), jnp.zeros(2))
    alone = search(None, jax.random.key(1), play(env, [narrow, narrow]), jnp.zeros(2))
    # PUCT breaks ties at random, by keys that belong to the row's place: only the first row is compared.
    np.testing.assert_array_equal(mixed.visits[0], alone.visits[0])
    np.testing.assert_allclose(mixed.policy[0], alone.policy[0], rtol=1e-6)
    np.testing.assert_allclose(mixed.value[0], alone.value[0], rtol=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_temperature_zero_is_deterministic_and_one_explores(algorithm):
    env, search = search_for("connect_four", algorithm, 16)
    roots = play(env, [[]] * 32)
    calm = search(None, jax.random.key(1), roots, jnp.zeros(32))
    lively = search(None, jax.random.key(1), roots, jnp.ones(32))
    assert len(set(np.asarray(lively.action).tolist())) > 1
    if algorithm == "gumbel":
        assert len(set(np.asarray(calm.action).tolist())) == 1
    else:
        assert np.all(np.asarray(calm.action) == np.asarray(calm.visits).argmax(-1))


def test_golden_tree_of_gumbel_with_a_fixed_prior():
    """Sequential halving over 4 considered actions with 16 simulations, prior [3, 2, 1, 0, 0, ...], no noise.

    The schedule gives every considered action 2 visits, then the best two 4 more each, so that a value-free
    game ends with visits 6, 6, 2, 2 in the order of the prior.
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
    """A leaf that is good for its mover is bad for the one who moved there."""

    def optimist(params, key, states):
        batch = states.legal_action_mask.shape[0]
        return jnp.zeros((batch, 9)), jnp.full(batch, 0.5)

    env, search = search_for("tic_tac_toe", "puct", 1, optimist)
    result = search(None, jax.random.key(0), play(env, [[]]), jnp.zeros(1))
    # The root's own 0.5 and one child worth -0.5 to the root.
    np.testing.assert_allclose(result.value[0], 0.0, atol=1e-6)


def test_values_of_later_moves_are_discounted():
    """The same leaf, one move later, at a discount of 0.8: (0.5 - 0.8 * 0.5) / 2."""

    def optimist(params, key, states):
        batch = states.legal_action_mask.shape[0]
        return jnp.zeros((batch, 9)), jnp.full(batch, 0.5)

    env = make_env("tic_tac_toe")
    search = jax.jit(make_search(SearchConfig(algorithm="puct", simulations=1), rules_model(env, optimist, 0.8)))
    result = search(None, jax.random.key(0), play(env, [[]]), jnp.zeros(1))
    np.testing.assert_allclose(result.value[0], 0.05, atol=1e-6)


def test_network_evaluation_sees_what_the_mover_sees():
    env = make_env("connect_four")
    seen = []

    def apply(params, observation):
        seen.append(observation)
        return jnp.zeros((observation.shape[0], 7)), jnp.zeros(observation.shape[0])

    states = play(env, [[3], [3, 2]])
    network_evaluation(env, apply)(None, jax.random.key(0), states)
    np.testing.assert_array_equal(seen[0], jax.vmap(env.view)(states).observation)
