"""How Q-values become targets: the floor of the range by which they are divided, and the value of a searched root."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_games import TAKEN, heaps, nim, uniform

from podzero.config import SearchConfig
from podzero.core.types import Exploration, View
from podzero.envs.jax_game import OwnGame
from podzero.search import make_search, rules_model
from podzero.search.selection import Edges, gumbel_transform, root_value

GAME = (-1.0, 1.0)


def edges(qvalues, visits, raw_value):
    """A root with equal logits."""
    visits, qvalues = np.array([visits]), np.array([qvalues], np.float32)
    total = np.sum(visits, axis=1, keepdims=True)
    return Edges(
        logits=np.zeros(qvalues.shape, np.float32),
        prior=np.full(qvalues.shape, 1 / qvalues.shape[1], np.float32),
        visits=visits,
        total_visits=total,
        qvalues=qvalues,
        raw_value=np.array([[raw_value]], np.float32),
        value=((raw_value + np.sum(visits * qvalues, axis=1, keepdims=True)) / (1 + total)).astype(np.float32),
        tree_range=np.array([[2.0]], np.float32),
    )


def improved(config, root, floor):
    transform = gumbel_transform(config, GAME, floor)
    return jax.jit(lambda root: jax.nn.softmax(root.logits + transform(root, 1)))(root)


@pytest.mark.parametrize(
    ("floor", "expected"),
    [
        (1e-8, [0.0061, 0.9939]),  # divided by their range: 0 and 1, with weight 0.1 * (50 + 1)
        (0.2, [0.4936, 0.5064]),  # 5.1 * 0.001 / 0.2 = 0.0255 nats
    ],
)
def test_q_values_that_hardly_differ_hardly_change_the_policy(floor, expected):
    found = improved(SearchConfig(), edges([0.500, 0.501], [1, 1], 0.5), floor)
    np.testing.assert_allclose(found[0], expected, atol=1e-4)


def test_a_range_above_the_floor_is_the_whole_scale():
    """0 and 0.8 count as 0 and 1: 1 / (1 + exp(-5.1)) = 0.9939."""
    found = improved(SearchConfig(), edges([0.0, 0.8], [1, 1], 0.4), 0.2)
    np.testing.assert_allclose(found[0], [0.0061, 0.9939], atol=1e-4)


def test_where_all_moves_are_about_equally_good_the_policy_stays_that_of_the_network():
    """Each heap is worth 0.500 or, if even, 0.501 to its player."""

    def evaluate(params, key, states):
        return jnp.zeros((len(states), TAKEN)), 0.5 + 0.001 * (states[:, 0] % 2 == 0)

    policies = []
    for settings in ({"min_value_range": 1e-8}, {}):
        search = make_search(SearchConfig(simulations=5, **settings), rules_model(nim(), evaluate))
        policies.append(jax.jit(search)(None, jax.random.key(0), heaps(25), Exploration.none(1)).policy[0])
    assert policies[0].min() < 0.01  # actions that lead to even heaps
    np.testing.assert_allclose(policies[1], 1 / TAKEN, atol=0.004)


HALVED = edges([1.0, 0.0, 0.0], [7, 7, 2], 0.75)
"""What 16 simulations of sequential halving over three actions visit. One action wins, and the network expects it."""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 0.9934),  # the policy: 1 / (1 + 2 * exp(-0.1 * (50 + 7)))
        ({"root_value": "mean"}, 7.75 / 17),
        ({"algorithm": "puct"}, 7.75 / 17),
        ({"algorithm": "puct", "root_value": "policy"}, 0.9934),
        ({"root_value": "action"}, 1.0),
        ({"root_value": "network"}, 0.75),
    ],
)
def test_the_value_of_a_root_under_sequential_halving_is_not_that_of_its_forced_visits(settings, expected):
    config = SearchConfig(**settings)
    found = jax.jit(partial(root_value, config))(HALVED, improved(config, HALVED, 0.2), np.array([0]))
    np.testing.assert_allclose(found, [expected], atol=1e-4)


class Earning:
    """A game for one of four moves; action `a` earns `a` times a factor."""

    players, max_plies = 1, 4

    def __init__(self, factor):
        self.factor = factor

    def init(self, key):
        return jnp.zeros(2)

    def step(self, state, action):
        played = jnp.stack([state[0] + 1, self.factor * action.astype(jnp.float32)])
        return jnp.where(state[0] >= 4, state.at[1].set(0), played)

    def view(self, state):
        return View(
            observation=state[:1], legal=jnp.ones(4, bool), player=jnp.int32(0),
            rewards=jnp.stack([state[1], jnp.zeros_like(state[1])]), done=state[0] >= 4, truncated=jnp.array(False),
        )  # fmt: skip


@pytest.mark.parametrize("tree", ["mctx", "dense"])
def test_puct_for_one_player_finds_the_same_however_small_the_rewards_are(tree):
    """In 2048 moves differ by a thousandth of the values that are possible. Factors are powers of two, so that results
    are equal, not only close.
    """
    config = SearchConfig(algorithm="puct", simulations=32, first_play_urgency="parent", tree=tree)

    def visits(factor):
        env = OwnGame(Earning(factor), "jax/Earning")
        search = jax.jit(make_search(config, rules_model(env, uniform(env))))
        return search(None, jax.random.key(0), env.init(jax.random.key(0))[None], Exploration.none(1)).visits[0]

    found = visits(1 / 16)
    assert found[3] > 2 * found[0] > 0
    np.testing.assert_array_equal(visits(2.0**-14), found)
