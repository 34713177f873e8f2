"""Network evaluations/s of an actor that runs in a thread, beside those of what it spends its time on."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from podzero.actors import ActorClients, EnvironmentActor, SelfPlayActor
from podzero.clock import REPORT_EVERY_S
from podzero.config import Experiment
from podzero.replay import ReplayServer, make_writer
from podzero.runtime.build import make_actor
from podzero.tools.bench.child_processes import BenchError
from podzero.tools.bench.inputs import FixedParams, without_insert_limit
from podzero.tools.bench.rounds import calls_per_s, compare
from podzero.types import EnvSpec, Params

log = logging.getLogger(__name__)

LONGEST_S = 10.0
"""The longest turn of the actor; that of the bare calls is half as long."""
_ROUNDS = 3
"""Turns are shortened until so many rounds fit."""
_REPORT_S = 600.0
"""The longest wait for a report, which an actor may send only after it has compiled, and for an actor to end."""


def compare_actor(
    experiment: Experiment, spec: EnvSpec, params: Params, bare: Callable[[], object], evaluations: int, what: str,
    seconds: float,
) -> tuple[dict[str, Any], list[dict[str, float]]]:  # fmt: skip
    """Compares a complete actor with bare calls of what it spends most of its time on.

    The actor writes to a Reverb server in another process, whose rate limiter never blocks it.

    Args:
      experiment: its actor is measured.
      spec: of its environment.
      params: the parameters of the network, which never change.
      bare: the call; it must have been compiled.
      evaluations: network evaluations of one call.
      what: a name for the call.
      seconds: how long to measure after compilation; one round in any case, in which the actor reports twice.

    Returns:
      what `compare` returns, for the sides `actor` and `bare`; and for each round of the actor its
      `ReportTotals.measure`.
    """
    totals, rounds = ReportTotals(), []
    with (
        ReplayServer(without_insert_limit(experiment), spec, 0) as server,
        closing(make_writer([server.address()], spec, experiment)) as writer,
    ):
        # A turn of the actor begins and ends with a report, so that reports must not be further apart than it is long.
        every_s = min(REPORT_EVERY_S, seconds / (2 * _ROUNDS))
        clients = ActorClients(FixedParams(params), writer, totals, report_every_s=every_s)
        actor = make_actor(experiment, "actor-0", experiment.seed, clients)

        def actor_rate(turn_s: float) -> float:
            with running(actor):
                totals.next_report()  # the first one covers the start
                rounds.append(totals.measure(turn_s))
            return rounds[-1]["count/evaluations"]

        def bare_rate(turn_s: float) -> float:
            bare()  # waits until the device has finished the actor's last call
            return calls_per_s(bare, turn_s / 2) * evaluations

        log.info("starting an actor; it has %g s to compile and to play the first moves", _REPORT_S)
        with running(actor):
            totals.next_report()
        found = compare(
            {"actor": actor_rate, "bare": bare_rate}, "evaluations_per_s",
            f"evaluations/s, complete actor over {what}", seconds,
            longest_s=LONGEST_S, rounds=_ROUNDS,
        )  # fmt: skip
    return found, rounds


class ReportTotals:
    """Adds up what an actor reports; a `Report`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._totals: dict[str, float] = defaultdict(float)
        self._reports = 0
        self._at = time.perf_counter()

    def __call__(self, worker: str, metrics: Mapping[str, float]) -> None:
        """Takes a report: counts, and stages' shares of the time since the last report."""
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
        """Waits for the actor's next report.

        Raises:
          BenchError: there was none within `_REPORT_S`.
        """
        with self._changed:
            before = self._reports
            if not self._changed.wait_for(lambda: self._reports > before, _REPORT_S):
                raise BenchError(f"the actor has not reported for {_REPORT_S:g} s: measure a smaller experiment")

    def measure(self, seconds: float) -> dict[str, float]:
        """Increase per second between two reports at least `seconds` apart: rates `count/...`, and shares `time/...`.

        Raises:
          BenchError: the actor does not report.
        """
        first, since = dict(self._totals), self._at
        while self._at - since < seconds:
            self.next_report()
        elapsed = self._at - since
        return {name: (total - first.get(name, 0.0)) / elapsed for name, total in self._totals.items()}


@contextmanager
def running(actor: SelfPlayActor | EnvironmentActor) -> Iterator[None]:
    """Runs the actor in a thread for as long as the context lasts."""
    thread = threading.Thread(target=actor.run, name="bench-actor")
    thread.start()
    try:
        yield
    finally:
        actor.stop()
        thread.join(_REPORT_S)
