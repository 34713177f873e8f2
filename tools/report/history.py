"""The metrics of a run: the lines of `metrics.jsonl` as columns per worker, over the training time."""

from __future__ import annotations

import json
import math
import os
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from podzero.runtime.monitoring.monitor import kind_of

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
LATEST_TIME = 1e11
"""Latest plausible time, in seconds since the epoch (the year 5138); later times mark damaged lines."""


class WorkerTable:
    """The lines of a worker, with a row per line and a column per metric."""

    def __init__(self) -> None:
        self._times = array("d")
        self._steps = array("d")
        self._columns: dict[str, array[float]] = {}

    def add(self, time_s: float, step: float, metrics: dict[str, float]) -> None:
        """Adds a line."""
        # Earlier lines lack a new metric.
        for name in metrics.keys() - self._columns.keys():
            self._columns[name] = array("d", [math.nan]) * len(self._times)
        for name, column in self._columns.items():
            column.append(metrics.get(name, math.nan))
        self._times.append(time_s)
        self._steps.append(step)

    @property
    def names(self) -> set[str]:
        """The metrics that occur in at least one line."""
        return set(self._columns)

    @property
    def times(self) -> FloatArray:
        """`[N]` seconds since the epoch."""
        return np.array(self._times)

    @property
    def steps(self) -> FloatArray:
        """`[N]` learner steps."""
        return np.array(self._steps)

    def column(self, name: str) -> FloatArray:
        """`[N]`, the values of a metric; NaN for lines without it."""
        return np.array(self._columns.get(name, [math.nan] * len(self._times)))


class Values(NamedTuple):
    """The values of a metric from one or more workers."""

    times: FloatArray
    """`[N]` seconds since the epoch, ascending."""
    steps: FloatArray
    """`[N]` learner steps."""
    values: FloatArray
    """`[N]`, finite."""


class History:
    """The metrics of all workers."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerTable] = {}
        self.damaged_lines = 0
        """Number of lines that could not be parsed."""

    def add_line(self, line: bytes) -> None:
        """Adds a line of `metrics.jsonl`; a damaged one only counts in `damaged_lines`."""
        parsed = parse_line(line)
        if parsed is None:
            self.damaged_lines += 1
            return
        time_s, step, worker, metrics = parsed
        self.workers.setdefault(worker, WorkerTable()).add(time_s, step, metrics)

    def of_kind(self, kind: str) -> list[WorkerTable]:
        """The tables of all workers of a kind, such as `actor` for `actor-0`, `actor-1` and so on."""
        return [table for worker, table in sorted(self.workers.items()) if kind_of(worker) == kind]

    @property
    def kinds(self) -> list[str]:
        """The kinds of workers, sorted by name."""
        return sorted({kind_of(worker) for worker in self.workers})

    def names(self, kind: str) -> set[str]:
        """The metrics that at least one worker of a kind has."""
        return {name for table in self.of_kind(kind) for name in table.names}

    def each(self, kind: str, name: str) -> list[Values]:
        """The values of a metric for each worker of a kind that has it."""
        tables = [table for table in self.of_kind(kind) if name in table.names]
        return [_known(table.times, table.steps, table.column(name)) for table in tables]

    def values(self, kind: str, name: str) -> Values:
        """The values of a metric of all workers of a kind together."""
        workers = self.each(kind, name)
        if not workers:
            return Values(*(np.empty(0),) * 3)
        return _known(*(np.concatenate(parts) for parts in zip(*workers, strict=True)))


def _known(times: FloatArray, steps: FloatArray, values: FloatArray) -> Values:
    """The finite values, sorted by time."""
    known = np.isfinite(values)
    order = np.argsort(times[known], kind="stable")
    return Values(*(column[known][order] for column in (times, steps, values)))


def parse_line(line: bytes) -> tuple[float, float, str, dict[str, float]] | None:
    """The time (seconds since the epoch), learner step, worker and finite metrics of a line; None if it is damaged."""
    try:
        tree = json.loads(line)
        time_s, step, worker, metrics = float(tree["t"]), float(tree["step"]), tree["worker"], tree["metrics"]
        if not (0 <= time_s < LATEST_TIME and math.isfinite(step) and isinstance(worker, str)):
            return None
        return time_s, step, worker, {name: value for name, value in metrics.items() if _is_number(value)}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


LONGEST_LINE = 2**20
"""Bytes after which a line counts as damaged."""


class MetricsTail:
    """Reads a file of metrics as it grows; not thread-safe.

    Half a line at the end is read once it is complete. A file that was replaced is read from its start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._restart(None)

    def read(self) -> History:
        """All metrics so far; empty without a file. A file that cannot be read raises `OSError`."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            self._restart(None)
            return self._history
        with file:
            found = os.fstat(file.fileno())
            # With another inode or a smaller size, the file was replaced, as when a run is resumed.
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._restart(found.st_ino)
            file.seek(self._offset)
            while (line := file.readline(LONGEST_LINE)).endswith(b"\n") or len(line) == LONGEST_LINE:
                self._offset += len(line)
                self._history.add_line(line)
        return self._history

    def _restart(self, inode: int | None) -> None:
        self._inode, self._offset, self._history = inode, 0, History()


# The progress of a run at each moment: hours of training, learner steps, games.

SHORTEST_PAUSE_S = 300.0
"""Seconds without a line from any worker that count as a pause of the run."""
SPARSENESS = 1 / 1000
"""The same limit as a share of the time since the first line, since long runs write lines less often
(`monitoring.metrics.RESOLUTION`)."""


class Axes(NamedTuple):
    """Coordinates of points on each of a figure's three horizontal axes, `[N]` each."""

    hours: FloatArray
    """Hours of training, without pauses."""
    steps: FloatArray
    games: FloatArray
    """Games or episodes finished by the actors."""


class Timeline:
    """Converts moments of a run to hours of training, learner steps and games."""

    def __init__(self, history: History) -> None:
        workers = history.workers
        # Evaluator and driver report after training too, while the last snapshot is judged.
        tables = [workers[name] for name in workers.keys() - {"evaluator", "driver"}] or list(workers.values())
        moments = np.unique(np.concatenate([np.empty(0), *(table.times for table in tables)]))
        self._times = moments
        self._hours = _without_pauses(moments) / 3600.0
        steps = np.zeros(len(moments))
        for table in tables:
            np.maximum.at(steps, np.searchsorted(moments, table.times), table.steps)
        # Workers write the newest step that they know, so a later line may have an earlier step.
        self._steps = np.maximum.accumulate(steps)
        games = history.values("actor", "count/games")
        totals = np.concatenate([[0.0], np.cumsum(games.values)])
        self._games = totals[np.searchsorted(games.times, moments, side="right")]

    @property
    def end_hours(self) -> float:
        """Hours of training so far."""
        return float(self._hours[-1]) if len(self._hours) else 0.0

    def moments(self, step: int) -> tuple[float, float] | None:
        """The times of the first line and of the first one at `step` or later, in seconds since the epoch.

        Where no line has that step, the second is the time of the last line. None without lines.
        """
        if not len(self._times):
            return None
        first = min(int(np.searchsorted(self._steps, step)), len(self._times) - 1)
        return float(self._times[0]), float(self._times[first])

    def hours(self, times: FloatArray) -> FloatArray:
        """Hours of training at `times` (`[N]`, seconds since the epoch)."""
        return _interpolate(times, self._times, self._hours)

    def at_hours(self, hours: FloatArray) -> Axes:
        """The coordinates, on all three axes, of the moments after these hours of training, `[N]`."""
        return Axes(hours, *(_interpolate(hours, self._hours, axis) for axis in (self._steps, self._games)))

    def at_steps(self, steps: FloatArray) -> Axes:
        """The coordinates of the moments at which the learner reached `steps`, `[N]`."""
        first = np.searchsorted(self._steps, steps).clip(0, max(len(self._steps) - 1, 0))
        return Axes(self._hours[first], steps, self._games[first])


def _without_pauses(moments: FloatArray) -> FloatArray:
    """Seconds from the first of `moments` (`[N]`, ascending) to each of them, without pauses."""
    gaps = np.diff(moments, prepend=moments[:1])
    longest = np.maximum(SHORTEST_PAUSE_S, SPARSENESS * (moments - moments[:1]))
    result: FloatArray = np.cumsum(np.where(gaps > longest, 0.0, gaps))
    return result


def _interpolate(at: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    result: FloatArray = np.interp(at, x, y) if len(x) else np.zeros(len(at))
    return result


# Bins of training time bound the number of points of a curve. A bin's mean is drawn as a line, its minimum and maximum
# as a band, so that no spike is lost.

MAX_BINS = 400
"""Most points of a curve."""
SHORTEST_BIN_S = 15.0
"""Shortest bin in seconds; workers write a line every two seconds, so it holds several."""


class Envelope(NamedTuple):
    """Mean, minimum and maximum of each bin, `[B]` each; NaN for empty bins."""

    mean: FloatArray
    low: FloatArray
    high: FloatArray


class Bins:
    """Equal intervals of a run's training time."""

    def __init__(self, end_hours: float) -> None:
        count = int(np.clip(end_hours * 3600.0 / SHORTEST_BIN_S, 1, MAX_BINS))
        self._edges = np.linspace(0.0, max(end_hours, 1e-9), count + 1)

    @property
    def middles(self) -> FloatArray:
        """`[B]`, the middle of each bin in hours of training."""
        result: FloatArray = (self._edges[1:] + self._edges[:-1]) / 2
        return result

    def envelope(self, hours: FloatArray, values: FloatArray) -> Envelope:
        """Summarizes `values` `[N]`, measured at `hours` `[N]` of training."""
        count = len(self._edges) - 1
        index = np.clip(np.searchsorted(self._edges, hours, side="right") - 1, 0, count - 1)
        numbers = np.bincount(index, minlength=count)
        low, high = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(low, index, values)
        np.maximum.at(high, index, values)
        mean = np.bincount(index, values, count) / np.maximum(numbers, 1)
        return Envelope(*(np.where(numbers > 0, summary, np.nan) for summary in (mean, low, high)))

    def per_s(self, hours: FloatArray, counts: FloatArray) -> FloatArray:
        """The events per second in each bin, `[B]`, counted by one worker.

        Args:
          hours: `[N]` hours of training at the end of each count, ascending; N is at least 1.
          counts: `[N]` events since the previous count.
        """
        # A count is spread over the time since the previous one; the first falls on its own time.
        totals = np.interp(self._edges, np.append(hours[:1], hours), np.append(0.0, np.cumsum(counts)))
        result: FloatArray = np.diff(totals) / (3600.0 * np.diff(self._edges))
        return result
