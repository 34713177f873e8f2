"""Metrics and log records of worker processes, buffered in order until the driver fetches them."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

CAPACITY = 4_096
"""Most reports in a buffer; beyond that the oldest are dropped."""
SPREAD = ("min", "median", "p99", "max")
"""What `merge_workers` tells of the values of several workers beside their mean, as `NAME_min` and so on."""


class MetricsReport(NamedTuple):
    """A worker's metrics."""

    time_s: float
    """Seconds since the epoch."""
    worker: str
    metrics: dict[str, float]


class LogReport(NamedTuple):
    """A worker's log record."""

    worker: str
    level: int
    text: str
    """The message, followed by the type and first line of the exception if one was logged."""
    traceback: str = ""
    """The traceback of that exception."""


class PreemptionNotice(LogReport):
    """A log record that announces the preemption of the worker's node; the driver responds with a checkpoint."""

    __slots__ = ()


class ReportBuffer(logging.Handler):
    """The metrics and log records of one process; thread-safe."""

    def __init__(self, worker: str) -> None:
        super().__init__(logging.INFO)
        self._worker = worker
        self._items: deque[MetricsReport | LogReport] = deque(maxlen=CAPACITY)
        self.reported_at = time.monotonic()
        """When metrics were added last, or this buffer was made."""

    def report(self, worker: str, metrics: Mapping[str, float]) -> None:
        """Adds metrics; a `podzero.core.protocols.Report`."""
        self.reported_at = time.monotonic()
        self._items.append(MetricsReport(time.time(), worker, dict(metrics)))

    def emit(self, record: logging.LogRecord) -> None:
        """Adds a log record."""
        details = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        self._items.append(LogReport(self._worker, record.levelno, summary(record), details))

    def announce(self, text: str) -> None:
        """Adds a `PreemptionNotice`."""
        self._items.append(PreemptionNotice(self._worker, logging.WARNING, text))

    def drain(self) -> list[MetricsReport | LogReport]:
        """Removes and returns all reports, oldest first."""
        return [self._items.popleft() for _ in range(len(self._items))]  # what another thread adds meanwhile stays


def merge_metrics(earlier: Mapping[str, float], later: Mapping[str, float]) -> dict[str, float]:
    """Merges two reports of a worker: counts are added, other values of `later` replace those of `earlier`."""
    # The shares of time in a report sum to one, so they are replaced as a whole.
    timed = any(name.startswith("time/") for name in later)
    result = {name: value for name, value in earlier.items() if not (timed and name.startswith("time/"))}
    for name, value in later.items():
        result[name] = float(value) + (result.get(name, 0.0) if name.startswith("count/") else 0.0)
    return result


def merge_workers(reports: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merges one report of each of several workers: counts are added, of all else the mean is taken.

    Values that are not shares of time have their `SPREAD` as well. Values that are not finite count only where there
    are no others; a stage that a worker does not name took none of its time.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for report in reports:
        for name, value in report.items():
            values[name].append(value)
    timed = sum(any(name.startswith("time/") for name in report) for report in reports)
    merged = {}
    for name, found in values.items():
        known = list(filter(math.isfinite, found)) or found
        stage = name.partition("/")[0]
        merged[name] = sum(known) / {"count": 1, "time": timed}.get(stage, len(known))
        if len(known) > 1 and stage not in ("count", "time"):
            merged |= {f"{name}_{which}": value for which, value in spread(known).items()}
    return merged


def spread(values: Sequence[float]) -> dict[str, float]:
    """The `SPREAD` of values, by nearest rank; empty without values."""
    ranked, shares = sorted(values), (0.0, 0.5, 0.99, 1.0)
    ranks = (max(math.ceil(share * len(ranked)) - 1, 0) for share in shares)
    return {name: ranked[rank] for name, rank in zip(SPREAD, ranks, strict=True)} if ranked else {}


def summary(record: logging.LogRecord) -> str:
    """The message of a log record, followed by the type and first line of the exception if one was logged."""
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return record.getMessage()
    return f"{record.getMessage()}: " + f"{type(error).__name__}: {error}".splitlines()[0]


def log_report(log: logging.Logger, report: LogReport) -> None:
    """Logs a worker's log record in this process, with its traceback for handlers that print one."""
    record = log.makeRecord(log.name, report.level, __file__, 0, "%s: %s", (report.worker, report.text), exc_info=None)
    # `logging.Formatter` appends this text as it is; the exception itself stayed in the worker.
    record.exc_text = report.traceback or None
    log.handle(record)
