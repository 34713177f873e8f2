"""First-play urgency: what an action counts in PUCT before its first visit."""

from functools import cache

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

from podzero.config import SearchConfig
from podzero.core.types import Exploration
from podzero.search import Model, make_search
from podzero.search.selection import Edges, puct_selection, puct_transform

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
        # Without bounds the node's value and the Q-values of its visited actions give the smallest value. The range is
        # that of the tree, 2, or if larger that of those numbers: from -3 to 1.
        (PARENT, None, 0.2, 0.6, [0.2, 0, 0]),
        (PARENT, None, 0.2, -0.6, [0, 0.4, 0]),
        (SearchConfig(), None, 0.2, 0.6, [0.2, 0, 0]),
        (PARENT, None, 1.0, -3.0, [0, 1, 0]),
        (SearchConfig(), None, 1.0, -3.0, [0, 0, 0]),
    ],
)
def test_scaled_values_of_unvisited_actions_by_hand(config, bounds, value, qvalue, expected):
    found = puct_transform(config, bounds)(edges(value, qvalue), -1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("pb_c_init", [1.25, 2.5])
def test_scores_of_puct_by_hand(pb_c_init):
    """After 3 visits sqrt(4) * pb_c_init * prior / (1 + visits): 0.125 and 1.5 times pb_c_init beside the value 0.8.

    The logarithm that makes the factor grow with the visits is below 0.001 here.
    """
    config = SearchConfig(pb_c_init=pb_c_init)
    selection = puct_selection(config, puct_transform(config, (-1, 1)), jnp.zeros((3, 1)), jnp.array([[1], [1], [0]]))
    node = jax.tree.map(lambda leaf: leaf[:, None] if leaf.shape == (3,) else leaf, edges(0.2, 0.6))
    found = selection.root(node, 0)[:, 0]
    np.testing.assert_allclose(found, [0.8 + 0.125 * pb_c_init, 1.5 * pb_c_init, -np.inf], atol=1e-3)


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


@cache
def search_for(**settings):
    """A compiled search of 200 simulations, which tests with equal settings share."""
    return jax.jit(make_search(SearchConfig(algorithm="puct", simulations=200, **settings), wide_model()))


def searched(states, noise, **settings):
    exploration = Exploration.none(len(states))._replace(noise=np.asarray(noise, np.float32))
    return jax.device_get(search_for(**settings)(None, jax.random.key(0), jnp.array(states), exploration))


def test_as_a_loss_an_action_without_a_visit_hardly_ever_gets_one():
    """A draw scores 0.5 and an unvisited action 1.25 * sqrt(200) / 82 = 0.22."""
    assert np.all((searched([0, 0], [0, 0]).visits > 0).sum(axis=1) == 1)


def test_with_the_value_of_the_parent_all_actions_are_tried_and_noise_moves_its_fraction_of_the_prior():
    """Without noise the winning action is found. In the state 1 no action wins: all moves draw, and PUCT visits the
    action with the largest prior / (1 + visits).

    Half the prior and its share of the other half are 83 times another action's prior: by the time that the first
    action has 83 visits, each of the 81 others gets its first one, and the first action gets what is left of 200. With
    a quarter of the prior (half of the fraction) the ratio is 28.3: the second visits of the others begin when it has
    56.
    """
    settings = {"first_play_urgency": "parent", "dirichlet_fraction": 0.5, "dirichlet_concentration": 0.01}
    found = searched([0, 1, 1], [0, 1, 0.5], **settings)
    assert found.visits[0].min() >= 1
    assert found.action[0] == WINNING
    np.testing.assert_allclose(found.visits[1:].max(axis=1), [119, 56], atol=1)


def test_noise_of_a_large_concentration_is_even():
    settings = {"first_play_urgency": "parent", "dirichlet_fraction": 1.0, "dirichlet_concentration": 1e6}
    found = searched([1, 1], [1, 1], **settings)
    assert found.visits.min() >= 2
    assert found.visits.max() <= 3
