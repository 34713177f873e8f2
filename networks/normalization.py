"""Running statistics of observations, stored among the parameters.

No optimizer changes them: their gradient is zero, and weight decay skips arrays of one dimension.
"""

from __future__ import annotations

from collections.abc import Mapping

import haiku as hk
import jax
import jax.numpy as jnp
from jax import lax

from podzero.types import Array

CLIP = 10.0
"""Normalized observations are clipped to this many standard deviations."""
MAX_COUNT = 1e7
"""The count of observations is capped here, below the integers of float32. Statistics that forget soon would follow the
policy: the better it balances, the narrower its observations, and the network would see the same state ever larger."""
_EPSILON = 1e-6


class Normalization(hk.Module):
    """`clip((x - mean) / sqrt(variance))` with the running statistics, which start at mean 0 and variance 1."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, width]` float32 to the same shape."""
        hk.get_parameter("count", (1,), init=jnp.zeros)
        mean = lax.stop_gradient(hk.get_parameter("mean", x.shape[-1:], init=jnp.zeros))
        variance = lax.stop_gradient(hk.get_parameter("variance", x.shape[-1:], init=jnp.ones))
        return jnp.clip((x - mean) * lax.rsqrt(variance + _EPSILON), -CLIP, CLIP)


def merge(statistics: Mapping[str, Array], x: Array) -> dict[str, jax.Array]:
    """Adds observations to running statistics (Chan, Golub & LeVeque 1983).

    With count n, mean m and variance v so far, and N, M, V of the new observations: the count becomes n + N, the mean
    `m + (M - m) * N / (n + N)`, the variance `(n v + N V + (M - m)^2 n N / (n + N)) / (n + N)`. n is capped at
    `MAX_COUNT`, so that new observations keep their influence. A feature whose new statistics would not be finite,
    because its square overflows float32, keeps the old ones.

    Args:
      statistics: `count` `[1]`, `mean` and `variance` `[width]`, all float32.
      x: `[N, width]` float32.
    """
    old, new = jnp.minimum(statistics["count"], MAX_COUNT), x.shape[0]
    total = old + new
    shift = jnp.mean(x, axis=0) - statistics["mean"]
    squares = old * statistics["variance"] + new * jnp.var(x, axis=0) + shift**2 * old * new / total
    mean, variance = statistics["mean"] + shift * new / total, squares / total
    finite = jnp.isfinite(mean) & jnp.isfinite(variance)
    return {
        "count": total,
        "mean": jnp.where(finite, mean, statistics["mean"]),
        "variance": jnp.where(finite, variance, statistics["variance"]),
    }
