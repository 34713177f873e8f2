"""n-step targets against sums done by hand: the discount is one half, K = 2, n = 3."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.learner.targets import nstep_targets
from podzero.types import Window

K, N = 2, 3
REWARD = [1.0, 2.0, 4.0, 8.0, 16.0]
VALUE = [100.0, 200.0, 300.0, 400.0, 500.0, 600.0]


def window(length, terminated, reward=REWARD, value=VALUE):
    """A batch of one; what does not exist is zero."""
    return Window(
        observation=jnp.zeros((1, 1, 1)),
        action=jnp.zeros((1, K), jnp.int32),
        reward=jnp.where(jnp.arange(K + N) < length, jnp.array([reward]), 0.0),
        value=jnp.where(jnp.arange(K + N + 1) < length + (not terminated), jnp.array([value]), 0.0),
        policy=jnp.full((1, K + 1, 2), 0.5),
        candidates=jnp.zeros((1, K + 1, 0)),
        length=jnp.array([length], jnp.int32),
        terminated=jnp.array([terminated]),
        version=jnp.zeros(1, jnp.int32),
    )


def targets(window, discount=0.5):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], nstep_targets(window, discount, N, K))


def test_within_an_episode_n_rewards_and_the_value_behind_them_count():
    found = targets(window(5, terminated=False))
    # 1 + 2/2 + 4/4 + 400/8; 2 + 4/2 + 8/4 + 500/8; 4 + 8/2 + 16/4 + 600/8.
    np.testing.assert_allclose(found.value, [53.0, 68.5, 87.0])
    np.testing.assert_allclose(found.reward, [1.0, 2.0])
    for mask in (found.value_mask, found.reward_mask, found.policy_mask, found.state_mask):
        assert mask.all()


def test_without_a_discount_returns_are_sums():
    found = targets(window(5, terminated=False), discount=1.0)
    np.testing.assert_allclose(found.value, [407.0, 514.0, 628.0])


def test_with_a_discount_of_zero_only_the_next_reward_counts():
    np.testing.assert_allclose(targets(window(5, terminated=False), discount=0.0).value, [1.0, 2.0, 4.0])


def test_no_return_crosses_a_true_end_and_nothing_follows_it():
    found = targets(window(2, terminated=True))
    # 1 + 2/2; 2; the end itself.
    np.testing.assert_allclose(found.value, [2.0, 2.0, 0.0])
    np.testing.assert_allclose(found.reward, [1.0, 2.0])


def test_at_a_time_limit_the_value_stands_for_what_was_cut_off():
    found = targets(window(2, terminated=False))
    # 1 + 2/2 + 300/4; 2 + 300/2.
    np.testing.assert_allclose(found.value, [77.0, 152.0, 0.0])


def test_an_end_between_k_and_k_plus_n_shortens_the_sum():
    # 1 + 2/2 + 4/4 + 400/8 is untouched; 2 + 4/2 + 8/4 ends early; 4 + 8/2 as well.
    np.testing.assert_allclose(targets(window(4, terminated=True)).value, [53.0, 6.0, 8.0])
    # A time limit: 2 + 4/2 + 8/4 + 500/8, and 4 + 8/2 + 500/4.
    np.testing.assert_allclose(targets(window(4, terminated=False)).value, [53.0, 68.5, 133.0])


def test_a_true_end_absorbs_values_and_rewards_but_no_policies():
    found = targets(window(1, terminated=True))
    np.testing.assert_array_equal(found.value_mask, [True, True, True])
    np.testing.assert_array_equal(found.reward_mask, [True, True])
    np.testing.assert_array_equal(found.policy_mask, [True, False, False])
    np.testing.assert_array_equal(found.state_mask, [True, False])
    np.testing.assert_allclose(found.value, [1.0, 0.0, 0.0])
    np.testing.assert_allclose(found.reward, [1.0, 0.0])


def test_from_a_time_limit_on_nothing_is_learned():
    found = targets(window(1, terminated=False))
    np.testing.assert_array_equal(found.value_mask, [True, False, False])
    np.testing.assert_array_equal(found.reward_mask, [True, False])
    np.testing.assert_array_equal(found.policy_mask, [True, False, False])
    np.testing.assert_array_equal(found.state_mask, [True, False])


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_nothing_beyond_the_end_matters(length, terminated):
    clean = window(length, terminated)
    dirty = clean._replace(
        reward=jnp.where(jnp.arange(K + N) < length, clean.reward, np.nan),
        value=jnp.where(jnp.arange(K + N + 1) < length + (not terminated), clean.value, np.nan),
    )
    for one, other in zip(targets(clean), targets(dirty), strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_of_a_batch_have_ends_of_their_own():
    rows = [window(5, terminated=False), window(2, terminated=True), window(2, terminated=False)]
    batch = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rows)
    together = jax.jit(lambda batch: nstep_targets(batch, 0.5, N, K))(batch)
    np.testing.assert_allclose(together.value, [[53.0, 68.5, 87.0], [2.0, 2.0, 0.0], [77.0, 152.0, 0.0]])
