"""The driver's side of processes: one worker, and all workers of a kind that can be replaced one by one."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from podzero.errors import ClusterError
from podzero.runtime.cluster.placement import Node, places_with_resources
from podzero.runtime.cluster.remote import Call, RemoteActor, WorkerDied
from podzero.runtime.monitoring.reports import LogReport, MetricsReport
from podzero.runtime.program import Kind, Patience

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 20.0
"""Longest wait for a short answer of a worker that may be compiling."""
_POLL_S = 0.1


@dataclass(eq=False)
class Worker:
    """A remote actor, the pending call of its work, and the pending call for its reports."""

    actor: RemoteActor
    work: Call | None = None
    """The pending `run`; None for workers that only answer calls."""
    failure: Exception | None = None
    """Why the worker is of no use any more, once that is known."""
    metric: str = ""
    """The metric that shows that it works (`Kind.work`)."""
    worked: bool = False
    """Whether it has reported any work."""
    _drain: Call | None = None
    """The pending `drain`: at most one, however long the worker takes to answer."""
    _asked_at: float = 0.0
    _answered: bool = False

    def ended(self) -> Exception | None:
        """Why the worker no longer works; None while it does."""
        if self.failure is None and self.work is not None and self.work.done:
            try:
                self.work.result(ANSWER_TIMEOUT_S)
            except Exception as failure:
                self.failure = failure
            else:
                return WorkerDied(f"{self.actor.name} ended its work before the end of the run")
        return self.failure

    def check_silence(self, patience: Patience) -> None:
        """Gives up a worker that has been silent for too long."""
        if self.failure is not None or self._drain is None or self._drain.done:
            return
        silent_s = time.monotonic() - self._asked_at
        if silent_s > (patience.later_s if self._answered else patience.first_s):
            why = "" if self._answered else f" since it was to start: {patience.advice}"
            self.failure = WorkerDied(f"{self.actor.name} has not answered for {silent_s:.0f} s{why}")

    def reports(self) -> list[MetricsReport | LogReport]:
        """The reports that have arrived since the last call; asks the worker for more."""
        reports: list[MetricsReport | LogReport] = []
        if self.failure is not None:
            return reports
        if self._drain is not None:
            if not self._drain.done:
                return reports
            try:
                reports = self._drain.result(ANSWER_TIMEOUT_S)
                self._answered = True
                self.worked |= any(self._shows_work(report) for report in reports)
            except ClusterError as lost:
                log.warning("reports of %s are lost: %s", self.actor.name, lost)
            except Exception as failure:
                self.failure = failure
                return reports
        self._drain, self._asked_at = self.actor.begin("drain"), time.monotonic()
        return reports

    def last_drains(self) -> list[Call]:
        """Begins to fetch the last reports of a worker that has stopped."""
        return [call for call in (self._drain, self.actor.begin("drain")) if call is not None]

    def _shows_work(self, report: MetricsReport | LogReport) -> bool:
        if not isinstance(report, MetricsReport) or self.metric not in report.metrics:
            return False
        return bool(report.metrics[self.metric]) or not self.metric.startswith("count/")


class WorkerEnd(NamedTuple):
    """How a worker ended."""

    node: str | None
    """Id of its node, if that is known."""
    error: Exception


class WorkerGroup:
    """The workers of one kind, as many as are wanted and nodes have room for.

    Args:
      kind: the row of the program's table.
      spawn: starts the process of an index on a node.
    """

    def __init__(self, kind: Kind, spawn: Callable[[Kind, int, Node], Worker]) -> None:
        self.kind = kind
        self.wanted = kind.count
        """How many of the names shall have a worker, from the first on."""
        self.workers: dict[str, Worker] = {}
        """The workers by name; one for which no node has room yet is absent."""
        self._spawn = spawn

    @property
    def complete(self) -> bool:
        """Whether every wanted worker has been started."""
        return len(self.workers) >= self.wanted

    @property
    def missing_cpus(self) -> list[float]:
        """CPUs of each wanted worker that has not been started."""
        return [self.kind.cpus] * max(0, self.wanted - len(self.workers))

    def could_run_on(self, node: Node) -> bool:
        """Whether a worker fits onto the node when nothing else runs there."""
        has, needed = node.resources, self.kind.resources
        return node.cpus >= self.kind.cpus and all(has.get(name, 0.0) >= amount for name, amount in needed.items())

    def scale(
        self,
        nodes: Sequence[Node],
        taken: Mapping[str, float],
        may_start: Callable[[str], bool],
        limit: int,
    ) -> dict[str, Node]:
        """Starts the wanted workers that are absent, as far as nodes have room.

        Args:
          nodes: where workers may be started.
          taken: CPUs that the run uses already, by node id.
          may_start: whether the worker of a name may start now.
          limit: considers only this number of workers, from the first on.

        Returns:
          the nodes of the started workers, by name.
        """
        wanted = self.kind.names[: min(self.wanted, limit)]
        absent = [index for index, name in enumerate(wanted) if name not in self.workers and may_start(name)]
        started = {}
        running = Counter(worker.actor.node for worker in self.workers.values() if worker.actor.node is not None)
        places = places_with_resources(nodes, taken, running, self.kind, len(absent))
        for index, node in zip(absent, places, strict=False):
            worker = self.workers[wanted[index]] = self._spawn(self.kind, index, node)
            worker.work = worker.actor.begin("run")
            started[wanted[index]] = node
        return started

    def remove_ended(self) -> dict[str, WorkerEnd]:
        """Removes the workers that ended by themselves or are silent for too long; returns their ends, by name."""
        if self.kind.patience is not None:
            for worker in self.workers.values():
                worker.check_silence(self.kind.patience)
        ended = {
            name: WorkerEnd(worker.actor.node, error)
            for name, worker in self.workers.items()
            if (error := worker.ended()) is not None
        }
        for name in ended:
            self.workers.pop(name).actor.kill()
        return ended

    def kill(self) -> None:
        """Ends all workers at once."""
        for worker in self.workers.values():
            worker.actor.kill()
        self.workers = {}


def await_end(workers: Sequence[Worker], timeout_s: float) -> None:
    """Waits until the work of all workers has ended, at most `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(worker.work and not worker.work.done for worker in workers):
        time.sleep(_POLL_S)


def await_answers(calls: Sequence[tuple[Worker, Call]], timeout_s: float) -> list[Any]:
    """The answers to calls of several workers, in order. Looks at all of them, so that no worker hides another's error.

    Raises:
      ClusterError: not all have answered within `timeout_s`; the message names those that have not.
      Exception: the first error of any worker, as soon as it is there.
    """
    deadline = time.monotonic() + timeout_s
    answers: dict[int, Any] = {}
    while True:
        for index, (_, call) in enumerate(calls):
            if index not in answers and call.done:
                answers[index] = call.result(ANSWER_TIMEOUT_S)
        late = [worker.actor.name for index, (worker, _) in enumerate(calls) if index not in answers]
        if not late:
            return [answers[index] for index in range(len(calls))]
        if time.monotonic() >= deadline:
            raise ClusterError(
                f"waited {timeout_s:.0f} s for {', '.join(late)} to be built; they may be overloaded, hang, or be "
                "without a node that has room for them"
            )
        time.sleep(_POLL_S)


def last_reports(workers: Sequence[Worker], timeout_s: float = ANSWER_TIMEOUT_S) -> list[MetricsReport | LogReport]:
    """The reports that workers made before they stopped; waits for all of them together at most `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    drains = [(worker, worker.last_drains()) for worker in workers if worker.failure is None]
    reports: list[MetricsReport | LogReport] = []
    for worker, calls in drains:
        try:
            for call in calls:
                reports += call.result(max(0.0, deadline - time.monotonic()))
        except Exception as failure:
            log.warning("the last reports of %s are lost", worker.actor.name, exc_info=failure)
    return reports
