"""Clocks for the stages of a loop, so that a bottleneck is read off and never guessed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class StageClock:
    """Adds up wall seconds by stage; `flush` hands out the shares since the last flush."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Times the body as part of `stage`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[stage] += time.perf_counter() - start

    @property
    def elapsed_s(self) -> float:
        """Wall seconds since the last flush."""
        return time.perf_counter() - self._since

    def flush(self) -> dict[str, float]:
        """Share of wall time spent in each stage since the last flush, as `time/STAGE` in [0, 1]; starts anew."""
        elapsed = max(self.elapsed_s, 1e-9)
        shares = {f"time/{stage}": seconds / elapsed for stage, seconds in self._seconds.items()}
        self._seconds.clear()
        self._since = time.perf_counter()
        return shares
