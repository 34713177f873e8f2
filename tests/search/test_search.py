"""Search results of small positions, golden trees, and laws that hold for every search."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest
from explorations import explorations, full

from podzero.config import SearchConfig
from podzero.core.types import Exploration
from podzero.envs import make_env
from podzero.search import make_search, network_evaluation, rules_model
from podzero.search.algorithms import with_noise

ALGORITHMS = ("gumbel", "puct")


def batch_of(states):
    return jax.tree.leaves(states)[0].shape[0]


def uniform(env):
    """Equal logits, value zero."""

    def evaluate(params, key, states):
        return jnp.zeros((batch_of(states), env.spec.num_actions)), jnp.zeros(batch_of(states))

    return evaluate


@cache
def search_for(game, algorithm, simulations=32, evaluate=None, **config):
    """A game and its compiled search, which tests with equal arguments share."""
    env = make_env(game)
    config = SearchConfig(algorithm=algorithm, simulations=simulations, **config)
    return env, jax.jit(make_search(config, rules_model(env, evaluate or uniform(env))))


@cache
def compiled(name):
    """The functions of a game that begin it and play a move, for one game."""
    env = make_env(name)
    return jax.jit(env.init), jax.jit(env.step)


def play(env, games):
    """States reached by lists of actions, batched."""
    init, step = compiled(env.spec.name)
    reached = []
    for game in games:
        state = init(jax.random.key(0))
        for action in game:
            state = step(state, np.int32(action))
        reached.append(jax.device_get(state))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *reached)


WIN_AT_2 = [0, 3, 1, 4]
"""Tic-tac-toe: the player to move holds 0 and 1 and wins at 2."""
MUST_BLOCK_2 = [0, 4, 1]
"""Tic-tac-toe: the player to move must block at 2."""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_winning_move_is_selected_and_valued(algorithm):
    env, search = search_for("tic_tac_toe", algorithm, 64)
    result = search(None, jax.random.key(1), play(env, [WIN_AT_2]), Exploration.none(1))
    assert int(result.action[0]) == 2


@pytest.mark.parametrize("root_value", ["action", "policy"])
def test_the_value_of_a_position_won_in_one_tends_to_one(root_value):
    """Sequential halving visits all actions, so their mean is far below one however long it searches."""
    position = [[0, 6, 1, 6, 2, 0]]  # connect four: the player to move wins in column 3
    values = []
    for simulations in (8, 128):
        env, search = search_for("connect_four", "gumbel", simulations, root_value=root_value)
        result = search(None, jax.random.key(1), play(env, position), Exploration.none(1))
        assert int(result.action[0]) == 3
        values.append(float(result.value[0]))
    assert values == sorted(values)
    assert values[-1] > 0.99
    env, search = search_for("connect_four", "gumbel", 32, root_value="mean")
    assert search(None, jax.random.key(1), play(env, position), Exploration.none(1)).value[0] < 0.6


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_threat_is_blocked(algorithm):
    env, search = search_for("tic_tac_toe", algorithm, 64)
    result = search(None, jax.random.key(1), play(env, [MUST_BLOCK_2]), Exploration.none(1))
    assert int(result.action[0]) == 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "game",
    ["tic_tac_toe", "othello", *(pytest.param(name, marks=pytest.mark.slow) for name in ("connect_four", "hex"))],
)
def test_policy_is_a_distribution_over_legal_actions(algorithm, game):
    env, search = search_for(game, algorithm, 8)
    roots = play(env, [[]] * 3)
    legal = np.asarray(jax.jit(jax.vmap(env.view))(roots).legal)
    result = search(None, jax.random.key(1), roots, full(3))
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
    mixed = search(None, jax.random.key(1), play(env, [narrow, empty]), Exploration.none(2))
    equal = search(None, jax.random.key(1), play(env, [narrow, narrow]), Exploration.none(2))
    # PUCT breaks ties at random with a key per row index, so only row 0 is comparable.
    np.testing.assert_array_equal(mixed.visits[0], equal.visits[0])
    np.testing.assert_allclose(mixed.policy[0], equal.policy[0], rtol=1e-6)
    np.testing.assert_allclose(mixed.value[0], equal.value[0], rtol=1e-6)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_temperature_zero_is_deterministic_and_one_explores(algorithm):
    env, search = search_for("connect_four", algorithm, 16, max_considered_actions=4)
    roots = play(env, [[]] * 32)
    greedy = search(None, jax.random.key(1), roots, Exploration.none(32))
    exploring = search(None, jax.random.key(1), roots, full(32))
    assert len(set(np.asarray(exploring.action).tolist())) > 1
    if algorithm == "gumbel":
        assert len(set(np.asarray(greedy.action).tolist())) == 1
    else:
        assert np.all(np.asarray(greedy.action) == np.asarray(greedy.visits).argmax(-1))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_root_explores_where_the_choice_is_greedy(algorithm):
    """Noise changes what is visited; the choice at temperature zero is the best of what was visited most."""
    env, search = search_for("connect_four", algorithm, 16, max_considered_actions=4)
    roots = play(env, [[]] * 32)
    result = search(None, jax.random.key(1), roots, explorations(np.ones(32), np.zeros(32)))
    assert len({tuple(visits) for visits in np.asarray(result.visits).tolist()}) > 1
    most = np.asarray(result.visits).max(axis=1)
    assert np.all(np.take_along_axis(np.asarray(result.visits), np.asarray(result.action)[:, None], 1)[:, 0] == most)
    again = search(None, jax.random.key(1), roots, full(32))
    np.testing.assert_array_equal(again.visits, result.visits)
    assert np.any(np.asarray(again.action) != np.asarray(result.action))


def test_the_choice_of_gumbel_at_temperature_one_is_that_of_mctx():
    env = make_env("connect_four")
    model, roots = rules_model(env, uniform(env)), play(env, [[], [3], [3, 3, 2]] * 16)
    search = jax.jit(make_search(SearchConfig(simulations=16), model))
    _, search_key = jax.random.split(jax.random.key(5))

    @jax.jit
    def bare(key, roots):
        root = model.root(None, jax.random.key(0), roots)
        return mctx.gumbel_muzero_policy(None, key, root, model.recurrent, 16, invalid_actions=~model.legal(roots))

    found = search(None, jax.random.key(5), roots, full(48))
    np.testing.assert_array_equal(found.action, bare(search_key, roots).action)


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
    """Sequential halving over 4 considered actions with 16 simulations, prior [3, 2, 1, 0, 0, ...], no noise.

    The schedule gives every considered action 2 visits, then the best two 4 more each. With values of zero the visits
    are therefore 6, 6, 2, 2 in the order of the prior.
    """

    def prior(params, key, states):
        batch = batch_of(states)
        return jnp.tile(jnp.array([3.0, 2.0, 1.0, 0.0, -9.0, -9.0, -9.0]), (batch, 1)), jnp.zeros(batch)

    env = make_env("connect_four")
    config = SearchConfig(simulations=16, max_considered_actions=4)
    search = jax.jit(make_search(config, rules_model(env, prior)))
    result = search(None, jax.random.key(0), play(env, [[]]), Exploration.none(1))
    np.testing.assert_array_equal(result.visits[0], [6, 6, 2, 2, 0, 0, 0])
    np.testing.assert_allclose(result.policy[0], jax.nn.softmax(jnp.array([3.0, 2, 1, 0, -9, -9, -9])), atol=1e-6)
    assert int(result.action[0]) == 0
    assert float(result.value[0]) == 0.0


def test_values_change_sign_between_the_players():
    """A value for the player to move at a child counts negative for the opponent, who moved there."""

    def optimist(params, key, states):
        batch = batch_of(states)
        return jnp.zeros((batch, 9)), jnp.full(batch, 0.5)

    env, search = search_for("tic_tac_toe", "puct", 1, optimist, root_value="mean")
    result = search(None, jax.random.key(0), play(env, [[]]), Exploration.none(1))
    # The mean of the root's own 0.5 and one child's -0.5.
    np.testing.assert_allclose(result.value[0], 0.0, atol=1e-6)


def test_values_of_later_moves_are_discounted():
    """As above, with a discount of 0.8: (0.5 - 0.8 * 0.5) / 2."""

    def optimist(params, key, states):
        batch = batch_of(states)
        return jnp.zeros((batch, 9)), jnp.full(batch, 0.5)

    env = make_env("tic_tac_toe")
    search = jax.jit(
        make_search(SearchConfig(algorithm="puct", simulations=1, root_value="mean"), rules_model(env, optimist, 0.8))
    )
    result = search(None, jax.random.key(0), play(env, [[]]), Exploration.none(1))
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


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_kept_nodes_are_the_tree_of_the_search(algorithm):
    """Visits of the root's children are those of its actions; each node's visits are its own and its children's."""
    env = make_env("tic_tac_toe")
    config = SearchConfig(algorithm=algorithm, simulations=24, tree="dense")
    search = jax.jit(make_search(config, rules_model(env, uniform(env)), keep_nodes=True))
    roots = play(env, [[0, 4], [0, 1, 3, 4]])
    result = search(None, jax.random.key(0), roots, Exploration.none(2))
    legal = np.asarray(jax.jit(jax.vmap(env.view))(roots).legal)
    for game in range(2):
        parent, action, visits, value, prior = (np.asarray(leaf[game]) for leaf in result.nodes)
        children = np.flatnonzero(parent == 0)
        assert {int(action[node]): int(visits[node]) for node in children} == {
            chosen: int(count) for chosen, count in enumerate(result.visits[game]) if count
        }
        added = np.flatnonzero((parent >= 0) & (visits > 0))
        below = np.bincount(parent[added], visits[added], minlength=len(parent))
        assert np.all(visits[added] >= 1 + below[added])
        assert visits[0] == 25
        assert value[children] == pytest.approx(np.asarray(result.qvalues[game])[action[children]], abs=1e-5)
        assert np.all(np.abs(value) <= 1)
        assert np.allclose(prior[children], 1 / legal[game].sum())
