"""Search in games of chance: outcomes weigh by their probabilities, and draws to come are not foreseen."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_games import rough, uniform

from podzero.config import ChanceGameConfig, OwnAlgorithmConfig, SearchConfig
from podzero.core.errors import ConfigError
from podzero.core.types import Exploration, View
from podzero.envs import GameOfChance, make_env
from podzero.search import dense_tree, make_search, rules_model

TREES = ("mctx", "dense")


class Draw:
    """Two players draw from urns in turn, a few times; the first draw is from either urn, the others from the second.

    Each urn holds three kinds of balls, which the drawer wins or loses. Further actions are never legal. A state is the
    plies, the urn that was chosen (or -1), player 0's reward, and the plies of the whole game.
    """

    outcomes = 3
    max_plies = 3
    odds = np.array([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]], np.float32)
    balls = np.array([0.2, -0.4, 0.8], np.float32)

    def __init__(self, actions=2):
        self.actions = actions

    def init(self, key):
        return jnp.array([0, -1, 0, 3], jnp.float32)

    def step(self, state, action):
        chosen = jnp.stack([state[0], action.astype(jnp.float32), jnp.zeros_like(state[2]), state[3]])
        return jnp.where(state[0] >= state[3], state.at[2].set(0), chosen)

    def chance(self, state):
        urn = state[1].astype(jnp.int32)
        return jnp.where(state[1] >= 0, jnp.asarray(self.odds)[urn], 0).astype(jnp.float32)

    def resolve(self, state, outcome):
        mine = jnp.asarray(self.balls)[outcome]
        reward = jnp.where(state[0] % 2 == 0, mine, -mine)
        return jnp.stack([state[0] + 1, jnp.full_like(state[1], -1), reward, state[3]])

    def view(self, state):
        done = state[0] >= state[3]
        action = jnp.arange(self.actions)
        return View(
            observation=state[:1],
            legal=((action == 0) & (state[0] == 0)) | (action == 1) | done,
            player=(state[0] % 2).astype(jnp.int32),
            rewards=jnp.stack([state[2], -state[2]]),
            done=done,
            truncated=jnp.array(False),
        )


FIRST, SECOND = Draw.odds @ Draw.balls
"""The mean of each urn."""


@cache
def search_for(env, evaluate, **config):
    """A compiled search, which tests with equal arguments share."""
    return jax.jit(make_search(SearchConfig(**config), rules_model(env, evaluate)))


def searched(env, evaluate, roots, **config):
    rows = len(jax.tree.leaves(roots)[0])
    return jax.device_get(search_for(env, evaluate, **config)(None, jax.random.key(0), roots, Exploration.none(rows)))


def starts(env, count):
    return jax.vmap(env.init)(jax.random.split(jax.random.key(0), count))


def redrawn(env, roots):
    """The same positions, in which chance will decide otherwise."""
    return jax.vmap(env.redrawn)(roots, jax.random.split(jax.random.key(9), len(roots.key)))


@pytest.mark.parametrize("tree", TREES)
def test_the_values_of_actions_are_the_means_over_their_outcomes(tree, monkeypatch):
    """Rewards along afterstates are added with the signs of the players who get them; Gumbel visits both urns often."""
    # The whole size from the start: one loop however many simulations.
    monkeypatch.setattr(dense_tree, "STAGES", 1)
    env = GameOfChance(Draw(), "jax/Draw")
    roots = starts(env, 3)
    # Games of one, two and three plies, of which the opponent has the second.
    roots = roots._replace(game=roots.game.at[:, 3].set(jnp.array([1, 2, 3])))
    found = searched(env, uniform(env), roots, algorithm="gumbel", tree=tree, simulations=300)
    assert found.policy.shape == found.visits.shape == found.qvalues.shape == (3, 2)
    expected = np.array([[FIRST, SECOND], [FIRST - SECOND, 0], [FIRST, SECOND]])
    np.testing.assert_allclose(found.qvalues, expected, atol=0.05)


GAMES = {
    # More outcomes than actions, and more actions than outcomes: edges are as many as the larger number.
    "puct": GameOfChance(Draw(), "jax/Draw"),
    "gumbel": GameOfChance(Draw(actions=5), "jax/Draw"),
}
EVALUATIONS = {algorithm: rough(env) for algorithm, env in GAMES.items()}


@pytest.mark.parametrize("algorithm", GAMES)
def test_a_dense_tree_finds_what_mctx_finds_and_what_the_game_will_draw_changes_nothing(algorithm):
    env, evaluate = GAMES[algorithm], EVALUATIONS[algorithm]
    roots = starts(env, 4)
    found = [searched(env, evaluate, roots, algorithm=algorithm, tree=tree, simulations=8) for tree in TREES]
    assert_alike(*found)
    for tree, expected in zip(TREES, found, strict=True):
        again = searched(env, evaluate, redrawn(env, roots), algorithm=algorithm, tree=tree, simulations=8)
        jax.tree.map(np.testing.assert_array_equal, again, expected)


def assert_alike(one, other):
    np.testing.assert_array_equal(one.visits, other.visits)
    np.testing.assert_allclose(one.policy, other.policy, atol=1e-5)
    np.testing.assert_allclose(one.value, other.value, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "algorithm"), [("2048", "puct"), ("backgammon", "gumbel")])
def test_a_dense_tree_finds_what_mctx_finds_in_games(name, algorithm):
    env = make_env(ChanceGameConfig(name=name))
    evaluate, roots = rough(env), starts(env, 4)
    assert_alike(*(searched(env, evaluate, roots, algorithm=algorithm, tree=tree, simulations=20) for tree in TREES))


def test_an_evaluation_that_plays_on_does_not_foresee_either():
    """As rollouts do: the value is what the player would draw from the second urn."""
    env = GameOfChance(Draw(), "jax/Draw")

    def evaluate(params, key, states):
        after = jax.vmap(env.view)(jax.vmap(env.step)(states, jnp.ones(len(states.key), jnp.int32)))
        return jnp.zeros((len(states.key), 2)), after.rewards[:, 0]

    roots = starts(env, 32)
    values = [
        searched(env, evaluate, states, algorithm="gumbel", simulations=2, root_value="network").value
        for states in (roots, redrawn(env, roots))
    ]
    assert len(set(values[0].tolist())) > 1
    np.testing.assert_array_equal(*values)


def test_a_limit_of_actions_and_an_own_search_are_refused():
    model = rules_model(GAMES["puct"], EVALUATIONS["puct"])
    with pytest.raises(ConfigError, match=r"search\.slots"):
        make_search(SearchConfig(tree="dense", slots=8), model)
    with pytest.raises(ConfigError, match=r"search\.algorithm"):
        make_search(SearchConfig(algorithm=OwnAlgorithmConfig(name="mine.py:search")), model)
