"""Actors that run for a bench, and what they report meanwhile."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from podzero.actors import EnvironmentActor, SelfPlayActor

_REPORT_S = 600.0
"""Longest wait for an actor to report, which it may do only after it has compiled, or to end."""


class Watch:
    """Adds up what an actor reports; a `Report`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._totals: dict[str, float] = defaultdict(float)
        self._reports = 0
        self._at = time.perf_counter()

    def __call__(self, worker: str, metrics: Mapping[str, float]) -> None:
        """Takes a report: of counts their numbers, of stages their share of the time since the last one."""
        with self._changed:
            now = time.perf_counter()
            for name, value in metrics.items():
                if name.startswith("count/"):
                    self._totals[name] += value
                elif name.startswith("time/"):
                    self._totals[name] += value * (now - self._at)
            self._at = now
            self._reports += 1
            self._changed.notify_all()

    def next_report(self) -> None:
        """Waits until the actor reports again.

        Raises:
          TimeoutError: it did not.
        """
        with self._changed:
            before = self._reports
            if not self._changed.wait_for(lambda: self._reports > before, _REPORT_S):
                raise TimeoutError(f"the actor has not reported for {_REPORT_S:g} s")

    def measure(self, seconds: float) -> dict[str, float]:
        """Growth per second between two reports at least `seconds` apart: of `count/...`, and the shares `time/...`.

        Raises:
          TimeoutError: the actor does not report.
        """
        first, since = dict(self._totals), self._at
        while self._at - since < seconds:
            self.next_report()
        elapsed = self._at - since
        return {name: (total - first.get(name, 0.0)) / elapsed for name, total in self._totals.items()}


@contextmanager
def running(actor: SelfPlayActor | EnvironmentActor) -> Iterator[None]:
    """Lets the actor run in a thread for as long as the context lasts."""
    thread = threading.Thread(target=actor.run, name="bench-actor")
    thread.start()
    try:
        yield
    finally:
        actor.stop()
        thread.join(_REPORT_S)
