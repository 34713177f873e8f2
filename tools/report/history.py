"""The metrics of a run as columns: each worker's lines of `metrics.jsonl` in one table. Pure: lines in, arrays out."""

from __future__ import annotations

import json
import math
from array import array
from typing import Any, NamedTuple

import numpy as np

from podzero.runtime.monitoring.monitor import kind_of

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
LATEST_TIME = 1e11
"""Seconds since the epoch above which a line is damaged: the year 5138."""


class WorkerTable:
    """The lines of one worker: a row for each, a column for each metric."""

    def __init__(self) -> None:
        self._times = array("d")
        self._steps = array("d")
        self._columns: dict[str, array[float]] = {}

    def add(self, time_s: float, step: float, metrics: dict[str, float]) -> None:
        """Adds a line."""
        for name, value in metrics.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = array("d", [math.nan]) * len(self._times)
            column.append(value)
        self._times.append(time_s)
        self._steps.append(step)
        for column in self._columns.values():
            if len(column) < len(self._times):
                column.append(math.nan)

    @property
    def names(self) -> set[str]:
        """The metrics that some line has."""
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
        """`[N]` values of a metric, NaN where a line does not have it."""
        return np.array(self._columns.get(name, [math.nan] * len(self._times)))


class Values(NamedTuple):
    """The values of a metric, of one worker or several."""

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
        """Lines that are no reports."""

    def add_line(self, line: bytes) -> None:
        """Adds a line of `metrics.jsonl`; one that is damaged is counted and left out."""
        report = parse_line(line)
        if report is None:
            self.damaged_lines += 1
            return
        time_s, step, worker, metrics = report
        self.workers.setdefault(worker, WorkerTable()).add(time_s, step, metrics)

    @property
    def empty(self) -> bool:
        """Whether there are no reports."""
        return not self.workers

    def of_kind(self, kind: str) -> list[WorkerTable]:
        """The tables of all workers of a kind: `actor` for `actor-0`, `actor-1`, ..."""
        return [table for worker, table in sorted(self.workers.items()) if kind_of(worker) == kind]

    @property
    def kinds(self) -> list[str]:
        """The kinds of workers, by name."""
        return sorted({kind_of(worker) for worker in self.workers})

    def names(self, kind: str) -> set[str]:
        """The metrics that some worker of a kind has."""
        return {name for table in self.of_kind(kind) for name in table.names}

    def each(self, kind: str, name: str) -> list[Values]:
        """The values of a metric of each worker of a kind that has it, by time."""
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
    """Time (Unix seconds), learner step, worker and metrics of a line; None if it is not a report.

    Metrics that are null (not finite) or no numbers are left out.
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
