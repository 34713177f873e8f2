"""Values as distributions over scaled bins, compared with numbers computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podzero.networks import muzero

SUPPORT = 30
encode, decode = (jax.jit(function, static_argnums=1) for function in (muzero.encode, muzero.decode))
scale, unscale = map(jax.jit, (muzero.scale, muzero.unscale))


@pytest.mark.parametrize(
    ("x", "scaled"),
    [(0.0, 0.0), (3.0, 1.003), (-3.0, -1.003), (24.0, 4.024), (-99.0, -9.099)],
)
def test_scaling_by_hand_and_back(x, scaled):
    """sqrt(4) - 1 = 1, sqrt(25) - 1 = 4, sqrt(100) - 1 = 9, each plus a thousandth of x."""
    np.testing.assert_allclose(scale(x), scaled, rtol=1e-6)
    np.testing.assert_allclose(unscale(scaled), x, rtol=1e-5, atol=1e-7)


@jax.jit
def encoded_and_back(x):
    distribution = encode(x, SUPPORT)
    return distribution, decode(jnp.log(distribution + 1e-30), SUPPORT)


@settings(deadline=None, max_examples=50)
@given(x=st.floats(-900.0, 900.0, width=32))
def test_decode_inverts_encode(x):
    distribution, decoded = encoded_and_back(np.float32(x))
    np.testing.assert_allclose(distribution.sum(), 1.0, rtol=1e-6)
    assert np.count_nonzero(distribution) <= 2
    np.testing.assert_allclose(decoded, x, rtol=2e-5, atol=2e-5)


def test_a_value_between_two_bins_is_two_hot():
    # h(5) = sqrt(6) - 1 + 0.005 = 1.4544897, between bins 1 and 2 of -2 ... 2.
    np.testing.assert_allclose(encode(5.0, 2), [0.0, 0.0, 0.0, 0.5455103, 0.4544897], atol=1e-6)
    np.testing.assert_allclose(encode(-5.0, 2), [0.4544897, 0.5455103, 0.0, 0.0, 0.0], atol=1e-6)


def test_values_beyond_the_outermost_bins_are_clipped():
    np.testing.assert_array_equal(encode(np.float32([1e6, -1e6]), 2), [[0, 0, 0, 0, 1], [1, 0, 0, 0, 0]])


def test_logits_represent_the_mean_of_their_distribution():
    # Half at bin 0 and half at bin 2: the mean is 1, which is h(x) for x just below 3.
    x = float(decode(np.float32([-1e9, -1e9, 0.0, -1e9, 0.0]), 2))
    np.testing.assert_allclose(np.sqrt(x + 1) - 1 + 0.001 * x, 1.0, rtol=1e-6)


def test_uniform_logits_represent_zero():
    assert abs(float(decode(np.zeros(2 * SUPPORT + 1, np.float32), SUPPORT))) < 1e-5


def test_small_values_keep_their_precision():
    x = np.float32([1e-4, 1e-3, 1e-2])
    np.testing.assert_allclose(unscale(scale(x)), x, rtol=2e-3)


def test_any_leading_axes_are_kept():
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    assert encode(x, 5).shape == (2, 3, 11)
    assert decode(encode(x, 5), 5).shape == (2, 3)
