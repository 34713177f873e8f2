"""Values and rewards as categorical distributions over an invertible scaling of the reals.

The scaling is that of Pohlen et al. 2018 (https://arxiv.org/abs/1805.11593), the distribution that of MuZero
(Schrittwieser et al. 2020, https://arxiv.org/abs/1911.08265, appendix F): with support S there are `2 * S + 1` bins, at
the integers from -S to S of the scaled axis.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from podzero.types import Array

EPSILON = 1e-3
"""Coefficient of the linear term, which keeps the derivative of the inverse scaling bounded."""


def scale(x: Array) -> jax.Array:
    """`h(x) = sign(x) * (sqrt(|x| + 1) - 1) + EPSILON * x`, elementwise."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1.0) - 1.0) + EPSILON * x


def unscale(y: Array) -> jax.Array:
    """The inverse of `scale`: `sign(y) * (((sqrt(1 + 4 e (|y| + 1 + e)) - 1) / (2 e)) ** 2 - 1)`, e = EPSILON.

    Written with the root in the denominator: the difference of nearly equal numbers would cost float32 its digits.
    """
    shifted = jnp.abs(y) + 1.0 + EPSILON
    root = 2.0 * shifted / (jnp.sqrt(1.0 + 4.0 * EPSILON * shifted) + 1.0)
    return jnp.sign(y) * (root - 1.0) * (root + 1.0)


def encode(x: Array, support: int) -> jax.Array:
    """The two-hot distribution of `x`: all probability lies on the two bins next to the scaled value.

    Args:
      x: `[...]`; scaled values beyond the outermost bins are clipped to them.
      support: S.

    Returns:
      `[..., 2 * S + 1]` float32, sums to one; its mean over the bins is `scale(x)`.
    """
    position = jnp.clip(scale(jnp.asarray(x, jnp.float32)), -support, support)
    return jnp.maximum(0.0, 1.0 - jnp.abs(position[..., None] - _bins(support)))


def decode(logits: Array, support: int) -> jax.Array:
    """The value that logits over the bins represent: the inverse scaling of their distribution's mean.

    Args:
      logits: `[..., 2 * S + 1]`.
      support: S.

    Returns:
      `[...]` float32.
    """
    probabilities = jax.nn.softmax(jnp.asarray(logits, jnp.float32), axis=-1)
    # A sum instead of a matrix product, for which some accelerators would round the probabilities to bfloat16.
    return unscale(jnp.sum(probabilities * _bins(support), axis=-1))


def _bins(support: int) -> jax.Array:
    """`[2 * S + 1]` float32, the positions of the bins on the scaled axis."""
    return jnp.arange(-support, support + 1, dtype=jnp.float32)
