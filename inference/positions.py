"""Positions by which int8 is calibrated and compared: random play at first, then what was evaluated last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.protocols import Env
from podzero.types import Array, EnvState

EVERY = 64
"""A batch is kept of so many that were evaluated. A move evaluates simulations + 1 batches, which is often 33, so that
batches of all depths of the tree are kept."""
HELD_BACK = 4
"""Of so many positions one is held back from calibration, so that the comparison shows what calibration missed."""
_LONGEST = 256
"""Plies after which random play ends."""


class Positions(NamedTuple):
    """N positions."""

    observation: np.ndarray[Any, Any]
    """`[N, *observation_shape]`."""
    legal: np.ndarray[Any, Any]
    """`[N, A]` bool; all False where the game is over."""


Decode = Callable[[Any], Positions]
"""From a batch to its positions."""
_Play = tuple[jax.Array, EnvState, tuple[jax.Array, jax.Array]]
"""The number of plies played, the games, and the observation and legal actions kept of each."""


class RecentPositions:
    """A ring of N positions, a sample of the batches that were seen last; thread-safe.

    Args:
      first: N positions, which recent ones replace.
      every: one batch is kept of so many.
      decode: gives the positions of a batch that is kept, if batches are something else.
    """

    def __init__(self, first: Positions, every: int = EVERY, decode: Decode = lambda batch: batch) -> None:
        self._positions = Positions(*(field.copy() for field in first))
        self._every = every
        self._decode = decode
        self._lock = threading.Lock()
        self._batches = 0
        self._next = 0

    def add(self, batch: Any) -> None:
        """Takes a batch and keeps up to N positions of each `every`-th."""
        self._batches += 1
        if self._batches % self._every:
            return
        size, decoded = len(self._positions.legal), self._decode(batch)
        count = min(size, len(decoded.legal))
        with self._lock:
            places = (self._next + np.arange(count)) % size
            for field, new in zip(self._positions, decoded, strict=True):
                field[places] = new[:count]
            self._next = (self._next + count) % size

    def split(self) -> tuple[Positions, Positions]:
        """Copies of the positions for calibration, and of those held back from it: one of `HELD_BACK`."""
        held_back = np.arange(len(self._positions.legal)) % HELD_BACK == HELD_BACK - 1
        with self._lock:
            calibration, others = ([field[mask] for field in self._positions] for mask in (~held_back, held_back))
        return Positions(*calibration), Positions(*others)


def random_positions(env: Env, key: Array, count: int) -> Positions:
    """`count` positions of games of uniformly random legal moves, none of which is over.

    From each of `count` games one position before its end is drawn uniformly (reservoir sampling). Games end after
    `_LONGEST` plies at the latest.
    """
    view, step = jax.vmap(env.view), jax.vmap(env.step)

    def ply(carry: _Play) -> _Play:
        i, states, kept = carry
        seen = view(states)
        choice_key, move_key = jax.random.split(jax.random.fold_in(key, i))
        drawn = (jax.random.uniform(choice_key, (count,)) * (i + 1) < 1.0) & ~seen.done
        observation, legal = kept
        observation = jnp.where(drawn.reshape(-1, *[1] * (observation.ndim - 1)), seen.observation, observation)
        kept = observation, jnp.where(drawn[:, None], seen.legal, legal)
        action = jax.random.categorical(move_key, jnp.where(seen.legal, 0.0, -jnp.inf)).astype(jnp.int32)
        return i + 1, step(states, action), kept

    def goes_on(carry: _Play) -> jax.Array:
        i, states, _ = carry
        return (i < _LONGEST) & ~jnp.all(view(states).done)

    def play() -> tuple[jax.Array, jax.Array]:
        states = jax.vmap(env.init)(jax.random.split(jax.random.fold_in(key, _LONGEST), count))
        seen = view(states)
        kept = jnp.asarray(seen.observation), jnp.asarray(seen.legal)
        return jax.lax.while_loop(goes_on, ply, (jnp.zeros((), jnp.int32), states, kept))[2]

    return Positions(*jax.device_get(jax.jit(play)()))
