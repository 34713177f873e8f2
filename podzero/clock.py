"""A clock that measures how a loop divides its time among its stages."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

REPORT_EVERY_S = 2.0
"""Seconds between two reports of a loop."""


class StageClock:
    """Adds up wall-clock seconds by stage; `flush` returns each stage's share of the time since the last flush."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Adds the time of the `with` body to `stage`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage] += time.perf_counter() - start

    @property
    def elapsed_s(self) -> float:
        """Wall-clock seconds since the last flush."""
        return time.perf_counter() - self._since

    def flush(self) -> dict[str, float]:
        """Each stage's share of wall-clock time since the last flush, as `time/STAGE` in [0, 1]; resets the clock."""
        elapsed = max(self.elapsed_s, 1e-9)
        shares = {f"time/{stage}": seconds / elapsed for stage, seconds in self._seconds.items()}
        self._seconds.clear()
        self._since = time.perf_counter()
        return shares
