"""n-step targets compared with sums computed by hand: the discount is one half, K = 2, n = 3."""

import jax
import numpy as np
import pytest

from podzero.core.types import Window
from podzero.learner.losses import nstep_targets

K, N = 2, 3
REWARD = [1.0, 2.0, 4.0, 8.0, 16.0]
VALUE = [100.0, 200.0, 300.0, 400.0, 500.0, 600.0]


def window(length, terminated, reward=REWARD, value=VALUE):
    """A batch of one window; entries that do not exist are zero."""
    return Window(
        observation=np.zeros((1, 1, 1), np.float32),
        action=np.zeros((1, K), np.int32),
        reward=np.where(np.arange(K + N) < length, np.float32([reward]), np.float32(0)),
        value=np.where(np.arange(K + N + 1) < length + (not terminated), np.float32([value]), np.float32(0)),
        policy=np.full((1, K + 1, 2), 0.5, np.float32),
        candidates=np.zeros((1, K + 1, 0), np.float32),
        length=np.array([length], np.int32),
        terminated=np.array([terminated]),
        version=np.zeros(1, np.int32),
    )


PROGRAM = jax.jit(nstep_targets, static_argnums=(1, 2, 3))


def targets(window, discount=0.5):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], PROGRAM(window, discount, N, K))


def test_within_an_episode_returns_have_n_rewards_and_the_value_after_them():
    found = targets(window(5, terminated=False))
    # 1 + 2/2 + 4/4 + 400/8; 2 + 4/2 + 8/4 + 500/8; 4 + 8/2 + 16/4 + 600/8.
    np.testing.assert_allclose(found.value, [53.0, 68.5, 87.0])
    np.testing.assert_allclose(found.reward, [1.0, 2.0])
    for mask in (found.value_mask, found.reward_mask, found.policy_mask, found.state_mask):
        assert mask.all()


def test_with_a_discount_of_one_returns_are_sums():
    found = targets(window(5, terminated=False), discount=1.0)
    np.testing.assert_allclose(found.value, [407.0, 514.0, 628.0])


def test_with_a_discount_of_zero_returns_are_the_next_rewards():
    np.testing.assert_allclose(targets(window(5, terminated=False), discount=0.0).value, [1.0, 2.0, 4.0])


def test_returns_end_with_a_terminated_episode():
    found = targets(window(2, terminated=True))
    # 1 + 2/2; 2; 0 at the end itself.
    np.testing.assert_allclose(found.value, [2.0, 2.0, 0.0])
    np.testing.assert_allclose(found.reward, [1.0, 2.0])


def test_returns_of_a_truncated_episode_bootstrap_from_its_last_value():
    found = targets(window(2, terminated=False))
    # 1 + 2/2 + 300/4; 2 + 300/2.
    np.testing.assert_allclose(found.value, [77.0, 152.0, 0.0])


def test_an_end_between_k_and_k_plus_n_shortens_the_sum():
    # 1 + 2/2 + 4/4 + 400/8 as before; 2 + 4/2 + 8/4 and 4 + 8/2 without a value after the end.
    np.testing.assert_allclose(targets(window(4, terminated=True)).value, [53.0, 6.0, 8.0])
    # Truncated: 2 + 4/2 + 8/4 + 500/8, and 4 + 8/2 + 500/4.
    np.testing.assert_allclose(targets(window(4, terminated=False)).value, [53.0, 68.5, 133.0])


def test_after_termination_values_and_rewards_are_trained_and_policies_are_not():
    found = targets(window(1, terminated=True))
    np.testing.assert_array_equal(found.value_mask, [True, True, True])
    np.testing.assert_array_equal(found.reward_mask, [True, True])
    np.testing.assert_array_equal(found.policy_mask, [True, False, False])
    np.testing.assert_array_equal(found.state_mask, [True, False])
    np.testing.assert_allclose(found.value, [1.0, 0.0, 0.0])
    np.testing.assert_allclose(found.reward, [1.0, 0.0])


def test_after_truncation_nothing_is_trained():
    found = targets(window(1, terminated=False))
    np.testing.assert_array_equal(found.value_mask, [True, False, False])
    np.testing.assert_array_equal(found.reward_mask, [True, False])
    np.testing.assert_array_equal(found.policy_mask, [True, False, False])
    np.testing.assert_array_equal(found.state_mask, [True, False])


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_entries_after_the_end_are_ignored(length, terminated):
    clean = window(length, terminated)
    dirty = clean._replace(
        reward=np.where(np.arange(K + N) < length, clean.reward, np.float32(np.nan)),
        value=np.where(np.arange(K + N + 1) < length + (not terminated), clean.value, np.float32(np.nan)),
    )
    for one, other in zip(targets(clean), targets(dirty), strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_of_a_batch_may_end_at_different_positions():
    rows = [window(5, terminated=False), window(2, terminated=True), window(2, terminated=False)]
    batch = jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows)
    together = PROGRAM(batch, 0.5, N, K)
    np.testing.assert_allclose(together.value, [[53.0, 68.5, 87.0], [2.0, 2.0, 0.0], [77.0, 152.0, 0.0]])
