"""Search results of small positions, golden trees, and laws that hold for every search."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest
from explorations import explorations, full
from toy_games import TAKEN, heaps, nim, uniform

from podzero.config import SearchConfig
from podzero.core.types import Exploration
from podzero.envs import make_env
from podzero.search import make_search, network_evaluation, rules_model
from podzero.search.algorithms import with_noise

ALGORITHMS = ("gumbel", "puct")
ROWS = 32
"""Games of a batch: tests with equally many share a compiled program."""
WIN, BLOCK, WIDE = 3, 7, 25
"""Heaps of Nim: taking all three stones wins; of seven only one may be taken, since the opponent then faces six, which
lose; and one so large that nothing is known about it.
"""


@cache
def search_for(algorithm, simulations=64, evaluate=None, discount=1.0, **config):
    """A compiled search of Nim, whose results have nodes."""
    env = nim()
    config = SearchConfig(algorithm=algorithm, simulations=simulations, **config)
    return jax.jit(make_search(config, rules_model(env, evaluate or uniform(env), discount), keep_nodes=True))


def searched(algorithm, stones, exploration=None, key=1, **config):
    """The result for a batch of heaps, on the host."""
    exploration = exploration or Exploration.none(len(stones))
    return jax.device_get(search_for(algorithm, **config)(None, jax.random.key(key), heaps(*stones), exploration))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_win_is_taken_a_threat_is_blocked_and_the_policy_is_legal(algorithm):
    stones = [WIN, BLOCK, 1, 2] * (ROWS // 4)
    result = searched(algorithm, stones, explorations(np.zeros(ROWS), np.zeros(ROWS)))
    np.testing.assert_array_equal(result.action, [WIN - 1, 0, 0, 1] * (ROWS // 4))
    noisy = searched(algorithm, stones, full(ROWS))
    legal = np.arange(TAKEN) < np.array(stones)[:, None]
    for found in (result, noisy):
        np.testing.assert_allclose(found.policy.sum(-1), 1.0, rtol=1e-5)
        assert np.all(found.policy[~legal] == 0.0)
        assert np.all(legal[np.arange(ROWS), found.action])
        assert np.all(found.visits.sum(-1) == 64)
    assert (result.policy.dtype, result.action.dtype) == (jnp.float32, jnp.int32)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("game", ["tic_tac_toe", "othello", "connect_four", "hex"])
def test_the_policy_is_legal_in_games(algorithm, game):
    env = make_env(game)
    search = jax.jit(make_search(SearchConfig(algorithm=algorithm, simulations=8), rules_model(env, uniform(env))))
    roots = jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(0), 3))
    result, legal = search(None, jax.random.key(1), roots, full(3)), np.asarray(jax.vmap(env.view)(roots).legal)
    np.testing.assert_allclose(result.policy.sum(-1), 1.0, rtol=1e-5)
    assert np.all(np.asarray(result.policy)[~legal] == 0.0)
    assert np.all(legal[np.arange(3), result.action])


def test_the_value_of_a_position_won_in_one_tends_to_one():
    """Sequential halving visits all actions, so their mean is far below one however long it searches."""
    short, long = (searched("gumbel", [WIN] * ROWS, simulations=simulations) for simulations in (4, 64))
    assert short.value[0] < long.value[0]
    assert long.value[0] > 0.99
    visits, qvalues = long.visits[0], long.qvalues[0]
    assert (visits @ np.where(visits > 0, qvalues, 0)) / (1 + visits.sum()) < 0.6


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rows_of_a_batch_are_independent(algorithm):
    """A row with two legal actions gives the same result beside a large heap as beside a copy of itself."""
    mixed = searched(algorithm, [2] + [WIDE] * (ROWS - 1))
    equal = searched(algorithm, [2] * ROWS)
    # PUCT breaks ties at random with a key per row index, so only row 0 is comparable.
    np.testing.assert_array_equal(mixed.visits[0], equal.visits[0])
    np.testing.assert_allclose(mixed.policy[0], equal.policy[0], rtol=1e-6)
    np.testing.assert_allclose(mixed.value[0], equal.value[0], rtol=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_temperature_zero_is_deterministic_and_one_explores(algorithm):
    greedy = searched(algorithm, [WIDE] * ROWS)
    exploring = searched(algorithm, [WIDE] * ROWS, full(ROWS))
    assert len(set(exploring.action.tolist())) > 1
    if algorithm == "gumbel":
        assert len(set(greedy.action.tolist())) == 1
    else:
        assert np.all(greedy.action == greedy.visits.argmax(-1))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_root_explores_where_the_choice_is_greedy(algorithm):
    """Noise changes what is visited; the choice at temperature zero is the best of what was visited most."""
    result = searched(algorithm, [WIDE] * ROWS, explorations(np.ones(ROWS), np.zeros(ROWS)))
    assert len({tuple(visits) for visits in result.visits.tolist()}) > 1
    chosen = np.take_along_axis(result.visits, result.action[:, None], 1)[:, 0]
    assert np.all(chosen == result.visits.max(axis=1))
    again = searched(algorithm, [WIDE] * ROWS, full(ROWS))
    np.testing.assert_array_equal(again.visits, result.visits)
    assert np.any(again.action != result.action)


def test_the_choice_of_gumbel_at_temperature_one_is_that_of_mctx():
    env = nim()
    model, stones = rules_model(env, uniform(env)), [WIDE, 2, 5, 13] * (ROWS // 4)
    _, search_key = jax.random.split(jax.random.key(5))

    @jax.jit
    def bare(key, roots):
        root = model.root(None, jax.random.key(0), roots)
        return mctx.gumbel_muzero_policy(None, key, root, model.recurrent, 64, invalid_actions=~model.legal(roots))

    found = searched("gumbel", stones, full(ROWS), key=5)
    np.testing.assert_array_equal(found.action, bare(search_key, heaps(*stones)).action)


def test_a_quarter_of_the_prior_is_noise_however_few_actions_are_legal():
    """Of 4,672 actions 30 are legal, as in chess. mctx's own noise over all actions left 0.2% of the prior."""
    legal = np.zeros((64, 4672), bool)
    legal[:, 100:130] = True
    logits = np.where(legal, 0.0, 3.0).astype(np.float32)
    weight = np.full(64, 0.25, np.float32)
    mixed = np.exp(with_noise(jax.random.key(0), logits, jnp.asarray(legal), SearchConfig(), weight))
    assert mixed[~legal].max() < 1e-30
    np.testing.assert_allclose(mixed.sum(axis=1), 1.0, rtol=1e-5)
    noise = mixed[:, 100:130] - 0.75 / 30
    np.testing.assert_allclose(noise.sum(axis=1), 0.25, rtol=1e-4)
    assert noise.min() >= -1e-6
    # A Dirichlet distribution with a total concentration of 10 over 30: variance (1/30) (29/30) / 11.
    np.testing.assert_allclose((noise / 0.25).std(), np.sqrt(29 / 900 / 11), rtol=0.1)


def test_golden_tree_of_gumbel_with_a_fixed_prior():
    """Sequential halving over 4 considered actions with 16 simulations, prior [3, 2, 1, 0, -9], no noise.

    The schedule gives every considered action 2 visits, then the best two 4 more each. With values of zero the visits
    are therefore 6, 6, 2, 2 in the order of the prior.
    """
    logits = jnp.array([3.0, 2.0, 1.0, 0.0, -9.0])

    def prior(params, key, states):
        return jnp.tile(logits, (len(states), 1)), jnp.zeros(len(states))

    # So large a heap that no simulation reaches its end.
    result = searched("gumbel", [10_000], simulations=16, evaluate=prior, max_considered_actions=4)
    np.testing.assert_array_equal(result.visits[0], [6, 6, 2, 2, 0])
    np.testing.assert_allclose(result.policy[0], jax.nn.softmax(logits), atol=1e-6)
    assert (int(result.action[0]), float(result.value[0])) == (0, 0.0)


def test_values_change_sign_between_the_players_and_are_discounted():
    """A value for the player to move at a child counts negative for the opponent, who moved there: with a discount of
    0.8 one simulation gives the mean of the root's own 0.5 and of -0.8 * 0.5.
    """

    def optimist(params, key, states):
        return jnp.zeros((len(states), TAKEN)), jnp.full(len(states), 0.5)

    result = searched("puct", [WIDE], simulations=1, evaluate=optimist, discount=0.8, root_value="mean")
    np.testing.assert_allclose(result.value[0], 0.05, atol=1e-6)


def test_network_evaluation_passes_the_observations_to_the_network():
    env, seen = nim(), []

    def apply(params, observation):
        seen.append(observation)
        return jnp.zeros((observation.shape[0], TAKEN)), jnp.zeros(observation.shape[0])

    network_evaluation(env, apply)(None, jax.random.key(0), heaps(4, 9))
    np.testing.assert_array_equal(seen[0], [[4, 0], [9, 0]])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_kept_nodes_are_the_tree_of_the_search(algorithm):
    """Visits of the root's children are those of its actions; each node's visits are its own and its children's."""
    stones = [4, BLOCK, WIDE, 12] * (ROWS // 4)
    result = searched(algorithm, stones)
    for game in range(4):
        parent, action, visits, value, prior = (leaf[game] for leaf in result.nodes)
        children = np.flatnonzero(parent == 0)
        assert {int(action[node]): int(visits[node]) for node in children} == {
            chosen: int(count) for chosen, count in enumerate(result.visits[game]) if count
        }
        added = np.flatnonzero((parent >= 0) & (visits > 0))
        below = np.bincount(parent[added], visits[added], minlength=len(parent))
        assert np.all(visits[added] >= 1 + below[added])
        assert visits[0] == 65
        assert value[children] == pytest.approx(result.qvalues[game][action[children]], abs=1e-5)
        assert np.all(np.abs(value) <= 1)
        assert np.allclose(prior[children], 1 / min(stones[game], TAKEN))
