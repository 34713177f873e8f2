"""Counts the failures of workers: when a worker may restart, which nodes to avoid, and when there were too many."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import NamedTuple

from podzero.config import RestartsConfig
from podzero.runtime.monitoring.monitor import kind_of

_MOST_COUNTED = 64
"""Failures of one worker, or of one kind on a node, that are remembered: the pause no longer grows from there on."""


class Restart(NamedTuple):
    """What follows from a failure."""

    in_row: int
    """Failures of the worker since it worked last, this one included."""
    pause_s: float
    """Seconds until it may restart."""
    node_avoided: bool
    """Whether, by this failure, its kind of worker begins to avoid the node."""


class FailureBudget:
    """Counts failures by worker, and by node and kind of worker. Pure: the clock is an argument.

    Failures count within `restarts.window_minutes`. Those in a row, since the worker worked last, count however long
    ago they were: they alone can be too many.

    Args:
      config: the section `restarts`.
    """

    def __init__(self, config: RestartsConfig) -> None:
        self._config = config
        self._failed: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_MOST_COUNTED))
        """Times of the failures of each worker."""
        self._failed_on: defaultdict[tuple[str, str], deque[float]] = defaultdict(lambda: deque(maxlen=_MOST_COUNTED))
        """Times of the failures of each kind on each node."""
        self._in_row: Counter[str] = Counter()
        self._may_start_at: dict[str, float] = {}
        self._avoided_until: dict[tuple[str, str], float] = {}
        self._have_worked: set[str] = set()
        """The kinds of which some worker has worked."""

    def note_work(self, worker: str) -> None:
        """Notes that a worker has done some work since its last failure."""
        self._have_worked.add(kind_of(worker))
        self._in_row.pop(worker, None)

    def note_failure(self, worker: str, node: str | None, now: float, node_at_fault: bool = False) -> Restart:
        """Notes that a worker failed.

        Args:
          worker: its name; `actor-3` is of the kind `actor`.
          node: id of its node, if that is known.
          now: present time in seconds.
          node_at_fault: whether the worker cannot work on this node, so that its kind avoids it from now on.
        """
        self._in_row[worker] += 1
        failures = max(self._count(self._failed[worker], now), self._in_row[worker])
        pause_s = self._pause_s(failures)
        self._may_start_at[worker] = now + pause_s
        avoided = node is not None and self._avoid(kind_of(worker), node, now, node_at_fault)
        return Restart(self._in_row[worker], pause_s, avoided)

    def may_start(self, worker: str, now: float) -> bool:
        """Whether the pause after the last failure of a worker is over."""
        return now >= self._may_start_at.get(worker, now)

    def avoids(self, kind: str, node: str, now: float) -> bool:
        """Whether workers of a kind avoid a node."""
        return now < self._avoided_until.get((kind, node), now)

    def has_worked(self, kind: str) -> bool:
        """Whether some worker of a kind has worked."""
        return kind in self._have_worked

    def in_row(self, worker: str) -> int:
        """Failures of a worker since it worked last."""
        return self._in_row[worker]

    def exhausted(self, worker: str) -> bool:
        """Whether a worker has failed as often in a row as it may."""
        worked = self.has_worked(kind_of(worker))
        return self._in_row[worker] >= (self._config.max_failures if worked else self._config.max_first_failures)

    def _count(self, times: deque[float], now: float) -> int:
        """Adds a failure to those of the window; returns their number."""
        while times and times[0] <= now - 60 * self._config.window_minutes:
            times.popleft()
        times.append(now)
        return len(times)

    def _pause_s(self, failures: int) -> float:
        """Nothing after the first failure; then the first pause, which each further failure doubles."""
        if failures == 1:
            return 0.0
        doublings = min(failures - 2, _MOST_COUNTED)
        return min(self._config.first_pause_s * 2.0**doublings, self._config.longest_pause_s)

    def _avoid(self, kind: str, node: str, now: float, at_fault: bool) -> bool:
        """Counts a failure on a node; returns whether the kind begins to avoid it."""
        self._avoided_until = {place: until for place, until in self._avoided_until.items() if now < until}
        failures = self._count(self._failed_on[kind, node], now)
        if self.avoids(kind, node, now) or not (at_fault or failures >= self._config.node_failures):
            return False
        del self._failed_on[kind, node]
        self._avoided_until[kind, node] = now + 60 * self._config.node_pause_minutes
        return True
