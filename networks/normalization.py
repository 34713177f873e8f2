"""Running statistics of observations, kept among the parameters: leaves that no gradient moves.

They have one dimension, so weight decay leaves them alone, and their gradient is zero, so every optimizer does.
"""

from __future__ import annotations

from collections.abc import Mapping

import haiku as hk
import jax
import jax.numpy as jnp
from jax import lax

from podzero.types import Array

CLIP = 10.0
"""Normalized observations stay within this many standard deviations."""
MEMORY = 100_000.0
"""Observations that the statistics remember: what was seen before that is forgotten exponentially."""
_EPSILON = 1e-6


class Normalization(hk.Module):
    """`clip((x - mean) / sqrt(variance))` by the running statistics; before any, mean 0 and variance 1."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, width]` float32 to the same shape."""
        hk.get_parameter("count", (1,), init=jnp.zeros)
        mean = lax.stop_gradient(hk.get_parameter("mean", x.shape[-1:], init=jnp.zeros))
        variance = lax.stop_gradient(hk.get_parameter("variance", x.shape[-1:], init=jnp.ones))
        return jnp.clip((x - mean) * lax.rsqrt(variance + _EPSILON), -CLIP, CLIP)


def merge(statistics: Mapping[str, Array], x: Array) -> dict[str, jax.Array]:
    """Adds observations to running statistics (Chan, Golub & LeVeque 1983).

    With count n, mean m and variance v of what was seen, and N, M, V of what is new: the count becomes n + N, the mean
    `m + (M - m) * N / (n + N)`, the variance `(n v + N V + (M - m)^2 n N / (n + N)) / (n + N)`. n is taken as at most
    `MEMORY`, so that new observations always count. A feature whose statistics would not be finite, because of numbers
    that float32 cannot square, keeps the old ones.

    Args:
      statistics: `count` `[1]`, `mean` and `variance` `[width]`, all float32.
      x: `[N, width]` float32.
    """
    seen, new = jnp.minimum(statistics["count"], MEMORY), x.shape[0]
    total = seen + new
    shift = jnp.mean(x, axis=0) - statistics["mean"]
    spread = seen * statistics["variance"] + new * jnp.var(x, axis=0) + shift**2 * seen * new / total
    mean, variance = statistics["mean"] + shift * new / total, spread / total
    fine = jnp.isfinite(mean) & jnp.isfinite(variance)
    return {
        "count": total,
        "mean": jnp.where(fine, mean, statistics["mean"]),
        "variance": jnp.where(fine, variance, statistics["variance"]),
    }
