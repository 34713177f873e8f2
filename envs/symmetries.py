"""Symmetries of the games: changes of coordinates that training may apply to any position."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from podzero.types import Symmetry


def symmetries_of(name: str) -> Sequence[Symmetry]:
    """The symmetries of a game besides the identity."""
    match name:
        case "connect_four":
            return [Symmetry(lambda x: jnp.flip(x, axis=1), np.arange(7, dtype=np.int32)[::-1].copy())]
        case _:
            return []
