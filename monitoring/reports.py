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


class Figures(NamedTuple):
    """Figures of a role."""

    time_s: float
    """Seconds since the epoch."""
    role: str
    figures: dict[str, float]


class LogLine(NamedTuple):
    """A log record of a role."""

    time_s: float
    role: str
    level: int
    text: str


class Notice(LogLine):
    """A log line that announces the end of the role's machine; the driver saves at once."""

    __slots__ = ()


class Outbox(logging.Handler):
    """Collects `Report` calls and log records of one process; thread-safe."""

    def __init__(self, role: str) -> None:
        super().__init__(logging.INFO)
        self._role = role
        self._items: deque[Figures | LogLine] = deque(maxlen=CAPACITY)
        self._guard = threading.Lock()

    def report(self, role: str, figures: Mapping[str, float]) -> None:
        """A `Report`."""
        with self._guard:
            self._items.append(Figures(time.time(), role, dict(figures)))

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a log record."""
        with self._guard:
            self._items.append(LogLine(record.created, self._role, record.levelno, record.getMessage()))

    def announce(self, text: str) -> None:
        """Leaves a `Notice`."""
        with self._guard:
            self._items.append(Notice(time.time(), self._role, logging.WARNING, text))

    def drain(self) -> list[Figures | LogLine]:
        """All that came since the last call."""
        with self._guard:
            items = list(self._items)
            self._items.clear()
        return items
