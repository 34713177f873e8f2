"""The self-play loop of an actor that plays wholly on accelerators.

Each chip plays its own games, and all arrays have a leading axis of chips.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podzero.actors.assembly import concatenated, rows_of
from podzero.actors.clients import ActorClients, Positions, SelfPlayMetrics
from podzero.actors.rollouts import Finished, Played, RolloutCore, RolloutState
from podzero.clock import StageClock
from podzero.config import Experiment
from podzero.types import Params
from podzero.waiting import first_params

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


_POOL = 4_096
"""Most samples that are held back, so that the samples of an item come from the games of several programs."""


class DeviceActor:
    """Plays `actors.games` games on the chips of this process and writes the finished ones to replay.

    While the chips execute one program, the host fetches and writes what the program before it finished. The samples of
    an item are drawn from a pool, of which as many stay behind as replay needs before training, but at most 4,096.

    Args:
      experiment: of which `actors`, `search` and `replay` are used.
      name: of the actor in metrics and messages, as `actor-0`.
      seed: of this actor; differs between actors and between restarts.
      core: self-play on one chip.
      devices: the chips.
      fold: converts published parameters for the search, once per version.
      clients: of parameters, replay and metrics.
    """

    def __init__(
        self,
        *,
        experiment: Experiment,
        name: str,
        seed: int,
        core: RolloutCore,
        devices: Sequence[jax.Device],
        fold: Callable[[Params], Params],
        clients: ActorClients,
    ) -> None:
        actors = experiment.actors
        self._experiment = experiment
        self._name = name
        self._key = jax.random.key(seed)
        self._random = np.random.default_rng(seed)
        self._chips = ChipRollouts(core, devices, actors.moves_per_dispatch * actors.games // len(devices))
        self._fold = fold
        self._clients = clients
        self._pool: Positions | None = None
        self._held = min(_POOL, experiment.replay.min_size)
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends `run` after the current program; thread-safe, returns at once."""
        self._stopping.set()

    def run(self) -> None:
        """Plays until `stop` is called; each call of `run` starts new games."""
        self._stopping.clear()
        clock, metrics = StageClock(), SelfPlayMetrics(self._experiment.actors.games)
        state = self._chips.init(jax.random.fold_in(self._key, 0))
        with clock("wait_params"):
            if (first := first_params(self._clients.source, self._stopping)) is None:
                return
            version, params = first.version, self._chips.put(self._fold(first.params))
        pieces: list[Any] = []
        while not self._stopping.is_set():
            if clock.elapsed_s >= self._clients.report_every_s:
                self._clients.report(self._name, metrics.flush() | clock.flush())
            with clock("search"):
                state, finished, played = self._chips.play(params, version, state)
            with clock("write"):
                self._write(finish(pieces), self._held)
            with clock("search"):
                host = jax.device_get(played)
                index = [np.arange(count, dtype=np.int32) for count in host.samples]
                pieces = self._chips.take(state, finished, index)
            self._count(metrics, host, version)
            with clock("params"):
                if newer := self._clients.source.poll():
                    version, params = newer.version, self._chips.put(self._fold(newer.params))
        self._write(finish(pieces), held=0)
        self._clients.report(self._name, metrics.flush() | clock.flush())

    def _write(self, positions: Positions | None, held: int) -> None:
        """Adds to the pool and writes full items, drawn from it at random, until at most `held` samples and those that
        do not fill an item are left.
        """
        parts = [part for part in (self._pool, positions) if part is not None]
        if not parts:
            return
        pool = concatenated(parts)
        size = len(pool[0].version)
        excess = max(0, size - held)
        full = excess - excess % self._experiment.replay.samples_per_item
        if full:
            drawn = self._random.permutation(size)
            self._clients.write(*rows_of(pool, drawn[:full]))
            pool = rows_of(pool, drawn[full:])
        self._pool = pool

    def _count(self, metrics: SelfPlayMetrics, played: Played, version: int) -> None:
        moves = self._experiment.actors.moves_per_dispatch
        metrics.add(
            moves=moves,
            evaluations=moves * (1 + self._experiment.search.simulations),
            samples=int(np.sum(played.samples)),
            games=int(np.sum(played.games)),
            abs_root_value=float(np.mean(played.abs_root_value)),
            version=version,
            dropped=None if played.dropped is None else int(np.sum(played.dropped)),
            depth=None if played.depth is None else float(np.mean(played.depth)),
        )
