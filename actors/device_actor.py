"""The self-play loop of an actor that plays wholly on accelerators."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from podzero.actors.chips import ChipRollouts, finish
from podzero.actors.clients import ActorClients, Positions
from podzero.actors.metrics import SelfPlayMetrics
from podzero.actors.rollouts import Played, RolloutCore
from podzero.actors.shuffling import concatenated, rows_of
from podzero.clock import REPORT_EVERY_S, StageClock
from podzero.config import Experiment
from podzero.types import Params
from podzero.waiting import first_params

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
            if clock.elapsed_s >= REPORT_EVERY_S:
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
