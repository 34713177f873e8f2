"""What a process of a run has to say, kept until the driver fetches it: figures and log lines, in order."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

CAPACITY = 4_096
"""Items kept; a driver that does not come loses the oldest ones, never the process its memory."""


class MetricsReport(NamedTuple):
    """Figures of a role."""

    time_s: float
    """Seconds since the epoch."""
    worker: str
    metrics: dict[str, float]


class LogReport(NamedTuple):
    """A log record of a role."""

    time_s: float
    worker: str
    level: int
    text: str


class PreemptionNotice(LogReport):
    """A log line that announces the end of the role's machine; the driver saves at once."""

    __slots__ = ()


class ReportBuffer(logging.Handler):
    """Collects `Report` calls and log records of one process; thread-safe."""

    def __init__(self, worker: str) -> None:
        super().__init__(logging.INFO)
        self._worker = worker
        self._items: deque[MetricsReport | LogReport] = deque(maxlen=CAPACITY)
        self._guard = threading.Lock()

    def report(self, worker: str, metrics: Mapping[str, float]) -> None:
        """A `Report`."""
        with self._guard:
            self._items.append(MetricsReport(time.time(), worker, dict(metrics)))

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a log record."""
        with self._guard:
            self._items.append(LogReport(record.created, self._worker, record.levelno, record.getMessage()))

    def announce(self, text: str) -> None:
        """Leaves a `Notice`."""
        with self._guard:
            self._items.append(PreemptionNotice(time.time(), self._worker, logging.WARNING, text))

    def drain(self) -> list[MetricsReport | LogReport]:
        """All that came since the last call."""
        with self._guard:
            items = list(self._items)
            self._items.clear()
        return items
