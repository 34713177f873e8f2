"""Trees that go on where they stopped, and keep the part below a move."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest
from explorations import explorations

from podzero.config import SearchConfig
from podzero.envs import make_env
from podzero.evaluation.growing import make_growing_search, subtree
from podzero.search import LimitedState, limited, make_search, rules_model
from podzero.search.models import ILLEGAL

ROOM = 64
CONSIDERED = 4


@cache
def model():
    """Tic-tac-toe with an evaluation that differs from position to position without a pattern."""
    env = make_env("tic_tac_toe")
    weights = np.random.default_rng(3).normal(size=(int(np.prod(env.spec.observation_shape)), 10)).astype(np.float32)

    def evaluate(params, key, states):
        seen = jax.vmap(env.view)(states).observation
        found = jnp.sin(3.0 * seen.reshape(len(seen), -1).astype(jnp.float32) @ weights + jnp.arange(10))
        return 2.0 * found[:, :-1], 0.7 * found[:, -1]

    return env, rules_model(env, evaluate)


def config(algorithm, simulations):
    return SearchConfig(algorithm=algorithm, simulations=simulations, max_considered_actions=CONSIDERED)


@cache
def growing(algorithm):
    return make_growing_search(config(algorithm, ROOM), model()[1])


@cache
def after(*moves):
    """The state after moves, with a batch axis."""
    env, _ = model()
    state = env.init(jax.random.key(0))
    for move in moves:
        state = jax.jit(env.step)(state, np.int32(move))
    return jax.tree.map(lambda leaf: leaf[None], state)


def root(*moves, forbidden=()):
    """The state after moves as root of a tree."""
    return LimitedState(after(*moves), np.isin(np.arange(9), forbidden)[None])


def grown(algorithm, *counts, forbidden=()):
    """A tree of the beginning, grown by some numbers of simulations one after another, and its result."""
    search = growing(algorithm)
    tree = search.begin(None, jax.random.key(1), root(forbidden=forbidden))
    for count in counts:
        tree, result = search.grow(None, jax.random.key(1), tree, count)
    return jax.device_get((tree, result))


def assert_lawful(tree, nodes):
    """Visits and values of each node are those of the samples below it; the other rows are free."""
    visits, parents, children = tree.node_visits[0], tree.parents[0], tree.children_index[0]
    assert visits[0] == nodes
    assert (visits > 0).tolist() == [True] * nodes + [False] * (len(visits) - nodes)
    assert np.all(children[nodes:] == -1)
    assert np.all(tree.children_visits[0, nodes:] == 0)
    assert parents[0] == -1
    for node in range(nodes):
        edges = np.flatnonzero(children[node] >= 0)
        below = children[node][edges]
        assert np.all(below > node)
        assert np.all(parents[below] == node)
        np.testing.assert_array_equal(tree.action_from_parent[0, below], edges)
        np.testing.assert_array_equal(tree.children_visits[0, node][edges], visits[below])
        assert tree.children_visits[0, node].sum() == visits[node] - 1
        values = tree.children_rewards[0, node] + tree.children_discounts[0, node] * tree.children_values[0, node]
        total = tree.raw_values[0, node] + np.sum(tree.children_visits[0, node] * values)
        np.testing.assert_allclose(tree.node_values[0, node], total / visits[node], atol=1e-5)
        np.testing.assert_allclose(tree.children_values[0, node][edges], tree.node_values[0, below], atol=1e-6)


def test_a_subtree_of_a_small_tree():
    """Below the root are nodes 1 (with 3 below it, and 5 below that) and 2 (with 4 below it); row 6 is free."""
    edges = {(0, 1): 1, (0, 0): 2, (1, 0): 3, (2, 1): 4, (3, 1): 5}
    rows = {name: np.zeros((1, 7, 2), np.float32) for name in ("values", "rewards", "discounts", "logits")}
    children, visits = np.full((1, 7, 2), -1, np.int32), np.zeros((1, 7, 2), np.int32)
    parents, actions = np.full((1, 7), -1, np.int32), np.full((1, 7), -1, np.int32)
    # For the player to move: 3 is worth (-0.4 - 0.6) / 2, and 1 is worth (0.2 + 2 * 0.5) / 3.
    raw = np.array([[0.0, 0.2, 0.1, -0.4, 0.3, 0.6, 0.0]], np.float32)
    mean = np.array([[-0.1, 0.4, -0.1, -0.5, 0.3, 0.6, 0.0]], np.float32)
    counts = np.array([[6, 3, 2, 2, 1, 1, 0]], np.int32)
    rows["logits"][0, :6, 0] = range(6)
    rows["logits"][0, 1, 1] = ILLEGAL
    for (parent, action), child in edges.items():
        parents[0, child], actions[0, child], children[0, parent, action] = parent, action, child
        rows["discounts"][0, parent, action], rows["values"][0, parent, action] = -1, mean[0, child]
        visits[0, parent, action] = counts[0, child]
    tree = mctx.Tree(
        node_visits=counts, raw_values=raw, node_values=mean, parents=parents, action_from_parent=actions,
        children_index=children, children_prior_logits=rows["logits"], children_visits=visits,
        children_rewards=rows["rewards"], children_discounts=rows["discounts"], children_values=rows["values"],
        embeddings=np.arange(7)[None], root_invalid_actions=np.zeros((1, 2), bool),
        extra_data=np.zeros((1, 2), np.int32),
    )  # fmt: skip
    kept = jax.device_get(jax.jit(subtree)(tree, 1))
    assert kept.node_visits[0].tolist() == [3, 2, 1, 0, 0, 0, 0]
    assert kept.parents[0].tolist() == [-1, 0, 1, -1, -1, -1, -1]
    assert kept.action_from_parent[0].tolist() == [-1, 0, 1, -1, -1, -1, -1]
    assert kept.children_index[0, :3].tolist() == [[1, -1], [-1, 2], [-1, -1]]
    assert kept.embeddings[0, :3].tolist() == [1, 3, 5]
    assert kept.root_invalid_actions.tolist() == [[False, True]]
    np.testing.assert_allclose(kept.node_values[0, :3], [0.4, -0.5, 0.6])
    np.testing.assert_allclose(kept.children_prior_logits[0, :3, 0], [1, 3, 5])
    assert_lawful(kept, 3)
    whole = jax.device_get(jax.jit(subtree)(tree, 0))
    jax.tree.map(np.testing.assert_array_equal, whole.replace(extra_data=0), tree.replace(extra_data=0))


@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_a_tree_keeps_the_statistics_below_a_move_and_goes_on(algorithm):
    tree, result = grown(algorithm, 40)
    assert_lawful(tree, 41)
    move = int(result.action[0])
    child = tree.children_index[0, 0, move]
    kept, found = jax.device_get(growing(algorithm).follow(tree, root(move)))
    assert found
    assert kept.node_visits[0, 0] == result.visits[0, move] == tree.node_visits[0, child]
    assert kept.node_values[0, 0] == tree.node_values[0, child]
    np.testing.assert_array_equal(kept.children_visits[0, 0], tree.children_visits[0, child])
    np.testing.assert_array_equal(kept.children_values[0, 0], tree.children_values[0, child])
    assert_lawful(kept, int(result.visits[0, move]))
    more, result = jax.device_get(growing(algorithm).grow(None, jax.random.key(2), kept, 20))
    assert_lawful(more, int(kept.node_visits[0, 0]) + 20)
    assert result.visits.sum() == more.node_visits[0, 0] - 1
    assert result.visits[0, move] == 0
    assert result.action[0] != move
    np.testing.assert_allclose(result.policy.sum(), 1, atol=1e-5)


def test_puct_in_two_parts_is_puct_in_one():
    tree, result = grown("puct", 10, 0, 25)
    assert_lawful(tree, 36)
    once, expected = grown("puct", 35)
    assert_lawful(once, 36)
    np.testing.assert_array_equal(result.visits, expected.visits)
    np.testing.assert_allclose(result.qvalues, expected.qvalues, atol=1e-5)
    search = jax.jit(make_search(config("puct", 35), model()[1]))
    usual = search(None, jax.random.key(1), after(), explorations([0], [0]))
    np.testing.assert_array_equal(result.visits, usual.visits)
    np.testing.assert_array_equal(result.action, usual.action)
    np.testing.assert_allclose(result.policy, expected.policy)
    np.testing.assert_allclose(result.value, usual.value, atol=1e-5)


def test_gumbel_halves_sequentially_again_and_again():
    simulations = CONSIDERED * 2  # as many as are considered, in each of two phases
    _, result = grown("gumbel", 3, simulations - 3)
    search = jax.jit(make_search(config("gumbel", simulations), model()[1]))
    usual = search(None, jax.random.key(1), after(), explorations([0], [0]))
    np.testing.assert_array_equal(result.visits, usual.visits)
    _, more = grown("gumbel", simulations, CONSIDERED)
    assert (more.visits - result.visits).max() == 1


def test_a_state_is_followed_only_if_it_is_in_the_tree():
    search = growing("puct")
    tree, result = grown("puct", 30)
    move = int(result.action[0])
    reply = int(np.argmax(tree.children_visits[0, tree.children_index[0, 0, move]]))
    kept, found = jax.device_get(search.follow(tree, root(move, reply)))
    assert found
    assert kept.node_visits[0, 0] >= 1
    for elsewhere in ((), (move,), (reply,)):
        assert not search.follow(kept, root(*elsewhere))[1]


@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_forbidden_actions_are_left_out_at_the_root_alone(algorithm):
    _, free = grown(algorithm, 60)
    forbidden = [int(free.action[0]), *np.flatnonzero(free.visits[0] == 0).tolist()]
    tree, result = grown(algorithm, 60, forbidden=forbidden)
    assert result.visits[0, forbidden].sum() == result.policy[0, forbidden].sum() == 0
    assert result.visits.sum() == 60
    assert int(result.action[0]) not in forbidden
    below = tree.children_visits[0, 1:]
    assert below[:, forbidden].sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_searches_whose_trees_do_not_grow_leave_out_forbidden_actions(algorithm):
    forbidden = [0, 4, 8]
    search = jax.jit(make_search(config(algorithm, 16), limited(model()[1])))
    usual = search(None, jax.random.key(1), root(forbidden=forbidden), explorations([0], [0]))
    assert usual.visits[0, forbidden].sum() == usual.policy[0, forbidden].sum() == 0
    assert usual.visits.sum() == 16


def test_a_tree_without_some_moves_does_not_serve_a_search_of_all():
    search = growing("puct")
    tree, result = grown("puct", 30, forbidden=[4])
    move = int(result.action[0])
    assert search.follow(tree, root(forbidden=[4]))[1]
    assert search.follow(tree, root(move))[1]
    for other in (root(), root(forbidden=[3, 4]), root(move, forbidden=[4])):
        assert not search.follow(tree, other)[1]


def test_trees_without_one_value_and_certain_moves_do_not_grow():
    plain = model()[1]
    for other in (plain._replace(chance=lambda states: states), plain._replace(turn=lambda states: states)):
        assert make_growing_search(config("puct", 4), other) is None
