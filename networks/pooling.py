"""Global pooling: the whole board in numbers that do not depend on its size (Wu 2020, KataGo, section 3.3)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from podzero.types import EnvSpec

USUAL_SIDE = 14.0
"""Side of a board where the scaled mean is zero."""
SIDE_SCALE = 0.1
"""Slope of its factor."""


def pooled(features: jax.Array) -> jax.Array:
    """The mean, the mean scaled by the size of the board, and the maximum of each channel.

    The scaled mean is `(b - 14) / 10` times the mean, `b` the square root of the number of squares. It lets what
    follows depend on sums as well as on means.

    Args:
      features: `[B, S, C]` of S squares.

    Returns:
      `[B, 3 * C]`.
    """
    mean = jnp.mean(features, axis=1)
    return jnp.concatenate([mean, side_factor(features.shape[1]) * mean, jnp.max(features, axis=1)], axis=-1)


def side_factor(squares: int) -> float:
    """The factor of the scaled mean on a board with so many squares."""
    return SIDE_SCALE * (math.sqrt(squares) - USUAL_SIDE)


def actions_are_squares(spec: EnvSpec) -> bool:
    """Whether each square of the board is an action, and there is at most one more (a pass)."""
    return spec.num_actions - math.prod(spec.observation_shape[:2]) in (0, 1)
