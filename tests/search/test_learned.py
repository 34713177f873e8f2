"""Search over models in closed form, with results computed by hand."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explorations import explorations, full

from podzero.config import SearchConfig
from podzero.core.types import EnvSpec, Exploration, ModelNetwork
from podzero.search import make_model_search
from podzero.search.learned import sampled_actions

ALGORITHMS = ("gumbel", "puct")
DISCRETE = EnvSpec("chain", (1,), "float32", 2, players=1)
ROWS = 32
ONE_D = EnvSpec("bandit", (1,), "float32", 0, players=1, action_bounds=((-5.0,), (5.0,)))


def model(predict, dynamics):
    """A network without parameters: the latent state is the observation, and a logit is the value or reward itself."""
    return ModelNetwork(
        init=lambda key: {},
        represent=lambda params, observation: jnp.asarray(observation, jnp.float32),
        predict=lambda params, latent: predict(latent),
        dynamics=lambda params, latent, action: dynamics(latent, action),
        project=lambda params, latent, predicted: latent,
        encode=lambda x: x[..., None],
        decode=lambda logits: logits[..., 0],
        observe=lambda params, observations: params,
    )


def uniform(latent):
    """Equal logits, value zero."""
    return jnp.zeros((latent.shape[0], 2)), jnp.zeros((latent.shape[0], 1))


def chain(latent, action):
    """From cell x, action 1 leads to x + 1 and action 0 to cell 0. The step from cell 2 to 3 gives reward 1, once."""
    x = latent[:, 0]
    forward = jnp.where(x >= 0, x + 1, x)
    after = jnp.where(action == 1, forward, jnp.minimum(x, 0.0))
    paid = ((x == 2) & (action == 1)).astype(jnp.float32)
    return jnp.where(paid > 0, -1.0, after)[:, None], paid[:, None]


@cache
def search_for(network, spec=DISCRETE, discount=0.5, **config):
    """A compiled search, which tests with equal arguments share."""
    return jax.jit(make_model_search(SearchConfig(**config), network, spec, discount))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_reward_two_steps_ahead_is_found_and_illegal_actions_at_the_root_are_not_taken(algorithm):
    """Action 1 is best from all cells, but illegal in the last row; below the root it is legal there, too."""
    search = search_for(model(uniform, chain), algorithm=algorithm, simulations=32)
    legal = jnp.array([[True, True], [True, True], [True, False]])
    result = search({}, jax.random.key(0), jnp.array([[1.0], [2.0], [2.0]]), Exploration.none(3), legal)
    np.testing.assert_array_equal(result.action, [1, 1, 0])
    assert np.all(np.asarray(result.policy)[:2, 1] > 0.5)
    np.testing.assert_array_equal(result.policy[2], [1.0, 0.0])
    # 0 leads to cell 0, from where three steps lead to the reward.
    assert result.value[1] > result.value[0] > result.value[2] > 0


def test_rewards_and_values_are_discounted_by_hand():
    """One simulation averages the root's own value 4 and one child's `r + discount * v = 1 + 0.5 * 8 = 5`."""

    def predict(latent):
        return jnp.tile(jnp.array([0.0, 20.0]), (latent.shape[0], 1)), jnp.where(latent == 2, 4.0, 8.0)

    search = search_for(model(predict, chain), algorithm="puct", simulations=1, root_value="mean")
    result = search({}, jax.random.key(0), jnp.array([[2.0]]), Exploration.none(1))
    np.testing.assert_allclose(result.value, [4.5], rtol=1e-6)


def test_golden_values_of_a_tree_with_one_action():
    """The only path has rewards 0, 0, 1, then values of zero. The k-th simulation backs up from depth k. So from cell 0
    the root averages 0, 0, 0 and then 0.25 for the reward two steps later.
    """

    def predict(latent):
        return jnp.zeros((latent.shape[0], 1)), jnp.zeros((latent.shape[0], 1))

    search = search_for(
        model(predict, lambda latent, action: chain(latent, action + 1)),
        DISCRETE._replace(num_actions=1),
        simulations=5,
        root_value="mean",
    )
    result = search({}, jax.random.key(0), jnp.array([[0.0], [2.0]]), full(2))
    # The root's own value and five simulations: from cell 0 the last three reach the reward, from cell 2 all five.
    np.testing.assert_allclose(result.value, [3 * 0.25 / 6, 5 * 1.0 / 6], rtol=1e-6)
    np.testing.assert_array_equal(result.policy, [[1.0], [1.0]])


@pytest.mark.parametrize("spec", [DISCRETE, ONE_D], ids=["discrete", "continuous"])
def test_shapes_and_laws(spec):
    search = search_for(model_of(spec), spec, algorithm="gumbel", simulations=8, candidates=6)
    result = search({}, jax.random.key(0), jnp.zeros((ROWS, 1)), explorations(np.arange(ROWS) % 2, np.arange(ROWS) % 2))
    wide = 6 if spec.action_shape else 2
    assert result.policy.shape == (ROWS, wide)
    np.testing.assert_allclose(result.policy.sum(-1), 1.0, rtol=1e-5)
    assert result.value.shape == (ROWS,)
    if spec.action_shape:
        assert result.candidates.shape == (ROWS, 6, 1)
        assert result.action.dtype == jnp.float32
        assert result.action.shape == (ROWS, 1)
        distances = np.abs(np.tanh(result.candidates) - np.asarray(result.action)[:, None])
        np.testing.assert_allclose(distances.min(axis=1), 0.0, atol=1e-6)
        assert np.abs(result.action).max() <= 1.0
    else:
        assert result.candidates.shape == (ROWS, 0)
        assert result.action.shape == (ROWS,)
        assert result.action.dtype == jnp.int32


@pytest.mark.parametrize("spec", [DISCRETE, ONE_D], ids=["discrete", "continuous"])
def test_equal_keys_give_equal_results_and_other_keys_give_others(spec):
    search = search_for(model_of(spec), spec, algorithm="gumbel", simulations=8, candidates=6)
    one, two, other = (search({}, jax.random.key(key), jnp.zeros((ROWS, 1)), full(ROWS)) for key in (0, 0, 1))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.any(np.asarray(one.action) != np.asarray(other.action))


# Continuous actions.


@cache
def model_of(spec):
    """A model of discrete or of continuous actions."""
    return model(gaussian, bandit) if spec.action_shape else model(uniform, chain)


def gaussian(latent):
    """Mean zero, standard deviation one, value zero."""
    return jnp.zeros((latent.shape[0], 2, 1)), jnp.zeros((latent.shape[0], 1))


def bandit(latent, action):
    """The reward of the first action is 1 less its distance to 0.5; later actions give none."""
    return jnp.ones_like(latent), jnp.where(latent == 0, 1.0 - jnp.abs(action - 0.5), 0.0)


@pytest.mark.parametrize(("algorithm", "candidates"), [("gumbel", 16), ("puct", 4)])
def test_sampled_search_selects_the_best_of_its_candidates(algorithm, candidates):
    network = model(gaussian, bandit)
    search = search_for(network, ONE_D, algorithm=algorithm, simulations=64, candidates=candidates)
    result = search({}, jax.random.key(0), jnp.zeros((20, 1)), Exploration.none(20))
    nearness = 1.0 - np.abs(np.tanh(result.candidates)[..., 0] - 0.5)
    best = np.take_along_axis(np.tanh(result.candidates), nearness.argmax(-1)[:, None, None], axis=1)[:, 0]
    np.testing.assert_allclose(result.action, best, rtol=1e-6)
    target = np.sum(np.asarray(result.policy) * nearness, axis=-1)
    assert np.all(target > nearness.mean(axis=-1))


def test_every_node_samples_its_own_candidates():
    """With two candidates per node, sixteen simulations try many more than two actions."""
    seen = []

    def spy(latent, action):
        jax.debug.callback(lambda a: seen.extend(np.asarray(a)[:, 0].tolist()), action)
        return jnp.ones_like(latent), jnp.zeros_like(latent)

    search = search_for(model(gaussian, spy), ONE_D, simulations=16, candidates=2, max_considered_actions=2)
    search({}, jax.random.key(0), jnp.zeros((1, 1)), Exploration.none(1))
    jax.effects_barrier()
    assert len(set(seen)) > 8


def test_candidates_are_sampled_from_the_policy():
    policy = jnp.tile(jnp.array([[[1.0, -2.0], [0.0, np.log(0.5)]]]), (4000, 1, 1))
    logits, drawn = sampled_actions(8).propose(jax.random.key(0), policy, None)
    np.testing.assert_allclose(drawn.mean((0, 1)), [1.0, -2.0], atol=0.03)
    np.testing.assert_allclose(drawn.std((0, 1)), [1.0, 0.5], atol=0.03)
    np.testing.assert_array_equal(logits, 0.0)


def test_exploring_roots_sample_a_quarter_of_their_candidates_with_twice_the_standard_deviation():
    explores = jnp.arange(8000) % 2 == 0
    policy = jnp.zeros((8000, 2, 1))
    logits, drawn = sampled_actions(8).propose(jax.random.key(0), policy, explores)
    spread = np.asarray(drawn[::2].std((0, 2)))
    np.testing.assert_allclose(spread, [1, 1, 1, 1, 1, 1, 2, 2], atol=0.1)
    # Roots that do not explore have the mean as first candidate.
    np.testing.assert_allclose(drawn[1::2].std((0, 2)), [0, 1, 1, 1, 1, 1, 1, 1], atol=0.05)
    np.testing.assert_array_equal(logits[1::2], 0.0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_root_that_does_not_explore_can_play_the_mean(algorithm):
    """The mean is 0, and the reward falls with the distance to it: no random candidate is as good."""

    def near_zero(latent, action):
        return jnp.ones_like(latent), jnp.where(latent == 0, 1.0 - jnp.abs(action), 0.0)

    search = search_for(model(gaussian, near_zero), ONE_D, algorithm=algorithm, simulations=64, candidates=4)
    result = search({}, jax.random.key(0), jnp.zeros((8, 1)), explorations(np.arange(8) % 2, np.zeros(8)))
    np.testing.assert_array_equal(result.candidates[::2, 0], 0.0)
    np.testing.assert_array_equal(result.action[::2], 0.0)
    assert np.all(result.action[1::2] != 0.0)


def test_the_prior_corrects_for_broadened_candidates():
    """Weighted by policy over proposal, the candidates have the policy's variance; unweighted they do not."""
    logits, drawn = sampled_actions(8).propose(jax.random.key(0), jnp.zeros((20_000, 2, 1)), jnp.ones(20_000, bool))
    weight, u = np.exp(np.asarray(logits)), np.asarray(drawn)[..., 0]
    np.testing.assert_allclose(np.sum(weight * u**2) / np.sum(weight), 1.0, atol=0.02)
    np.testing.assert_allclose(np.mean(u**2), 0.75 * 1 + 0.25 * 4, atol=0.05)


def test_prior_weights_by_hand():
    """At u = 0 the densities are 1 and 1/2 of the normal's, so the weight is 1 / (0.75 * 1 + 0.25 * 1/2)."""
    logits, drawn = sampled_actions(4).propose(jax.random.key(0), jnp.zeros((5000, 2, 1)), jnp.ones(5000, bool))
    u, weight = np.asarray(drawn).ravel(), np.exp(np.asarray(logits)).ravel()
    np.testing.assert_allclose(weight[np.argmin(np.abs(u))], 1 / 0.875, rtol=1e-4)


def two_values(latent):
    """Cell 0 has value 9; its actions 0 and 1 lead to cells of value 11 and 12."""
    x = latent[:, 0]
    value = jnp.select([x == 0, x == 1, x == 2], [9.0, 11.0, 12.0], 9.0)
    return jnp.zeros((latent.shape[0], 2)), value[:, None]


def fork(latent, action):
    after = jnp.where(latent[:, 0] == 0, action + 1.0, latent[:, 0])
    return after[:, None], jnp.zeros((latent.shape[0], 1))


def test_the_policy_follows_differences_of_value_relative_to_the_range_of_the_tree():
    """Two simulations visit both actions, of Q-values 11 and 12; the root's own value is 9. The root then averages
    (9 + 11 + 12) / 3 = 32 / 3, so the tree's values lie between 32 / 3 and 12: a range of 4 / 3. Gumbel adds
    0.1 * (50 + 1) * Q / range to equal logits: the odds of action 1 are exp(5.1 * 3 / 4).
    """
    search = search_for(model(two_values, fork), discount=1.0, simulations=2)
    result = search({}, jax.random.key(0), jnp.array([[0.0]]), Exploration.none(1))
    odds = np.exp(5.1 * 3 / 4)
    np.testing.assert_allclose(result.policy, [[1 / (1 + odds), odds / (1 + odds)]], rtol=1e-4)


def test_differences_of_value_below_the_least_range_change_the_policy_little():
    """As above, divided by 10 instead of by 4 / 3."""
    search = search_for(model(two_values, fork), discount=1.0, simulations=2, min_value_range=10.0)
    result = search({}, jax.random.key(0), jnp.array([[0.0]]), Exploration.none(1))
    odds = np.exp(5.1 / 10)
    np.testing.assert_allclose(result.policy, [[1 / (1 + odds), odds / (1 + odds)]], rtol=1e-4)


def test_gumbel_noise_is_not_rounded_away_beside_large_values():
    """All eight actions are equal, so the Gumbel noise alone decides. Divided by the smallest range, values of -800
    become -400,000, where float32 has steps of 1/32; the actions must not change.
    """

    def selected(level):
        def predict(latent):
            return jnp.zeros((latent.shape[0], 8)), jnp.full((latent.shape[0], 1), level)

        network = model(predict, lambda latent, action: (latent, jnp.zeros_like(latent)))
        spec = DISCRETE._replace(num_actions=8)
        search = search_for(network, spec, discount=1.0, simulations=4, max_considered_actions=8)
        return search({}, jax.random.key(3), jnp.zeros((256, 1)), full(256)).action

    np.testing.assert_array_equal(selected(-800.0), selected(0.0))


def test_equal_values_leave_the_policy_unchanged():
    search = search_for(model(uniform, lambda latent, action: (latent, jnp.zeros_like(latent))), simulations=4)
    result = search({}, jax.random.key(0), jnp.array([[0.0]]), Exploration.none(1))
    np.testing.assert_allclose(result.policy, [[0.5, 0.5]], atol=1e-6)
