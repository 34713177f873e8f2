"""What actors have in common: connections to parameters, replay and metrics, the loop, and their metrics."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from podzero.config import Experiment
from podzero.core.clock import REPORT_EVERY_S, StageClock
from podzero.core.protocols import ParamSource, ReplayWriter, Report
from podzero.core.types import Array, Resignations, Sample, StoredState, Versioned, Window
from podzero.core.waiting import behind, first_params, fresh_params

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
    record: Callable[[np.ndarray[Any, Any]], None] | None = None
    """Receives the rows that are written, for calibrations of int8."""
    executed: Callable[[float], None] | None = None
    """Receives when a program of play was dispatched (`time.perf_counter`), as soon as it has ended."""

    def write(
        self,
        samples: Sample | Window | np.ndarray[Any, Any],
        states: StoredState | Window | np.ndarray[Any, Any] | None,
        priorities: np.ndarray[Any, Any] | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        """Writes T samples with their priorities (1 if None), and the same positions for reanalysis, if there is any;
        of either kind fields `[T, ...]` or packed rows `[T, row_bytes]`.

        While `stopping` is set, samples for which replay has no room are dropped.
        """
        if self.record is not None:
            assert isinstance(samples, np.ndarray)
            self.record(samples)
        # States go first: their table never blocks, so reanalysers have input even while the samples block.
        if self.states is not None and states is not None:
            self.states.write(states)
        self.writer.write(samples, priorities, stopping)


@dataclass(eq=False, kw_only=True)
class ActorLoop:
    """What the loops of all actors share. `run` plays until `stop` is called, or until games or environments fail too
    often in a row: then it raises `EnvironmentFailed`.
    """

    experiment: Experiment
    name: str
    """Its name in metrics and messages, such as `actor-0`."""
    clients: ActorClients
    """Its connections; the parameters are those of its search."""
    clock: StageClock = field(default_factory=StageClock, init=False)
    stopping: threading.Event = field(default_factory=threading.Event, init=False)
    """Whether `run` is to end."""

    def stop(self) -> None:
        """Ends `run` after the current move, program or batch; thread-safe, returns at once."""
        self.stopping.set()

    def newest_params(self) -> Iterator[Versioned]:
        """The newest parameters for each round of the loop, until `stop` is called; waits for the first ones, and while
        they are more than `actors.max_lag` publications behind.
        """
        source, max_lag = self.clients.source, self.experiment.actors.max_lag
        with self.clock("wait_params"):
            newest = first_params(source, self.stopping)
        while newest is not None and not self.stopping.is_set():
            yield newest
            with self.clock("params"):
                newest = source.poll() or newest
            if max_lag is not None and behind(source) > max_lag:
                with self.clock("wait_params"):
                    newest = fresh_params(source, newest, max_lag, self.stopping)

    @property
    def report_due(self) -> bool:
        """Whether the last report is `report_every_s` ago."""
        return self.clock.elapsed_s >= self.clients.report_every_s

    def report(self, metrics: Mapping[str, float]) -> None:
        """Reports `metrics` and the time of each stage since the last report."""
        self.clients.report(self.name, {**metrics, **self.clock.flush()})


class Played(NamedTuple):
    """The summary of one or more moves of all games; of several chips, with an axis for them on every field."""

    samples: Array | int
    """`[]` int32, number of samples of the games that ended: one per searched ply."""
    games: Array | int
    """`[]` int32, number of games that ended."""
    dropped: Array | None
    """`[]` int32, number of legal actions that the searches left out; None without `search.slots`."""
    depth: Array | None
    """`[]` float32, mean of `SearchResult.depth`; None with trees of mctx."""
    abs_root_value: Array
    """`[]` float32, mean absolute root value of the last move."""
    resignations: Resignations | None = None
    """Numbers of games; None if nobody may resign."""


class Running(NamedTuple):
    """The running episodes of B environments."""

    returns: Array
    """`[B]` float, the sum of their rewards so far."""
    age: Array
    """`[B]` int, their steps so far."""


class Acted(NamedTuple):
    """What steps in all environments came to; of several chips, with an axis for them on every field."""

    samples: Array | int
    """`[]` int32, windows that were completed."""
    moves: Array
    """`[]` int32, steps without those that start an episode."""
    games: Array
    """`[]` int32, episodes that ended."""
    returns: Array
    """`[]` float, the sum of their returns."""
    lengths: Array
    """`[]` int32, the sum of their lengths."""


def acted(
    running: Running, reward: Array, started: Array, ended: Array, samples: int, xp: Any = np
) -> tuple[Running, Acted]:
    """One step of B environments, by `xp`, `numpy` or `jax.numpy`; arguments are those of `VectorStep`, `[B]`."""
    # The step that starts an episode is a reset: its action was ignored and it has no reward.
    now = Running(xp.where(started, 0, running.returns + reward), xp.where(started, 0, running.age + 1))
    over = (xp.sum(xp.where(ended, field, 0)) for field in now)
    return now, Acted(samples, xp.sum(~started), xp.sum(ended), *over)


class EpisodeMetrics:
    """Accumulates the metrics of acting in environments between two reports."""

    def __init__(self, experiment: Experiment) -> None:
        self._evaluations = experiment.actors.games * (experiment.search.simulations + 1)
        self._sums: Counter[str] = Counter()
        self._failures = self._version = 0

    def add(self, acted: Acted, version: int, steps: int = 1) -> None:
        """Adds `steps` steps of all environments (host arrays), searched with the parameters `version`."""
        self._sums.update({name: float(np.sum(field)) for name, field in acted._asdict().items()})
        self._sums["evaluations"] += steps * self._evaluations
        self._version = version

    def flush(self, failures: int = 0) -> dict[str, float]:
        """The metrics since the last call; `failures` is the number of episodes that have failed so far."""
        sums = self._sums
        metrics = {f"count/{name}": float(sums[name]) for name in ("moves", "evaluations", "samples", "games")}
        metrics["count/failed_episodes"] = float(failures - self._failures)
        metrics["acting/version"] = float(self._version)
        if games := sums["games"]:
            metrics["acting/mean_return"] = sums["returns"] / games
            metrics["acting/steps_per_episode"] = sums["lengths"] / games
        self._failures = failures
        sums.clear()
        return metrics


class SelfPlayMetrics:
    """Accumulates the metrics of self-play between two reports."""

    def __init__(self, experiment: Experiment) -> None:
        self._games = experiment.actors.games
        self._evaluations = self._games * (1 + experiment.search.simulations)
        self._failures = 0
        self._sums: Counter[str] = Counter()
        self._newest = {"abs_root_value": 0.0, "version": 0.0}
        self._warned = False

    def add(self, played: Played, version: int, moves: int = 1, plies: int | None = None) -> None:
        """Adds `moves` moves in each game (host arrays), searched with the parameters `version`.

        `plies` are those of the games that ended, without their openings; by default as many as samples.
        """
        samples = int(np.sum(played.samples))
        plies = samples if plies is None else plies
        self._sums.update(moves=moves * self._games, evaluations=moves * self._evaluations)
        self._sums.update(samples=samples, plies=plies, games=int(np.sum(played.games)))
        self._newest |= {"abs_root_value": float(np.mean(played.abs_root_value)), "version": float(version)}
        if played.depth is not None:
            self._newest["depth"] = float(np.mean(played.depth))
        if played.resignations is not None:
            self._sums.update({name: int(np.sum(games)) for name, games in played.resignations._asdict().items()})
        if played.dropped is not None:
            self._sums["dropped"] += int(np.sum(played.dropped))
        if self._sums["dropped"] and not self._warned:
            self._warned = True
            log.warning(
                "search.slots is too small for the legal actions of some positions: those with the smallest prior "
                "are not searched (metric count/dropped_actions); raise search.slots if they are many"
            )

    def flush(self, failures: int = 0) -> dict[str, float]:
        """The metrics since the last call; `failures` is the number of games on the host that have failed so far."""
        sums = self._sums
        metrics = {f"count/{name}": float(sums[name]) for name in ("moves", "evaluations", "samples", "games")}
        metrics["count/failed_episodes"] = float(failures - self._failures)
        metrics |= {f"selfplay/{name}": value for name, value in self._newest.items()}
        if sums["games"]:
            metrics["selfplay/plies_per_game"] = sums["plies"] / sums["games"]
            if "resigned" in sums:
                metrics["selfplay/resignations"] = sums["resigned"] / sums["games"]
        if sums["played_on"]:
            metrics["selfplay/false_resignations"] = sums["false"] / sums["played_on"]
        if "dropped" in sums:
            metrics["count/dropped_actions"] = float(sums["dropped"])
        self._failures = failures
        sums.clear()
        return metrics
