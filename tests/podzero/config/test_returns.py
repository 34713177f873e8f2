"""n-step returns computed by hand: the discount is one half."""

import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config.samples import nstep_returns

REWARD = [[1.0, 2.0, 3.0, 0.0]]
VALUE = [[0.0, 10.0, 20.0, 0.0, 0.0]]


@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
@pytest.mark.parametrize(
    ("td_steps", "unroll_steps", "expected"),
    [
        (2, 0, [1 + 2 / 2 + 20 / 4]),
        (2, 2, [1 + 2 / 2 + 20 / 4, 2 + 3 / 2, 3]),  # the episode of three steps ends within the last two sums
        (1, 1, [1 + 10 / 2, 2 + 20 / 2]),
    ],
)
def test_returns_add_n_discounted_rewards_and_the_discounted_value_after_them(xp, td_steps, unroll_steps, expected):
    found = nstep_returns(xp, xp.array(REWARD), xp.array(VALUE), xp.array([3]), 0.5, td_steps, unroll_steps)
    np.testing.assert_allclose(found, [expected])
