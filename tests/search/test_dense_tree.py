"""Dense trees beside those of mctx: the same visits, and the same results up to rounding."""

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax
import pytest
from explorations import explorations
from hypothesis import given
from hypothesis import strategies as st
from mctx._src import seq_halving

from podzero.config import SearchConfig
from podzero.envs import make_env
from podzero.search import Model, make_search, rules_model
from podzero.search.selection import considered_visits

RULES = {
    "gumbel": {},
    "puct": {"algorithm": "puct"},
    "puct, value of the parent": {"algorithm": "puct", "first_play_urgency": "parent"},
}


def rough(env, seed):
    """An evaluation that differs from position to position without a pattern."""
    spec = env.spec
    size = int(np.prod(spec.observation_shape))
    weights = np.random.default_rng(seed).normal(size=(size, spec.num_actions + 1)).astype(np.float32)

    def evaluate(params, key, states):
        seen = jax.vmap(env.view)(states).observation.reshape(-1, size).astype(jnp.float32)
        found = jnp.sin(3.0 * seen @ weights + jnp.arange(spec.num_actions + 1))
        return 2.0 * found[:, :-1], 0.7 * found[:, -1]

    return evaluate


def random_positions(env, plies, seed):
    """A position after each number of random plies; games that end before stay at the position before."""

    def played(ply, states):
        legal = jax.vmap(env.view)(states).legal
        action = jax.random.categorical(jax.random.key(ply), jnp.where(legal, 0.0, -jnp.inf))
        after = jax.vmap(env.step)(states, action.astype(jnp.int32))
        goes_on = (ply < jnp.asarray(plies)) & ~jax.vmap(env.view)(after).done
        return jax.vmap(optax.tree.where)(goes_on, after, states)

    @jax.jit
    def run(keys):
        return jax.lax.fori_loop(0, max(plies), played, jax.vmap(env.init)(keys))

    return run(jax.random.split(jax.random.key(seed), len(plies)))


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


@pytest.mark.parametrize(
    ("game", "slots", "rule"),
    [
        ("tic_tac_toe", 9, "gumbel"),
        pytest.param("connect_four", None, "puct", marks=pytest.mark.slow),
        pytest.param("tic_tac_toe", 9, "puct", marks=pytest.mark.slow),
        pytest.param("connect_four", None, "gumbel", marks=pytest.mark.slow),
    ],
)
def test_a_dense_tree_finds_what_mctx_finds_in_games(game, slots, rule):
    """Also beyond the end of games, with illegal actions, and where slots hold actions."""
    env = make_env(game)
    roots = random_positions(env, [0, 1, 4, 5, 5, 6, 7, 2], seed=1)
    exploration = explorations(np.linspace(0, 1, 8), np.tile([0, 1], 4))
    config = RULES[rule] | {"simulations": 24, "slots": slots, "root_value": "policy"}
    assert_equal(*both(rules_model(env, rough(env, 2)), roots, exploration, **config))


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
    ("rule", "bounds", "q_scale"),
    [
        ("gumbel", None, "tree"),
        ("puct", (-3.0, 3.0), "node"),
        ("puct, value of the parent", None, "tree"),
        pytest.param("gumbel", (-3.0, 3.0), "node", marks=pytest.mark.slow),
        pytest.param("puct", None, "tree", marks=pytest.mark.slow),
        pytest.param("puct, value of the parent", (-3.0, 3.0), "node", marks=pytest.mark.slow),
    ],
)
def test_a_dense_tree_finds_what_mctx_finds_in_random_models(rule, bounds, q_scale):
    roots = jnp.arange(64, dtype=jnp.uint32) * 7919
    exploration = explorations(np.tile([0, 1], 32), np.tile([0, 0, 1, 1], 16))
    config = RULES[rule] | {"simulations": 33, "q_scale": q_scale, "max_considered_actions": 4}
    assert_equal(*both(random_model(bounds), roots, exploration, **config))


@given(st.integers(0, 20), st.integers(1, 200))
def test_sequential_halving_visits_as_mctx_does(actions, simulations):
    expected = seq_halving.get_sequence_of_considered_visits(actions, simulations)
    assert considered_visits(actions, simulations) == list(expected)


def test_of_more_legal_actions_than_slots_those_with_the_largest_prior_are_searched():
    """At the root by the noised prior, so that each action may be searched; the others keep the mixed value."""
    env = make_env("connect_four")

    def prior(params, key, states):
        batch = jax.tree.leaves(states)[0].shape[0]
        return jnp.tile(jnp.array([3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0]), (batch, 1)), jnp.zeros(batch)

    roots = jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(0), 2))
    search = make_search(SearchConfig(tree="dense", slots=3, simulations=16), rules_model(env, prior))
    result = jax.jit(search)(None, jax.random.key(1), roots, explorations([0, 0], [0, 0]))
    assert np.all((result.dropped > 17 * 3) & (result.dropped <= 17 * 4))
    assert np.all(np.asarray(result.visits)[:, 3:] == 0)
    assert np.all(np.asarray(result.visits)[:, :3] > 0)
    np.testing.assert_allclose(result.policy, np.tile(jax.nn.softmax(jnp.arange(3.0, -4.0, -1)), (2, 1)), atol=1e-5)
