"""Calibration positions: random play at first, then what the searches of an actor evaluated last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podzero.protocols import Env
from podzero.types import Array, EnvState

EVERY = 64
"""A batch is kept of so many that were evaluated. A move evaluates simulations + 1 batches, which is often 33, so that
batches of all depths of the tree are kept."""
_LONGEST = 256
"""Plies after which random play ends."""
Decode = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
"""From a batch to observations `[B, ...]`."""
_Play = tuple[jax.Array, EnvState, jax.Array]
"""The number of plies played, the games, and the observation kept of each."""


class RecentPositions:
    """A ring of N observations, a sample of the batches that were seen last; thread-safe.

    Args:
      observations: the first ones, `[N, ...]`, which recent ones replace.
      every: one batch is kept of so many.
      decode: gives the observations of a batch that is kept, if batches are something else.
    """

    def __init__(
        self, observations: np.ndarray[Any, Any], every: int = EVERY, decode: Decode = lambda batch: batch
    ) -> None:
        self._observations = observations.copy()
        self._every = every
        self._decode = decode
        self._lock = threading.Lock()
        self._batches = 0
        self._next = 0

    def add(self, batch: np.ndarray[Any, Any]) -> None:
        """Takes a batch `[B, ...]` and keeps up to N observations of each `every`-th."""
        self._batches += 1
        if self._batches % self._every:
            return
        size = len(self._observations)
        observations = self._decode(batch)[:size]
        with self._lock:
            self._observations[(self._next + np.arange(len(observations))) % size] = observations
            self._next = (self._next + len(observations)) % size

    def all(self) -> np.ndarray[Any, Any]:
        """A copy of the N observations."""
        with self._lock:
            return self._observations.copy()


def random_positions(env: Env, key: Array, count: int) -> np.ndarray[Any, Any]:
    """Observations `[count, *observation_shape]` of games of uniformly random legal moves.

    From each of `count` games one position before its end is drawn uniformly (reservoir sampling). Games end after
    `_LONGEST` plies at the latest.
    """
    view, step = jax.vmap(env.view), jax.vmap(env.step)

    def ply(carry: _Play) -> _Play:
        i, states, kept = carry
        seen = view(states)
        choice_key, move_key = jax.random.split(jax.random.fold_in(key, i))
        drawn = (jax.random.uniform(choice_key, (count,)) * (i + 1) < 1.0) & ~seen.done
        kept = jnp.where(drawn.reshape(-1, *[1] * (kept.ndim - 1)), seen.observation, kept)
        action = jax.random.categorical(move_key, jnp.where(seen.legal, 0.0, -jnp.inf)).astype(jnp.int32)
        return i + 1, step(states, action), kept

    def goes_on(carry: _Play) -> jax.Array:
        i, states, _ = carry
        return (i < _LONGEST) & ~jnp.all(view(states).done)

    def play() -> jax.Array:
        states = jax.vmap(env.init)(jax.random.split(jax.random.fold_in(key, _LONGEST), count))
        start = (jnp.zeros((), jnp.int32), states, jnp.asarray(view(states).observation))
        return jax.lax.while_loop(goes_on, ply, start)[2]

    return np.asarray(jax.jit(play)())
