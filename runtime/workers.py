"""The driver's view of processes: one worker, and a group of one kind, which obeys what its kind says of losses."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from podzero.core.errors import TRY_AGAIN, ClusterError, PodzeroError, described
from podzero.core.waiting import in_thread
from podzero.runtime.cluster.placement import Node
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S, STOP_TIMEOUT_S, Call, NodeLost, RemoteActor, WorkerDied
from podzero.runtime.monitoring.pace import LONGEST_LOOK_S, Pace
from podzero.runtime.monitoring.reports import LogReport, MetricsReport
from podzero.runtime.program import USUAL, Kind, SilenceLimit

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 20.0
"""Longest wait for a short answer of a worker that may be compiling."""
CHECKPOINT_TIMEOUT_S = 600.0
"""Longest time for a host to reach the end of its dispatch and to write its part of a checkpoint."""
BLAME_TIMEOUT_S = 60.0
"""How long to look for the lost host that made another one fail: Ray takes 15 s to declare a node dead."""
NAME_EVERY_S = 10.0
"""Time after which a silent worker is named to its agent again."""
POLL_S = 0.1


@dataclass(eq=False)
class Worker:
    """A remote actor, the pending call of its work, and the pending call for its reports."""

    actor: RemoteActor
    work: Call | None = None
    """The pending `run`; None for workers that only answer calls."""
    failure: Exception | None = None
    """Why the worker can no longer be used; None while it can."""
    metric: str = ""
    """The metric that shows that it goes on (`Kind.work`)."""
    silence_limit: SilenceLimit = USUAL
    restart: Call | None = None
    """The pending `ready` of a replay shard or a learner host that was started again."""
    worked: bool = False
    """Whether it has reported any work."""
    drain: Call | None = None
    """The pending `drain`: at most one, however long the worker takes to answer."""
    suspected: bool = False
    """Whether it was said that it may hang."""
    named_at_s: float = 0.0
    """At which length of its silence it is named to the agent that drains it, if any."""

    def __post_init__(self) -> None:
        now, limit = time.monotonic(), self.silence_limit
        self.answers = Pace(now, limit.first_s, limit.later_s)
        """Its answers to `drain`."""
        self.progress = Pace(now, limit.first_work_s, limit.work_s)
        """The reports of its metric."""

    def ended(self) -> Exception | None:
        """Why the worker no longer works; None while it does."""
        if self.failure is None and self.restart is not None and self.restart.done:
            self.failure, self.restart = self.restart.exception(ANSWER_TIMEOUT_S), None
        if self.failure is None and self.work is not None and self.work.done:
            self.failure = self.work.exception(ANSWER_TIMEOUT_S)
            return self.failure or WorkerDied(f"{self.actor.name} ended its work before the end of the run")
        return self.failure

    @property
    def silence(self) -> tuple[float, str]:
        """For how many seconds the worker has been silent, and what it has not done; `(0, "")` while it is not."""
        if not (self.answers.begun and (self.answers.named or self.progress.named)):
            return 0.0, ""
        pace = self.answers if self.answers.silent_s > ANSWER_TIMEOUT_S / 2 else self.progress
        return pace.silent_s, self._said(pace)

    def check_silence(self) -> bool:
        """Marks the worker as failed if it has been silent for too long; returns whether it was."""
        late = next((pace for pace in (self.answers, self.progress) if pace.silent_s > pace.limit_s), None)
        if self.failure is not None or late is None:
            return False
        why = "" if self.answers.begun else f" since it was to start: {self.silence_limit.advice}"
        self.failure = WorkerDied(f"{self._said(late)}{why}".rstrip(": "))
        return True

    def _said(self, pace: Pace) -> str:
        what = "answered" if pace is self.answers else "reported any progress"
        return f"{self.actor.name} has not {what} for {pace.silent_s:.0f} s"

    def reports(self) -> list[MetricsReport | LogReport]:
        """The reports that have arrived since the last call; asks the worker for more."""
        reports: list[MetricsReport | LogReport] = []
        if self.failure is not None:
            return reports
        self.look()
        if self.drain is not None:
            if not self.drain.done:
                return reports
            try:
                reports = self.drain.result(ANSWER_TIMEOUT_S)
                self.heard(reports)
            except ClusterError as lost:
                log.warning("reports of %s are lost: %s", self.actor.name, lost)
            except Exception as failure:
                self.failure = failure
                return reports
        self.drain = self.actor.begin("drain")
        return reports

    def look(self) -> None:
        """Counts the time since the last look as silence."""
        now = time.monotonic()
        self.answers.look(now)
        self.progress.look(now)

    def heard(self, reports: Iterable[MetricsReport | LogReport]) -> None:
        """Notes an answer, and by its own metrics whether the worker goes on or only says that it waits."""
        own = [found for found in reports if isinstance(found, MetricsReport) and found.worker == self.actor.name]
        if not self.answers.begun:
            self.progress.excuse()
        self.answers.happened()
        if shown := [report.metrics[self.metric] for report in own if self.metric in report.metrics]:
            self.progress.happened()
            self.worked |= any(shown) or not self.metric.startswith("count/")
        elif own:
            self.progress.excuse()


def drained(agent: Worker, workers: Mapping[str, Worker]) -> list[MetricsReport | LogReport]:
    """The reports that the agent of a node has read of the workers there, by name; names to it those that are silent.

    An agent that was restarted knows none of them.
    """
    found: dict[str, list[MetricsReport | LogReport]] = defaultdict(list)
    for report in agent.reports():
        theirs = found[report.worker]  # an empty report says that the worker has answered
        theirs += [report] if isinstance(report, LogReport) or report.metrics else []
    silent = {}
    for name, worker in workers.items():
        if agent.answers.silent_s < LONGEST_LOOK_S:  # else nobody knows what they do
            worker.look()
        if name in found:
            worker.heard(found[name])
            worker.named_at_s = min(worker.named_at_s, NAME_EVERY_S)
        elif worker.answers.silent_s >= worker.named_at_s:
            worker.named_at_s += NAME_EVERY_S
            silent[name] = worker.actor.actor, MetricsReport(0.0, name, {})
    if silent:
        agent.actor.begin("add", silent)
    return [report for theirs in found.values() for report in theirs]


class WorkerGroup:
    """The workers of one kind. `Kind.restart` decides what the loss of one ends.

    `spawn` starts the process of an index on a node; further arguments are those of `start`.
    """

    def __init__(self, kind: Kind, spawn: Callable[..., RemoteActor]) -> None:
        self.kind = kind
        self.wanted = kind.count
        """How many workers there should be."""
        self.workers: dict[str, Worker] = {}
        """The workers by name, without those that have not started or are lost."""
        self._newest: dict[str, RemoteActor] = {}
        """The newest process of each name, which may be lost."""
        self._leaving: dict[str, Future[list[MetricsReport | LogReport]]] = {}
        """The pending last reports of those that are to end, by name."""
        self._spawn = spawn

    @property
    def actors(self) -> list[RemoteActor]:
        """The newest process of each name. A checkpoint asks all of them, so that it fails while one is lost."""
        return list(self._newest.values())

    @property
    def complete(self) -> bool:
        """Whether every wanted worker has been started, and none is still restarting."""
        return len(self.workers) >= self.wanted and all(worker.restart is None for worker in self.workers.values())

    def start(self, index: int, node: Node, **parts: Any) -> Worker:
        """Starts the worker of an index on a node, in the place of a lost one; returns before it is built."""
        name = self.kind.names[index]
        if name in self._newest:
            self._newest[name].kill()
        actor = self._newest[name] = self._spawn(self.kind, index, node, **parts)
        worker = self.workers[name] = Worker(actor, metric=self.kind.work, silence_limit=self.kind.silence_limit)
        if self.kind.restart == "alone":
            worker.work = actor.begin("run")
        return worker

    def restart(self, index: int, node: Node, **parts: Any) -> None:
        """Starts a lost worker again."""
        worker = self.start(index, node, **parts)
        worker.restart = worker.actor.begin("ready")

    def missing(self, limit: int, may_start: Callable[[str], bool]) -> list[int]:
        """The indices of as many workers as lack of `limit`, or of those wanted, which are not there and may start."""
        present, lack = self.workers.keys() | self._leaving.keys(), min(self.wanted, limit) - len(self.workers)
        absent = (index for index, name in enumerate(self.kind.names) if name not in present and may_start(name))
        return list(islice(absent, max(0, lack)))

    def fit(self) -> dict[str, list[MetricsReport | LogReport]]:
        """Lets workers beyond the wanted number end, first those on the nodes with the fewest; never waits for them.

        Returns the last reports of those that have ended since, by name.
        """
        running = self.running
        names = sorted(self.workers, key=lambda name: running[self.workers[name].actor.node or ""])
        for name in names[: max(0, len(names) - self.wanted)]:
            self._leaving[name] = in_thread("leave", partial(end, [self.workers.pop(name)], STOP_TIMEOUT_S))
        left = {name: self._leaving.pop(name).result() for name in list(self._leaving) if self._leaving[name].done()}
        for name in left:
            self._newest[name].kill()
        return left

    @property
    def running(self) -> Counter[str]:
        """How many workers there are on each node, by its id."""
        return Counter(worker.actor.node for worker in self.workers.values() if worker.actor.node is not None)

    def remove_ended(self) -> list[tuple[RemoteActor, Exception]]:
        """Removes the workers that have ended or were silent for too long; returns each with what ended it."""
        works = Call.done_of(worker.work for worker in self.workers.values() if worker.work is not None)
        found = [
            (worker.actor, worker.ended())
            for worker in self.workers.values()
            if worker.check_silence() or worker.failure or worker.restart or worker.work in works
        ]
        ended = [(actor, error) for actor, error in found if error is not None]
        for actor, _ in ended:
            del self.workers[actor.name]
            # One with contents may still serve them until its successor starts.
            if self.kind.restart == "alone":
                actor.kill()
        return ended

    def await_ready(self) -> None:
        """Waits until all workers are built; raises the first error that kept one from it."""
        late = list(self.workers)
        calls = [(worker, worker.actor.begin("ready")) for worker in self.workers.values()]
        for worker, call in as_done(calls, BUILD_TIMEOUT_S):
            call.result(ANSWER_TIMEOUT_S)
            late.remove(worker.actor.name)
        if late:
            raise ClusterError(
                f"waited {BUILD_TIMEOUT_S:.0f} s for {', '.join(late)} to be built; they may be overloaded, hang, or "
                "be without a node that has room for them"
            )

    def kill(self) -> None:
        """Ends all workers at once, the first one last: the others of a learner would report that it is silent."""
        for actor in reversed(self._newest.values()):
            actor.kill()
        self.workers, self._newest = {}, {}  # new ones: a save under way has a copy of the group with the old ones


def as_done(calls: Iterable[tuple[Worker, Call]], timeout_s: float) -> Iterator[tuple[Worker, Call]]:
    """Yields each call when it is done, until all are or the time is over.

    Waiting for one after the other would hide the error of a later worker.
    """
    deadline, pending = time.monotonic() + timeout_s, list(calls)
    while True:
        done = Call.done_of(call for _, call in pending)
        yield from (found for found in pending if found[1] in done)
        pending = [found for found in pending if found[1] not in done]
        if not pending or time.monotonic() >= deadline:
            return
        time.sleep(POLL_S)


def last_reports(workers: Sequence[Worker], timeout_s: float = ANSWER_TIMEOUT_S) -> list[MetricsReport | LogReport]:
    """The last reports of workers that have stopped; waits at most `timeout_s` for all of them together."""
    deadline = time.monotonic() + timeout_s
    asked = [worker for worker in workers if worker.failure is None]
    drains = [(worker, [*filter(None, [worker.drain]), worker.actor.begin("drain")]) for worker in asked]
    reports: list[MetricsReport | LogReport] = []
    for worker, calls in drains:
        try:
            for call in calls:
                reports += call.result(max(0.0, deadline - time.monotonic()))
        except Exception as failure:
            log.warning("the last reports of %s are lost", worker.actor.name, exc_info=failure)
    return reports


def end(workers: Sequence[Worker], timeout_s: float) -> list[MetricsReport | LogReport]:
    """Asks workers to end their work, waits at most `timeout_s` for that, and returns their last reports."""
    for worker in workers:
        worker.actor.begin("stop")
    list(as_done([(worker, worker.work) for worker in workers if worker.work], timeout_s))
    for worker in workers:
        worker.ended()
        if worker.failure is not None:
            log.warning("%s failed before it was to end", worker.actor.name, exc_info=worker.failure)
    return last_reports(workers)


class RunFailed(PodzeroError, RuntimeError):
    """The run cannot continue; the message says which worker failed, why, and what to do."""

    exit_code = TRY_AGAIN


class WouldFailAgain(RunFailed):
    """The run cannot continue, and would fail in the same way if it were resumed as it is."""

    exit_code = PodzeroError.exit_code


class LearnerFailed(PodzeroError, RuntimeError):
    """The learner failed, or its process died although its node did not; its cause is what a host raised."""

    reports: Sequence[MetricsReport | LogReport] = ()
    """The last ones of host 0, if it still answers."""


class LearnerGroup(WorkerGroup):
    """The learner's hosts, rank 0 first, which start, train and save together; the loss of one is the loss of all."""

    _advance: Call | None = None
    """The pending `advance` of host 0."""
    _loss: Future[Any] | None = None
    """The pending answer to why a host failed."""

    @property
    def leader(self) -> Worker:
        """The worker of host 0, which decides, publishes and reports."""
        return self.workers[self.kind.names[0]]

    def await_ready(self) -> None:
        """Waits until all hosts have built their learners; raises the first error, or the loss of a node behind it."""
        try:
            super().await_ready()
        except NodeLost:
            raise
        except WorkerDied as death:  # which the loss of another host may have caused
            _dead([(worker, worker.actor.begin("ready")) for worker in self.workers.values()], death)
            raise

    def built(self) -> bool:
        """Whether all hosts of a learner that starts again are built; raises what keeps one from that."""
        for worker in self.workers.values():
            worker.check_silence()
            if (failure := worker.ended()) is not None:
                raise failure
        return self.complete

    def begin(self) -> None:
        """Starts training."""
        self._loss = None
        for worker in self.workers.values():
            worker.work = worker.actor.begin("run")

    @property
    def working(self) -> bool:
        """Whether all hosts train; False before that, and once host 0 has ended its work without an error.

        Raises `NodeLost` if a host is gone with its node, `LearnerFailed` if one failed or hangs, once it is known why.
        """
        for worker in self.workers.values():
            if worker.check_silence():
                raise LearnerFailed(str(worker.failure)) from worker.failure
            if self._loss is None and worker.work is not None and worker.work.done:
                self._check(worker, worker.work)
        if self._loss is not None:
            return not self._loss.done() or bool(self._loss.result())
        return bool(self.workers) and self.leader.work is not None and not self.leader.work.done

    @property
    def can_save(self) -> bool:
        """Whether all hosts train, so that the state that they would save is whole."""
        works = [worker.work for worker in self.workers.values()]
        return bool(works) and all(work is not None and not work.done for work in works)

    def advance(self, share: float) -> None:
        """Tells host 0 what share of the run's minutes and games has passed (`Progress.tell`); never waits for it."""
        if self.workers and (self._advance is None or self._advance.done):
            self._advance = self.leader.actor.begin("advance", share)

    def checkpoint(self, folder: Path) -> int:
        """Saves the state at the end of the dispatch under way; returns its step once all hosts have written."""
        saves = [actor.begin("checkpoint", folder, CHECKPOINT_TIMEOUT_S) for actor in self.actors]
        # A host raises its own error first, which says more than that it did not answer.
        deadline = time.monotonic() + CHECKPOINT_TIMEOUT_S + ANSWER_TIMEOUT_S
        steps = {int(save.result(max(0.0, deadline - time.monotonic()))) for save in saves}
        assert len(steps) == 1, f"the hosts saved different steps: {steps}"
        return steps.pop()

    def stop(self) -> list[MetricsReport | LogReport]:
        """Ends training on all hosts, which still answer afterwards; returns their last reports."""
        if not self.workers:
            return []
        self.leader.actor.ask("stop", timeout_s=STOP_TIMEOUT_S)
        for worker in self.workers.values():
            if worker.work is not None:
                try:
                    worker.work.result(4 * STOP_TIMEOUT_S)
                except (ClusterError, WorkerDied):
                    raise
                except Exception as failure:
                    raise ClusterError(f"{worker.actor.name} failed while it ended: {described(failure)}") from failure
        return last_reports(list(self.workers.values()))

    def _check(self, worker: Worker, work: Call) -> None:
        """Lets a thread find out why a host's work ended with an error, if it did."""
        failure = work.exception(ANSWER_TIMEOUT_S)
        if isinstance(failure, NodeLost):
            raise failure
        if failure is not None:
            # Those that answer live, so that the search is over once Ray knows of the others.
            others = [(other, other.actor.begin("ready")) for other in self.workers.values() if other is not worker]
            self._loss = in_thread("loss", partial(self._explain, worker, failure, others))

    def _explain(self, worker: Worker, failure: Exception, others: Sequence[tuple[Worker, Call]]) -> None:
        """Raises why a host failed: the loss of another one, or its own error."""
        dead = _dead(others, failure)
        if isinstance(failure, WorkerDied):
            dead.insert(0, failure)
        failed = LearnerFailed("; ".join(map(str, dead)) or f"{worker.actor.name} failed: {failure}")
        with suppress(Exception):
            failed.reports = self.leader.actor.ask("drain", timeout_s=ANSWER_TIMEOUT_S)
        raise failed from failure


def _dead(calls: Sequence[tuple[Worker, Call]], failure: Exception) -> list[WorkerDied]:
    """Finds the hosts whose processes died, which may be why another host failed; raises the loss of a node at once."""
    dead = list[WorkerDied]()
    for worker, call in as_done(calls, BLAME_TIMEOUT_S):
        another = call.exception(ANSWER_TIMEOUT_S)
        if isinstance(another, NodeLost):
            raise another from failure
        if isinstance(another, WorkerDied):
            dead.append(another)
        elif another is not None:  # an error of the program, like that of the first host
            log.warning("%s failed as well", worker.actor.name, exc_info=another)
    return dead
