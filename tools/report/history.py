"""The metrics of a run: the lines of `metrics.jsonl` as columns for each worker, placed in the training time."""

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
"""Seconds since the epoch, in the year 5138. A later time means that the line is damaged."""


class WorkerTable:
    """The lines of one worker: one row per line, one column per metric."""

    def __init__(self) -> None:
        self._times = array("d")
        self._steps = array("d")
        self._columns: dict[str, array[float]] = {}

    def add(self, time_s: float, step: float, metrics: dict[str, float]) -> None:
        """Adds a line."""
        for name, value in metrics.items():
            column = self._columns.get(name)
            if column is None:  # a metric that the earlier lines lack
                column = self._columns[name] = array("d", [math.nan]) * len(self._times)
            column.append(value)
        self._times.append(time_s)
        self._steps.append(step)
        for column in self._columns.values():
            if len(column) < len(self._times):
                column.append(math.nan)

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
        """`[N]` values of a metric, NaN for lines without it."""
        return np.array(self._columns.get(name, [math.nan] * len(self._times)))


class Values(NamedTuple):
    """The values of a metric from one or several workers."""

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
        """The number of lines that could not be read."""

    def add_line(self, line: bytes) -> None:
        """Adds a line of `metrics.jsonl`. A damaged line is counted and left out."""
        parsed = parse_line(line)
        if parsed is None:
            self.damaged_lines += 1
            return
        time_s, step, worker, metrics = parsed
        self.workers.setdefault(worker, WorkerTable()).add(time_s, step, metrics)

    @property
    def empty(self) -> bool:
        """Whether no line has been read."""
        return not self.workers

    def of_kind(self, kind: str) -> list[WorkerTable]:
        """The tables of all workers of a kind: `actor` for `actor-0`, `actor-1`, ..."""
        return [table for worker, table in sorted(self.workers.items()) if kind_of(worker) == kind]

    @property
    def kinds(self) -> list[str]:
        """The kinds of workers, sorted by name."""
        return sorted({kind_of(worker) for worker in self.workers})

    def names(self, kind: str) -> set[str]:
        """The metrics that at least one worker of a kind has."""
        return {name for table in self.of_kind(kind) for name in table.names}

    def each(self, kind: str, name: str) -> list[Values]:
        """The values of a metric, by time, for each worker of a kind that has it."""
        tables = [table for table in self.of_kind(kind) if name in table.names]
        return [_known(table.times, table.steps, table.column(name)) for table in tables]

    def values(self, kind: str, name: str) -> Values:
        """All values of a metric of the workers of a kind, by time."""
        workers = self.each(kind, name)
        if not workers:
            return Values(*(np.empty(0),) * 3)
        return _known(*(np.concatenate(parts) for parts in zip(*workers, strict=True)))


def _known(times: FloatArray, steps: FloatArray, values: FloatArray) -> Values:
    """The values that are not NaN, by time."""
    known = np.isfinite(values)
    order = np.argsort(times[known], kind="stable")
    return Values(*(column[known][order] for column in (times, steps, values)))


def parse_line(line: bytes) -> tuple[float, float, str, dict[str, float]] | None:
    """Time (Unix seconds), learner step, worker and metrics of a line; None if the line is damaged.

    Metrics that are not finite numbers are left out.
    """
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


# Reading a file that a run may still be writing: first the whole file, then what has been added.

CHUNK_BYTES = 4 * 2**20
"""Bytes read at once."""
LONGEST_LINE = 2**20
"""Bytes. A longer line counts as damaged: no worker writes one."""


class MetricsTail:
    """A file of metrics and what has been read from it. Not thread-safe.

    The file may end in half a line, which is read once it is complete. A file that was replaced, as when a run is
    resumed, is read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._restart(None)

    def read(self) -> History:
        """Everything so far; empty if there is no file.

        Raises:
          OSError: the file exists and cannot be read.
        """
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            self._restart(None)
            return self._history
        with file:
            found = os.fstat(file.fileno())
            # Another inode or a shorter file means that it was replaced.
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._restart(found.st_ino)
            file.seek(self._offset)
            while chunk := file.read(min(CHUNK_BYTES, found.st_size - self._offset)):
                self._offset += len(chunk)
                self._add(chunk)
        return self._history

    def _restart(self, inode: int | None) -> None:
        self._inode = inode
        self._offset = 0
        self._rest = b""
        self._history = History()

    def _add(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._history.add_line(line)
        if len(self._rest) > LONGEST_LINE:
            self._rest = b"!"  # whatever follows, the line is damaged


# What a run had done at each moment: hours of training, learner steps, games.

SHORTEST_PAUSE_S = 300.0
"""A run counts as stopped when no worker has written a line for this long."""
SPARSENESS = 1 / 1000
"""The same limit as a share of the time since the first line, because long runs write lines less often
(`monitoring.metrics.RESOLUTION`)."""


class Axes(NamedTuple):
    """Positions of points on each of the three axes of a figure, `[N]` each."""

    hours: FloatArray
    """Hours of training, pauses left out."""
    steps: FloatArray
    games: FloatArray
    """Games, or episodes, finished by the actors."""


class Timeline:
    """Translates moments of a run into hours of training, learner steps and games."""

    def __init__(self, history: History) -> None:
        tables = history.workers.values()
        moments = np.unique(np.concatenate([np.empty(0), *(table.times for table in tables)]))
        self._times = moments
        self._hours = _without_pauses(moments) / 3600.0
        steps = np.zeros(len(moments))
        for table in tables:
            np.maximum.at(steps, np.searchsorted(moments, table.times), table.steps)
        # Workers write the step that they know of, so a later line may name an earlier step.
        self._steps = np.maximum.accumulate(steps) if len(steps) else steps
        self._games = _total(history.values("actor", "count/games"), moments)

    @property
    def end_hours(self) -> float:
        """Hours of training so far."""
        return float(self._hours[-1]) if len(self._hours) else 0.0

    def hours(self, times: FloatArray) -> FloatArray:
        """Hours of training at `times` (`[N]`, seconds since the epoch)."""
        return _interpolate(times, self._times, self._hours)

    def at_hours(self, hours: FloatArray) -> Axes:
        """The positions of moments given by hours of training, `[N]`."""
        return Axes(
            hours,
            _interpolate(hours, self._hours, self._steps),
            _interpolate(hours, self._hours, self._games),
        )

    def at_steps(self, steps: FloatArray) -> Axes:
        """The positions of the moments at which the learner reached `steps`, `[N]`."""
        first = np.searchsorted(self._steps, steps).clip(0, max(len(self._steps) - 1, 0))
        return Axes(self._hours[first], steps, self._games[first])


def _total(counts: Values, moments: FloatArray) -> FloatArray:
    """The sum of all `counts` up to each of `moments`, `[N]`."""
    totals = np.concatenate([[0.0], np.cumsum(counts.values)])
    result: FloatArray = totals[np.searchsorted(counts.times, moments, side="right")]
    return result


def _without_pauses(moments: FloatArray) -> FloatArray:
    """Seconds from the first of `moments` (`[N]`, ascending) to each, without the pauses between them."""
    gaps = np.diff(moments, prepend=moments[:1])
    longest = np.maximum(SHORTEST_PAUSE_S, SPARSENESS * (moments - moments[:1]))
    result: FloatArray = np.cumsum(np.where(gaps > longest, 0.0, gaps))
    return result


def _interpolate(at: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    result: FloatArray = np.interp(at, x, y) if len(x) else np.zeros(len(at))
    return result


# Bins of training time, so that a curve has a bounded number of points. The mean of a bin is drawn as a line, its least
# and greatest values as a band, so no spike is lost.

MAX_BINS = 400
"""The largest number of points of a curve."""
SHORTEST_BIN_S = 15.0
"""Workers write a line every two seconds, so a bin holds several."""


class Envelope(NamedTuple):
    """A summary of the values in each bin, `[B]` each; NaN where a bin has no values."""

    mean: FloatArray
    low: FloatArray
    high: FloatArray


class Bins:
    """Equal spans of a run's training time."""

    def __init__(self, end_hours: float) -> None:
        count = int(np.clip(end_hours * 3600.0 / SHORTEST_BIN_S, 1, MAX_BINS))
        self._edges = np.linspace(0.0, max(end_hours, 1e-9), count + 1)

    @property
    def middles(self) -> FloatArray:
        """`[B]` the middle of each bin, in hours of training."""
        result: FloatArray = (self._edges[1:] + self._edges[:-1]) / 2
        return result

    def envelope(self, hours: FloatArray, values: FloatArray) -> Envelope:
        """The mean, least and greatest value in each bin.

        Args:
          hours: `[N]` hours of training of each value.
          values: `[N]` values.
        """
        index, count = self._index(hours), len(self._edges) - 1
        numbers = np.bincount(index, minlength=count)
        low, high = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(low, index, values)
        np.maximum.at(high, index, values)
        seen = numbers > 0
        mean = np.bincount(index, values, count) / np.maximum(numbers, 1)
        return Envelope(*(np.where(seen, summary, np.nan) for summary in (mean, low, high)))

    def per_s(self, hours: FloatArray, counts: FloatArray) -> FloatArray:
        """The rate in each bin, `[B]` events per second, of what one worker counted.

        Args:
          hours: `[N]` hours of training at which each count ended, ascending; at least one.
          counts: `[N]` events since the count before.
        """
        # A count is spread over the time since the count before it; the first falls at its own time.

        totals = np.interp(self._edges, np.append(hours[:1], hours), np.append(0.0, np.cumsum(counts)))
        result: FloatArray = np.diff(totals) / (3600.0 * np.diff(self._edges))
        return result

    def _index(self, hours: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        """The bin of each of `hours`."""
        found = np.searchsorted(self._edges, hours, side="right") - 1
        result: np.ndarray[tuple[int], np.dtype[np.intp]] = np.clip(found, 0, len(self._edges) - 2)
        return result
