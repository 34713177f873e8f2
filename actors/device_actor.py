"""The self-play loop of an actor whose games stay on accelerators.

Each chip plays its own games: all device arrays have a leading chip axis.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podzero.actors.assembly import concatenated, rows_of
from podzero.actors.clients import ActorClients, Positions, SelfPlayMetrics
from podzero.actors.rollouts import Finished, Played, RolloutCore, RolloutState
from podzero.config import Experiment
from podzero.core.clock import StageClock
from podzero.core.types import Params
from podzero.core.waiting import first_params
from podzero.inference import FoldedSource

_spec: Any = PartitionSpec
_EACH, _ALL = _spec("chips"), _spec()
_CHIPS = 2**20
"""Offset of the chip numbers that are folded into the key."""
_POOL = 4_096
"""Largest number of samples that stay behind in the pool."""


def chip_keys(key: jax.Array, count: int) -> jax.Array:
    """One key for each chip. The first is `key` itself, so that the first chip plays as a single chip would."""
    # Without the offset these could be the keys into which the first chip splits its own.
    return jnp.stack([key, *(jax.random.fold_in(key, _CHIPS + chip) for chip in range(1, count))])


class ChipRollouts:
    """Runs the programs of `RolloutCore` on several local chips at once."""

    def __init__(self, core: RolloutCore, devices: Sequence[jax.Device], piece: int) -> None:
        """`piece` is the number of samples that one program takes from each chip."""
        self._mesh = Mesh(np.array(devices), ("chips",))
        self._piece = piece
        self._init = jax.jit(self._on_each(core.init, _EACH))
        self._play = jax.jit(self._on_each(core.play, _ALL, _ALL, _EACH), donate_argnums=2)
        self._take = jax.jit(self._on_each(core.take, _EACH, _EACH, _EACH))

    def init(self, key: jax.Array) -> RolloutState:
        """Starts all games."""
        keys = chip_keys(key, self._mesh.size)
        state: RolloutState = self._init(jax.device_put(keys, NamedSharding(self._mesh, _EACH)))
        return state

    def put(self, params: Params) -> Params:
        """Copies the parameters to all chips."""
        return jax.device_put(params, NamedSharding(self._mesh, _ALL))

    def play(self, params: Params, version: int, state: RolloutState) -> tuple[RolloutState, Finished, Played]:
        """Starts `RolloutCore.play`, to which `state` is donated."""
        played: tuple[RolloutState, Finished, Played] = self._play(params, self.put(np.int32(version)), state)
        return played

    def take(self, state: RolloutState, finished: Finished, index: Sequence[npt.NDArray[np.int32]]) -> list[Any]:
        """Starts to take samples, for which `finish` waits; call it before the state is donated to the next `play`."""
        # Samples are taken in pieces of one padded size, so that the program compiles once; `finish` cuts the padding.
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
        """Maps a program of one chip over all; each argument is split by chip (`_EACH`) or shared (`_ALL`)."""

        # Inside the map a chip's own arrays still have the chip axis, of size 1.
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
    """Waits for the samples of `ChipRollouts.take`; None if there are none."""
    rows: list[Positions] = []
    for positions, lengths in pieces:
        host = jax.device_get(positions)
        rows += [
            jax.tree.map(lambda leaf, chip=chip, length=length: leaf[chip, :length], host)
            for chip, length in enumerate(lengths)
            if length
        ]
    return concatenated(rows) if rows else None


@dataclass(eq=False)
class DeviceActor:
    """Plays `actors.games` games on the chips of this process and writes the finished ones to replay."""

    experiment: Experiment
    name: str
    """Its name in metrics and messages, such as `actor-0`."""
    seed: int
    """It differs between actors and between restarts."""
    core: RolloutCore
    """Self-play on one chip."""
    devices: Sequence[jax.Device]
    """The chips."""
    clients: ActorClients
    """Its connections; the parameters are those of the core."""

    def __post_init__(self) -> None:
        actors = self.experiment.actors
        self._random = np.random.default_rng(self.seed)
        piece = actors.moves_per_dispatch * actors.games // len(self.devices)
        self._chips = ChipRollouts(self.core, self.devices, piece)
        self._source = FoldedSource(self.clients.source, self._chips.put)
        self._pool: Positions | None = None
        # Samples stay behind, so that an item mixes games of several programs. With at most `replay.min_size` of them,
        # the pool delays the start of training no longer than replay does.
        self._held = min(_POOL, self.experiment.replay.min_size)
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends `run` after the current program, without waiting for room in replay; thread-safe, returns at once."""
        self._stopping.set()

    def run(self) -> None:
        """Plays until `stop` is called; each call of `run` starts new games."""
        self._stopping.clear()
        clock, metrics = StageClock(), SelfPlayMetrics(self.experiment)
        state = self._chips.init(jax.random.fold_in(jax.random.key(self.seed), 0))
        with clock("wait_params"):
            if (first := first_params(self._source, self._stopping)) is None:
                return
            version, params = first
        # A thread writes the samples of a program while the chips execute the next one. Dispatch alone would not do: on
        # GPUs it returns only when the program has ended, since the host decides there whether a loop goes on.
        with ThreadPoolExecutor(1, "write-samples") as thread:
            writing = thread.submit(self._write, [], self._held)
            while not self._stopping.is_set():
                if clock.elapsed_s >= self.clients.report_every_s:
                    self.clients.report(self.name, metrics.flush() | clock.flush())
                with clock("search"):
                    state, finished, played = self._chips.play(params, version, state)
                    host = jax.device_get(played)
                    index = [np.arange(count, dtype=np.int32) for count in host.samples]
                    pieces = self._chips.take(state, finished, index)
                self._count(metrics, host, version)
                with clock("write"):
                    writing.result()
                writing = thread.submit(self._write, pieces, self._held)
                with clock("params"):
                    version, params = self._source.poll() or (version, params)
            writing.result()
        self._write([], held=0)
        self.clients.report(self.name, metrics.flush() | clock.flush())

    def _write(self, pieces: list[Any], held: int) -> None:
        """Waits for the samples of `ChipRollouts.take`, adds them to the pool, and writes random full items from it as
        long as `held` samples remain.
        """
        parts = [part for part in (self._pool, finish(pieces)) if part is not None]
        if not parts:
            return
        pool = concatenated(parts)
        size = len(pool[0].version)
        excess = max(0, size - held)
        full = excess - excess % self.experiment.replay.samples_per_item
        if full:
            drawn = self._random.permutation(size)
            # At the end nobody trains any more, so that no room would ever come.
            self.clients.write(*rows_of(pool, drawn[:full]), stopping=self._stopping)
            pool = rows_of(pool, drawn[full:])
        self._pool = pool

    def _count(self, metrics: SelfPlayMetrics, played: Played, version: int) -> None:
        samples = int(np.sum(played.samples))
        metrics.add(
            moves=self.experiment.actors.moves_per_dispatch,
            samples=samples,
            plies=samples,
            games=int(np.sum(played.games)),
            abs_root_value=float(np.mean(played.abs_root_value)),
            version=version,
            dropped=None if played.dropped is None else int(np.sum(played.dropped)),
            depth=None if played.depth is None else float(np.mean(played.depth)),
        )
