"""An actor's connections to parameters, replay and metrics, and the metrics of self-play."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from podzero.config import Experiment
from podzero.core.clock import REPORT_EVERY_S
from podzero.core.protocols import ParamSource, ReplayWriter, Report
from podzero.core.types import Sample, StoredState, Window
from podzero.inference import CalibrationPositions

Positions = tuple[Sample, StoredState | None]
"""Training samples, and the same positions as stored for reanalysis."""

log = logging.getLogger(__name__)


class ActorClients(NamedTuple):
    """What one actor reads parameters from, and writes samples and metrics to."""

    source: ParamSource
    writer: ReplayWriter
    report: Report
    states: ReplayWriter | None = None
    """Writes to the `states` table; None without reanalysis."""
    report_every_s: float = REPORT_EVERY_S
    """Shortest time between two reports."""
    record: Callable[[CalibrationPositions], None] | None = None
    """Receives the positions that are written, for calibrations of int8."""

    def write(
        self,
        samples: Sample | Window,
        states: StoredState | Window | None,
        priorities: np.ndarray[Any, Any] | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        """Writes samples, and the same positions for reanalysis.

        Args:
          samples: `[T, ...]` on every field.
          states: `[T, ...]`, the same positions; ignored without a writer for `states`.
          priorities: `[T]`, the samples' priorities in a prioritized table; 1 if None.
          stopping: while it is set, samples for which replay has no room are dropped.
        """
        if self.record is not None:
            assert isinstance(samples, Sample)
            self.record(CalibrationPositions(np.asarray(samples.observation), np.asarray(samples.legal)))
        # States go first: their table never blocks, so reanalysers have input even while the samples block.
        if self.states is not None and states is not None:
            self.states.write(states)
        self.writer.write(samples, priorities, stopping)


class SelfPlayMetrics:
    """Accumulates the metrics of self-play between two reports."""

    def __init__(self, experiment: Experiment, failures: int = 0) -> None:
        """`failures` is the number of games on the host that have failed so far."""
        self._games = experiment.actors.games
        self._evaluations_per_move = 1 + experiment.search.simulations
        self._failures = failures
        self._sums: Counter[str] = Counter()
        self._newest = {"abs_root_value": 0.0, "version": 0.0}
        self._warned = False

    def add(
        self,
        *,
        moves: int,
        samples: int,
        plies: int,
        games: int,
        abs_root_value: float,
        version: int,
        dropped: int | None = None,
        depth: float | None = None,
    ) -> None:
        """Adds what a program of moves has played.

        Args:
          moves: moves in each game.
          samples: samples of the games that ended, one per searched ply that no opponent played.
          plies: plies of those games after their openings.
          games: games that ended.
          abs_root_value: mean absolute root value of the last move.
          version: the version of the parameters that searched.
          dropped: number of legal actions that got no slot in the search; None without `search.slots`.
          depth: mean depth of the nodes that the last search added; None with mctx's trees.
        """
        self._sums.update(moves=moves, samples=samples, plies=plies, games=games)
        if dropped is not None:
            self._sums["dropped"] += dropped
            self._warn_of_dropped(dropped)
        self._newest |= {"abs_root_value": abs_root_value, "version": float(version)}
        if depth is not None:
            self._newest["depth"] = depth

    def _warn_of_dropped(self, dropped: int) -> None:
        """Warns once that `search.slots` is too small for some positions."""
        if dropped and not self._warned:
            self._warned = True
            log.warning(
                "search.slots is too small for the legal actions of some positions: those with the smallest prior "
                "are not searched (metric count/dropped_actions); raise search.slots if they are many"
            )

    def flush(self, failures: int = 0) -> dict[str, float]:
        """The metrics since the last call; `failures` is the number of games on the host that have failed so far."""
        sums = self._sums
        metrics = {
            "count/moves": float(sums["moves"] * self._games),
            "count/evaluations": float(sums["moves"] * self._games * self._evaluations_per_move),
            "count/games": float(sums["games"]),
            "count/samples": float(sums["samples"]),
            "count/failed_episodes": float(failures - self._failures),
        } | {f"selfplay/{name}": value for name, value in self._newest.items()}
        if sums["games"]:
            metrics["selfplay/plies_per_game"] = sums["plies"] / sums["games"]
        if "dropped" in sums:
            metrics["count/dropped_actions"] = float(sums["dropped"])
        self._failures = failures
        sums.clear()
        return metrics
