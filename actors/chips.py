"""Rollouts on several chips: each plays its own games, and all arrays have a leading axis of chips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podzero.actors.clients import Positions
from podzero.actors.rollouts import Finished, Played, RolloutCore, RolloutState
from podzero.actors.shuffling import concatenated
from podzero.types import Params

_spec: Any = PartitionSpec
_EACH, _ALL = _spec("chips"), _spec()
_CHIPS = 2**20
"""Added to the number of a chip for its key: small numbers give the keys into which the first chip splits its own."""


def chip_keys(key: jax.Array, count: int) -> jax.Array:
    """A key for each of some chips, of which the first is `key`, so that its games are those of one chip alone."""
    return jnp.stack([key, *(jax.random.fold_in(key, _CHIPS + chip) for chip in range(1, count))])


class ChipRollouts:
    """The programs of `RolloutCore` on each of the given chips.

    Args:
      core: of one chip.
      devices: the chips, all of this process.
      piece: samples that one program takes from each chip.
    """

    def __init__(self, core: RolloutCore, devices: Sequence[jax.Device], piece: int) -> None:
        self._mesh = Mesh(np.array(devices), ("chips",))
        self._piece = piece
        self._init = jax.jit(self._on_each(core.init, _EACH))
        self._play = jax.jit(self._on_each(core.play, _ALL, _ALL, _EACH), donate_argnums=2)
        self._take = jax.jit(self._on_each(core.take, _EACH, _EACH, _EACH))

    def init(self, key: jax.Array) -> RolloutState:
        """Starts all games, with `chip_keys`."""
        keys = chip_keys(key, self._mesh.size)
        state: RolloutState = self._init(jax.device_put(keys, NamedSharding(self._mesh, _EACH)))
        return state

    def put(self, params: Params) -> Params:
        """The parameters on all chips."""
        return jax.device_put(params, NamedSharding(self._mesh, _ALL))

    def play(self, params: Params, version: int, state: RolloutState) -> tuple[RolloutState, Finished, Played]:
        """Starts the next program, which takes `state` over; see `RolloutCore.play`."""
        played: tuple[RolloutState, Finished, Played] = self._play(params, self.put(np.int32(version)), state)
        return played

    def take(self, state: RolloutState, finished: Finished, index: Sequence[npt.NDArray[np.int32]]) -> list[Any]:
        """Starts to take samples; `finish` waits for them. To be called before the next `play`.

        Args:
          state: after the program.
          finished: what the program gave.
          index: for each chip, the numbers of its samples in the wanted order.
        """
        pieces = []
        for start in range(0, max(map(len, index)), self._piece):
            part = np.zeros((self._mesh.size, self._piece), np.int32)
            for chip, wanted in enumerate(index):
                row = wanted[start : start + self._piece]
                part[chip, : len(row)] = row
            placed = jax.device_put(part, NamedSharding(self._mesh, _EACH))
            lengths = [min(self._piece, max(0, len(wanted) - start)) for wanted in index]
            pieces.append((self._take(state.history, finished, placed), lengths))
        return pieces

    def _on_each(self, function: Callable[..., Any], *specs: PartitionSpec) -> Callable[..., Any]:
        """A program of one chip as one of all; each argument is `_EACH` chip's own, or the same for `_ALL`."""

        def mapped(*values: Any) -> Any:
            own = [
                jax.tree.map(lambda leaf: leaf[0], value) if spec == _EACH else value
                for value, spec in zip(values, specs, strict=True)
            ]
            return jax.tree.map(lambda leaf: leaf[None], function(*own))

        program: Callable[..., Any] = jax.shard_map(
            mapped, mesh=self._mesh, in_specs=specs, out_specs=_EACH, check_vma=False
        )
        return program


def finish(pieces: list[Any]) -> Positions | None:
    """Waits for the samples that `ChipRollouts.take` began to take; None if there are none."""
    rows: list[Positions] = []
    for positions, lengths in pieces:
        host = jax.device_get(positions)
        rows += [
            jax.tree.map(lambda leaf, chip=chip, length=length: leaf[chip, :length], host)
            for chip, length in enumerate(lengths)
            if length
        ]
    return concatenated(rows) if rows else None
