"""Search in games of chance: outcomes weigh by their probabilities, and draws to come are not foreseen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import ChanceGameConfig, OwnAlgorithmConfig, SearchConfig
from podzero.core.errors import ConfigError
from podzero.core.types import Exploration, View
from podzero.envs import GameOfChance, make_env
from podzero.search import make_search, rules_model

TREES = ("mctx", "dense")


class Draw:
    """Two players draw from urns in turn, `plies` times; the first draw is from either urn, the others from the second.

    Each urn holds three kinds of balls, which the drawer wins or loses.
    """

    outcomes = 3
    odds = np.array([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]], np.float32)
    balls = np.array([0.2, -0.4, 0.8], np.float32)

    def __init__(self, plies):
        self.max_plies = plies

    def init(self, key):
        # Plies, the urn that was chosen (or -1), player 0's reward.
        return jnp.array([0, -1, 0], jnp.float32)

    def step(self, state, action):
        over = state[0] >= self.max_plies
        chosen = jnp.stack([state[0], action.astype(jnp.float32), jnp.zeros_like(state[2])])
        return jnp.where(over, state.at[2].set(0), chosen)

    def chance(self, state):
        urn = state[1].astype(jnp.int32)
        return jnp.where(state[1] >= 0, jnp.asarray(self.odds)[urn], 0).astype(jnp.float32)

    def resolve(self, state, outcome):
        mine = jnp.asarray(self.balls)[outcome]
        return jnp.stack([state[0] + 1, jnp.full_like(state[1], -1), jnp.where(state[0] % 2 == 0, mine, -mine)])

    def view(self, state):
        return View(
            observation=state[:1],
            legal=jnp.stack([(state[0] == 0) | (state[0] >= self.max_plies), jnp.array(True)]),
            player=(state[0] % 2).astype(jnp.int32),
            rewards=jnp.stack([state[2], -state[2]]),
            done=state[0] >= self.max_plies,
            truncated=jnp.array(False),
        )


VALUES = Draw.odds @ Draw.balls
"""The mean of each urn."""


def uniform(env):
    """Uniform logits and the value 0 everywhere."""

    def evaluate(params, key, states):
        rows = jax.vmap(env.view)(states).player.shape[0]
        return jnp.zeros((rows, env.spec.num_actions)), jnp.zeros(rows)

    return evaluate


def searched(env, evaluate, roots, key=0, **config):
    search = make_search(SearchConfig(**config), rules_model(env, evaluate))
    rows = len(jax.tree.leaves(roots)[0])
    return jax.device_get(jax.jit(search)(None, jax.random.key(key), roots, Exploration.none(rows)))


def starts(env, count):
    return jax.vmap(env.init)(jax.random.split(jax.random.key(0), count))


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(("plies", "values"), [(1, VALUES), (2, VALUES - VALUES[1]), (3, VALUES)])
def test_the_values_of_actions_are_the_means_over_their_outcomes(tree, plies, values):
    """Rewards along afterstates are added with the signs of the players who get them; Gumbel visits both urns often."""
    env = GameOfChance(Draw(plies), "jax/Draw")
    found = searched(env, uniform(env), starts(env, 4), algorithm="gumbel", tree=tree, simulations=300)
    assert found.policy.shape == found.visits.shape == found.qvalues.shape == (4, 2)
    np.testing.assert_allclose(found.qvalues, np.tile(values, (4, 1)), atol=0.05)


@pytest.mark.parametrize(("name", "algorithm", "tree"), [("2048", "puct", "dense"), ("backgammon", "gumbel", "mctx")])
def test_what_the_game_will_draw_changes_nothing(name, algorithm, tree):
    env = make_env(ChanceGameConfig(name=name))
    roots = starts(env, 3)
    others = jax.vmap(env.redrawn)(roots, jax.random.split(jax.random.key(9), 3))
    one, other = (
        searched(env, rough(env), states, algorithm=algorithm, tree=tree, simulations=12) for states in (roots, others)
    )
    jax.tree.map(np.testing.assert_array_equal, one, other)


def rough(env):
    """An evaluation that differs from position to position without a pattern."""
    size = int(np.prod(env.spec.observation_shape))
    weights = np.random.default_rng(0).normal(size=(size, env.spec.num_actions + 1)).astype(np.float32)

    def evaluate(params, key, states):
        seen = jax.vmap(env.view)(states).observation.reshape(-1, size).astype(jnp.float32)
        found = jnp.sin(3.0 * seen @ weights)
        return 2.0 * found[:, :-1], 0.7 * found[:, -1]

    return evaluate


@pytest.mark.parametrize(("name", "algorithm"), [("2048", "puct"), ("backgammon", "gumbel")])
def test_a_dense_tree_finds_what_mctx_finds(name, algorithm):
    env = make_env(ChanceGameConfig(name=name))
    found = [
        searched(env, rough(env), starts(env, 4), algorithm=algorithm, tree=tree, simulations=20) for tree in TREES
    ]
    np.testing.assert_array_equal(found[0].visits, found[1].visits)
    np.testing.assert_allclose(found[0].policy, found[1].policy, atol=1e-5)
    np.testing.assert_allclose(found[0].value, found[1].value, atol=1e-5)


def test_an_evaluation_that_plays_on_does_not_foresee_either():
    """As rollouts do: the value is what the player would draw from the second urn."""
    env = GameOfChance(Draw(1), "jax/Draw")

    def evaluate(params, key, states):
        after = jax.vmap(env.view)(jax.vmap(env.step)(states, jnp.ones(len(states.key), jnp.int32)))
        return jnp.zeros((len(states.key), 2)), after.rewards[:, 0]

    drawn = jax.vmap(env.redrawn)(starts(env, 32), jax.random.split(jax.random.key(5), 32))
    values = [
        searched(env, evaluate, roots, algorithm="gumbel", simulations=2, root_value="network").value
        for roots in (starts(env, 32), drawn)
    ]
    assert len(set(values[0].tolist())) > 1
    np.testing.assert_array_equal(*values)


def test_a_limit_of_actions_and_an_own_search_are_refused():
    env = make_env(ChanceGameConfig(name="backgammon"))
    model = rules_model(env, rough(env))
    with pytest.raises(ConfigError, match=r"search\.slots"):
        make_search(SearchConfig(tree="dense", slots=8), model)
    with pytest.raises(ConfigError, match=r"search\.algorithm"):
        make_search(SearchConfig(algorithm=OwnAlgorithmConfig(name="mine.py:search")), model)
