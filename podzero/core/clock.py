"""The share of time that a loop spends in each stage, and the progress of a run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

REPORT_EVERY_S = 2.0
"""Seconds between two reports of a loop."""
REST = "other"
"""The stage of a loop outside all that it names."""


class StageClock:
    """Adds up wall-clock seconds by stage; `flush` returns each stage's share of the time since the last flush.

    Each moment belongs to the innermost stage that has begun, else to `REST`, so that the shares add up to one.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._stages = [REST]
        self._since = self._counted = time.perf_counter()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Adds the time of the `with` body to `stage`."""
        self._count()
        self._stages.append(stage)
        try:
            yield
        finally:
            self._count()
            self._stages.pop()

    @property
    def elapsed_s(self) -> float:
        """Wall-clock seconds since the last flush."""
        return time.perf_counter() - self._since

    def flush(self) -> dict[str, float]:
        """Each stage's share of wall-clock time since the last flush, as `time/STAGE` in [0, 1]; resets the clock."""
        self._count()
        elapsed = max(self._counted - self._since, 1e-9)
        shares = {f"time/{stage}": seconds / elapsed for stage, seconds in self._seconds.items()}
        self._seconds.clear()
        self._since = self._counted
        return shares

    def _count(self) -> None:
        """Adds the time since the last call to the stage that it was spent in."""
        now = time.perf_counter()
        self._seconds[self._stages[-1]] += now - self._counted
        self._counted = now


def whole(shares: Mapping[str, float], rest: str) -> dict[str, float]:
    """The shares with their `rest`, which add up to one; scaled down if they overlap and so exceed it."""
    total = sum(shares.values())
    return {name: share / max(1.0, total) for name, share in shares.items()} | {rest: max(0.0, 1.0 - total)}


def share_of_rest(limit: float | None, before: float, done: float) -> float:
    """The fraction of the way from `before` to `limit` that `done` has covered, in [0, 1]; 0 without a limit."""
    if limit is None:
        return 0.0
    # A run may resume at or beyond a limit, where the fraction would have no meaning.
    return 1.0 if done >= limit else max(0.0, (done - before) / (limit - before))


class Progress:
    """The progress of a run, in [0, 1]: 0 at its beginning, 1 when the first limit of `stop` is reached.

    A run that starts or resumes at progress p has the progress `p + (1 - p) * s`, where s is the largest
    `share_of_rest` of any limit since. Resuming with other limits therefore makes it neither fall nor jump. `start` is
    p, and `step` the learner step there, which is `dispatch` steps later. With the limit of steps that a run had, these
    make the progress that they would have made without a stop.
    """

    def __init__(self, start: float, step: int, stop_steps: int | None, dispatch: int = 0) -> None:
        self._start, self._stop_steps, self._told = start, stop_steps, 0.0
        before = share_of_rest(stop_steps, 0, max(0, step - dispatch))
        same = dispatch > 0 and abs(before - start) < 1e-6  # what is saved is rounded
        self._of_steps = (0.0, 0) if same else (start, step)
        """The progress at a step, from where on the steps have their share of the rest."""

    def tell(self, share: float) -> None:
        """Records the largest `share_of_rest` of the limits of minutes and games; thread-safe."""
        self._told = max(self._told, share)

    def at(self, step: int) -> float:
        """The progress at a learner step."""
        start, since = self._of_steps
        by_steps = start + (1.0 - start) * share_of_rest(self._stop_steps, since, step)
        return max(by_steps, self._start + (1.0 - self._start) * self._told)
