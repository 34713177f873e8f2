"""Dense trees beside those of mctx: the same visits, and the same results up to rounding."""

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest
from explorations import explorations
from hypothesis import given
from hypothesis import strategies as st
from mctx._src import seq_halving
from toy_games import TAKEN, heaps, nim, rough

from podzero.config import SearchConfig
from podzero.search import LimitedState, Model, limited, make_search, rules_model
from podzero.search.selection import considered_visits

RULES = {
    "gumbel": {},
    "puct": {"algorithm": "puct"},
    "puct, value of the parent": {"algorithm": "puct", "first_play_urgency": "parent"},
}
TWO_STAGES = 16
"""So few simulations that the trees are enlarged once; 8 need no enlargement."""


def both(model, roots, exploration, **config):
    found = {}
    for tree in ("dense", "mctx"):
        if tree == "mctx":
            config = config | {"slots": None}
        search = make_search(SearchConfig(tree=tree, **config), model)
        found[tree] = jax.device_get(jax.jit(search)(None, jax.random.key(3), roots, exploration))
    return found["mctx"], found["dense"]


def assert_equal(expected, found):
    np.testing.assert_array_equal(found.visits, expected.visits)
    np.testing.assert_array_equal(found.action, expected.action)
    np.testing.assert_allclose(found.policy, expected.policy, atol=1e-5)
    np.testing.assert_allclose(found.value, expected.value, atol=1e-5)
    assert found.dropped is None or not found.dropped.any()


def test_a_dense_tree_finds_what_mctx_finds_in_a_game():
    """Also beyond the end of games, with illegal actions, and where slots hold all legal actions of each node.

    At the roots these are the last ones, since one or two stones may not be taken, and noise decides between them.
    """
    env = nim()
    exploration = explorations(np.linspace(0, 1, 8), np.tile([0, 1], 4))
    roots = LimitedState(heaps(5, 4, 5, 4, 5, 5, 4, 5), np.tile(np.arange(TAKEN) < 2, (8, 1)))
    model = limited(rules_model(env, rough(env, 2)))
    expected, found = both(model, roots, exploration, slots=3, simulations=TWO_STAGES, value_scale=0.001)
    # At the end of a game all five actions are legal, and two of them have no slot.
    assert_equal(expected, found._replace(dropped=None))


def test_only_tpus_get_the_layout_of_the_parameters_in_each_simulation():
    """Programs of other platforms, lowered without them, would copy the parameters there."""
    env = nim()

    def evaluate(params, key, states):
        logits, value = rough(env, 2)(None, key, states)
        return logits, value * params["factor"][0]

    search = make_search(SearchConfig(tree="dense", simulations=8), rules_model(env, evaluate))
    exploration = explorations(np.zeros(2), np.zeros(2))
    traced = jax.jit(search).trace({"factor": np.ones(2)}, jax.random.key(0), heaps(5, 4), exploration)
    for platform, held in (("tpu", True), ("cpu", False), ("cuda", False)):
        program = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("optimization_barrier" in program, "LayoutConstraint" in program) == (held, held)


ACTIONS = 5


def draws(state, count):
    """`[B, count]` numbers in [-1, 1) that depend on the state alone."""
    seeds = state[:, None] * jnp.uint32(2654435761) + jnp.arange(1, count + 1, dtype=jnp.uint32) * jnp.uint32(40503)
    seeds = (seeds ^ (seeds >> 15)) * jnp.uint32(2246822519)
    return (seeds ^ (seeds >> 13)).astype(jnp.float32) / 2.0**31 - 1


def random_model(bounds):
    """States are numbers; rewards, discounts of both signs and zero, logits and values are drawn from them."""

    def root(params, key, states):
        found = draws(states, ACTIONS + 1)
        return mctx.RootFnOutput(prior_logits=3 * found[:, 1:], value=found[:, 0], embedding=states)

    def recurrent(params, key, action, states):
        children = states * jnp.uint32(31) + action.astype(jnp.uint32) * jnp.uint32(977) + jnp.uint32(7)
        found = draws(children, ACTIONS + 3)
        discount = jnp.where(found[:, 1] > 0.8, 0.0, 0.9 * jnp.sign(found[:, 1]))
        output = mctx.RecurrentFnOutput(
            reward=found[:, 0], discount=discount, value=found[:, 2], prior_logits=3 * found[:, 3:]
        )
        return output, children

    def legal(states):
        return (draws(states + jnp.uint32(1), ACTIONS) > -0.5).at[:, 0].set(True)

    return Model(root, recurrent, legal, bounds)


@pytest.mark.parametrize(
    ("rule", "bounds", "q_scale", "simulations"),
    [
        ("gumbel", None, "tree", TWO_STAGES),
        ("puct", (-3.0, 3.0), "node", 8),
        ("puct, value of the parent", None, "tree", 8),
        pytest.param("gumbel", (-3.0, 3.0), "node", 33, marks=pytest.mark.slow),
        pytest.param("puct", None, "tree", 33, marks=pytest.mark.slow),
        pytest.param("puct, value of the parent", (-3.0, 3.0), "node", 33, marks=pytest.mark.slow),
    ],
)
def test_a_dense_tree_finds_what_mctx_finds_in_random_models(rule, bounds, q_scale, simulations):
    roots = jnp.arange(64, dtype=jnp.uint32) * 7919
    exploration = explorations(np.tile([0, 1], 32), np.tile([0, 0, 1, 1], 16))
    config = RULES[rule] | {"simulations": simulations, "q_scale": q_scale, "max_considered_actions": 4}
    assert_equal(*both(random_model(bounds), roots, exploration, **config))


@given(st.integers(0, 20), st.integers(1, 200))
def test_sequential_halving_visits_as_mctx_does(actions, simulations):
    expected = seq_halving.get_sequence_of_considered_visits(actions, simulations)
    assert considered_visits(actions, simulations) == list(expected)


def test_of_more_legal_actions_than_slots_those_with_the_largest_prior_are_searched():
    """At the root by the noised prior, so that each action may be searched; the others keep the mixed value."""
    logits = jnp.array([3.0, 2.0, 1.0, 0.0, -1.0])

    def prior(params, key, states):
        return jnp.tile(logits, (len(states), 1)), jnp.zeros(len(states))

    search = make_search(SearchConfig(tree="dense", slots=3, simulations=8), rules_model(nim(), prior))
    # Heaps so large that all five actions are legal in each of the nine nodes.
    result = jax.device_get(jax.jit(search)(None, jax.random.key(1), heaps(1000, 1000), explorations([0, 0], [0, 0])))
    np.testing.assert_array_equal(result.dropped, 9 * 2)
    assert np.all(result.visits[:, 3:] == 0)
    assert np.all(result.visits[:, :3] > 0)
    np.testing.assert_allclose(result.policy, np.tile(jax.nn.softmax(logits), (2, 1)), atol=1e-5)
