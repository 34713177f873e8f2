"""A place in the crew of a run, whoever fills it: what it works at, and what it has to say."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from podzero.cluster.remote import Call, ClusterError, RemoteActor, WorkerDied
from podzero.monitoring.reports import LogReport, MetricsReport

ANSWER_TIMEOUT_S = 20.0
"""A role that does not hand over its figures for so long is only skipped: it may be compiling."""
LAST_WORDS_S = 2.0


@dataclass
class Worker:
    """One place, and the process that fills it at present."""

    actor: RemoteActor
    work: Call | None = None
    """The pending `run`; None for roles that only answer."""
    fetch: Call | None = None
    """The pending `drain`."""

    def ended(self) -> Exception | None:
        """What ended its work, which was to go on; None while it does."""
        if self.work is None or not self.work.done:
            return None
        try:
            self.work.result(ANSWER_TIMEOUT_S)
        except Exception as raised:
            return raised
        return WorkerDied(f"{self.actor.name} returned")

    def fetched(self) -> list[MetricsReport | LogReport]:
        """What it has said, if its answer is there; asks for more."""
        items: list[MetricsReport | LogReport] = []
        if self.fetch is not None:
            if not self.fetch.done:
                return items
            try:
                items = self.fetch.result(ANSWER_TIMEOUT_S)
            except (ClusterError, WorkerDied):
                return items  # its death is found by the crew, which knows what to do
        self.fetch = self.actor.begin("drain")
        return items

    def last_words(self) -> list[MetricsReport | LogReport]:
        """What it had not yet said when it ended its work."""
        items: list[MetricsReport | LogReport] = []
        for fetch in filter(None, [self.fetch, self.actor.begin("drain")]):
            with suppress(ClusterError, WorkerDied):
                items += fetch.result(LAST_WORDS_S)
        return items


def await_end(workers: Sequence[Worker], timeout_s: float) -> None:
    """Waits until each post's work has ended, all together no longer than `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(worker.work and not worker.work.done for worker in workers):
        time.sleep(0.1)
