"""First-play urgency: what an action counts in PUCT before its first visit."""

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

from podzero.config import SearchConfig
from podzero.search import Model, make_search
from podzero.search.selection import Edges, puct_transform
from podzero.types import Exploration

ACTIONS, WINNING = 82, 57
PARENT = SearchConfig(first_play_urgency="parent")


def edges(value, qvalue):
    """A node with the priors 1/4, 3/4 and, of an illegal action, 0; the first action is visited."""
    prior = jnp.array([0.25, 0.75, 0.0])
    return Edges(
        logits=jnp.maximum(jnp.log(prior), np.finfo(np.float32).min),
        prior=prior,
        visits=jnp.array([3, 0, 0]),
        total_visits=jnp.array([3]),
        qvalues=jnp.array([qvalue, 0.0, 0.0]),
        raw_value=jnp.array([value]),
        value=jnp.array([value]),
        tree_range=jnp.array([2.0]),
    )


@pytest.mark.parametrize(
    ("config", "bounds", "value", "qvalue", "expected"),
    [
        (SearchConfig(), (-1, 1), 0.2, 0.6, [0.8, 0, 0]),
        (PARENT, (-1, 1), 0.2, 0.6, [0.8, 0.6, 0]),
        # Without bounds the node's value and the Q-values of its visited actions give the range: here from -3 to 1.
        (PARENT, None, 1.0, -3.0, [0, 1, 0]),
        (SearchConfig(), None, 1.0, -3.0, [0, 0, 0]),
    ],
)
def test_scaled_values_of_unvisited_actions_by_hand(config, bounds, value, qvalue, expected):
    found = puct_transform(config, bounds)(edges(value, qvalue), -1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def wide_model():
    """One move, which ends the game: a win with one action of 82, a draw with the others. The prior is uniform."""

    def root(params, key, states):
        batch = len(states)
        return mctx.RootFnOutput(prior_logits=jnp.zeros((batch, ACTIONS)), value=jnp.zeros(batch), embedding=states)

    def recurrent(params, key, action, states):
        batch = len(states)
        reward = jnp.where((states == 0) & (action == WINNING), 1.0, 0.0)
        return mctx.RecurrentFnOutput(
            reward=reward, discount=jnp.zeros(batch), prior_logits=jnp.zeros((batch, ACTIONS)), value=jnp.zeros(batch)
        ), states + 1

    return Model(root, recurrent, lambda states: jnp.ones((len(states), ACTIONS), bool), (-1.0, 1.0))


def searched(**settings):
    config = SearchConfig(algorithm="puct", simulations=200, **settings)
    search = jax.jit(make_search(config, wide_model()))
    return jax.device_get(search(None, jax.random.key(0), jnp.zeros(4, jnp.int32), Exploration.none(4)))


@pytest.mark.parametrize("tree", ["mctx", "dense"])
def test_with_the_value_of_the_parent_all_actions_are_tried_and_the_winning_one_is_played(tree):
    found = searched(tree=tree, first_play_urgency="parent")
    assert found.visits.min() >= 1
    assert np.all(found.action == WINNING)


@pytest.mark.parametrize("tree", ["mctx", "dense"])
def test_as_a_loss_an_action_without_a_visit_hardly_ever_gets_one(tree):
    """A draw scores 0.5 and an unvisited action 1.25 * sqrt(200) / 82 = 0.22."""
    assert np.all((searched(tree=tree).visits > 0).sum(axis=1) == 1)
