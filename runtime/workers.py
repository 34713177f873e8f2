"""The driver's view of processes: one worker, a group of one kind, all replay shards, all learner hosts."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from podzero.core.errors import TRY_AGAIN, ClusterError, PodzeroError, described
from podzero.runtime.checkpoints import SavedShard
from podzero.runtime.cluster.placement import Node, actor_places
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S, STOP_TIMEOUT_S, Call, NodeLost, RemoteActor, WorkerDied
from podzero.runtime.monitoring.reports import LogReport, MetricsReport
from podzero.runtime.program import Kind, Patience

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 20.0
"""Longest wait for a short answer of a worker that may be compiling."""
CHECKPOINT_TIMEOUT_S = 600.0
"""Longest time for a host to reach the end of its dispatch and to write its part of a checkpoint."""
BLAME_TIMEOUT_S = 60.0
"""How long to look for the lost host that made another one fail: Ray takes 15 s to declare a node dead."""
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
        """Marks the worker as failed if it has been silent for too long."""
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
    """The workers of one kind: as many as are wanted, if nodes have room for them.

    Args:
      kind: the row of the program's table.
      spawn: starts the process of an index on a node.
    """

    def __init__(self, kind: Kind, spawn: Callable[[Kind, int, Node], Worker]) -> None:
        self.kind = kind
        self.wanted = kind.count
        """How many workers there should be; they take the first names."""
        self.workers: dict[str, Worker] = {}
        """The workers by name, without those for which no node has room yet."""
        self._spawn = spawn

    @property
    def complete(self) -> bool:
        """Whether every wanted worker has been started."""
        return len(self.workers) >= self.wanted

    @property
    def missing_cpus(self) -> list[float]:
        """The CPUs of each wanted worker that has not started."""
        return [self.kind.cpus] * max(0, self.wanted - len(self.workers))

    def could_run_on(self, node: Node) -> bool:
        """Whether a worker would fit on the node if nothing else ran there."""
        has, needed = node.resources, self.kind.resources
        return node.cpus >= self.kind.cpus and all(has.get(name, 0.0) >= amount for name, amount in needed.items())

    def scale(
        self,
        nodes: Sequence[Node],
        taken: Mapping[str, float],
        may_start: Callable[[str], bool],
        limit: int,
    ) -> dict[str, Node]:
        """Starts the missing workers for which nodes have room.

        Args:
          nodes: the nodes on which workers may start.
          taken: the CPUs that the run already uses, by node id.
          may_start: whether the worker with this name may start now.
          limit: considers only the first `limit` workers.

        Returns:
          the node of each started worker, by the worker's name.
        """
        wanted = self.kind.names[: min(self.wanted, limit)]
        absent = [index for index, name in enumerate(wanted) if name not in self.workers and may_start(name)]
        started = {}
        running = Counter(worker.actor.node for worker in self.workers.values() if worker.actor.node is not None)
        places = actor_places(nodes, taken, self.kind.cpus, len(absent), self.kind.resources, running)
        for index, node in zip(absent, places, strict=False):
            worker = self.workers[wanted[index]] = self._spawn(self.kind, index, node)
            worker.work = worker.actor.begin("run")
            started[wanted[index]] = node
        return started

    def remove_ended(self) -> dict[str, WorkerEnd]:
        """Removes the workers that have ended or were silent for too long; returns how each ended, by name."""
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
        time.sleep(POLL_S)


def await_answers(calls: Sequence[tuple[Worker, Call]], timeout_s: float) -> list[Any]:
    """Waits for calls to several workers; returns the answers in order."""
    deadline = time.monotonic() + timeout_s
    answers: dict[int, Any] = {}
    while True:
        # All calls are polled: waiting for one after the other would hide the error of a later worker.
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
        time.sleep(POLL_S)


def last_reports(workers: Sequence[Worker], timeout_s: float = ANSWER_TIMEOUT_S) -> list[MetricsReport | LogReport]:
    """The last reports of workers that have stopped; waits at most `timeout_s` for all of them together."""
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


class _Restart(NamedTuple):
    """A restart of a shard that is under way."""

    ready: Call
    node: Node
    deadline: float
    """Monotonic time by which the shard must listen."""


class ReplayShards:
    """All replay shards. One that dies is restarted; its users find the new address in the directory.

    Args:
      spawn: starts the shard of an index on a node, with the first of the given contents that is whole.
    """

    def __init__(self, spawn: Callable[[int, Node, Sequence[SavedShard]], Worker]) -> None:
        self._spawn = spawn
        self.workers: list[Worker] = []
        self._restarts: dict[int, _Restart] = {}

    @property
    def actors(self) -> list[RemoteActor]:
        """The shards' remote actors, some of which may still be starting."""
        return [worker.actor for worker in self.workers]

    def start(self, nodes: Sequence[Node], contents: Sequence[Sequence[SavedShard]]) -> None:
        """Starts one shard on each of `nodes`, with the first of its `contents` that is whole; returns at once."""
        places = enumerate(zip(nodes, contents, strict=True))
        self.workers = [self._spawn(index, node, found) for index, (node, found) in places]

    def await_ready(self) -> None:
        """Waits until all shards listen."""
        await_answers([(worker, worker.actor.begin("ready")) for worker in self.workers], BUILD_TIMEOUT_S)

    @property
    def complete(self) -> bool:
        """Whether no shard is known to have failed or is being restarted."""
        return not self._restarts and not self.lost()

    def lost(self) -> list[tuple[int, Exception]]:
        """The index of each shard that failed, and why it failed."""
        return [(index, end) for index, worker in enumerate(self.workers) if (end := worker.ended()) is not None]

    def replace(self, index: int, nodes: Sequence[Node], contents: Sequence[SavedShard]) -> bool:
        """Restarts a lost shard on the node with the fewest shards; returns False if `nodes` is empty.

        Args:
          index: the index of the shard.
          nodes: the nodes on which shards may start.
          contents: the shard's contents in each checkpoint, newest first; it takes the first that is whole, or none.
        """
        if not nodes:
            return False
        crowded = Counter(worker.actor.node for other, worker in enumerate(self.workers) if other != index)
        self._restart(index, min(nodes, key=lambda node: (crowded[node.id], -node.cpus, node.id)), contents)
        return True

    def check_restarts(self) -> None:
        """Checks shards that are being restarted: one that failed, or does not listen in time, is `lost` again."""
        for index, restart in list(self._restarts.items()):
            if restart.ready.done:
                del self._restarts[index]
                try:
                    restart.ready.result(ANSWER_TIMEOUT_S)
                except Exception as failure:
                    self.workers[index].failure = failure
            elif time.monotonic() >= restart.deadline:
                del self._restarts[index]
                self.workers[index].failure = ClusterError(
                    f"replay-{index} has not listened for {BUILD_TIMEOUT_S:.0f} s since it was restarted on "
                    f"{restart.node}: is the node overloaded, or without the CPUs or memory that it reserves "
                    "(replay.cpus, replay.memory_gib)?"
                )

    def kill(self) -> None:
        """Ends all shards at once."""
        for worker in self.workers:
            worker.actor.kill()
        self.workers, self._restarts = [], {}

    def _restart(self, index: int, node: Node, contents: Sequence[SavedShard]) -> None:
        held = f"the contents of {contents[0].folder}" if contents else "no contents"
        log.warning("replay-%d restarts on %s with %s", index, node, held)
        self.workers[index].actor.kill()
        self.workers[index] = self._spawn(index, node, contents)
        ready = self.workers[index].actor.begin("ready")
        self._restarts[index] = _Restart(ready, node, time.monotonic() + BUILD_TIMEOUT_S)


class RunFailed(PodzeroError, RuntimeError):
    """The run cannot continue; the message says which worker failed, why, and what to do."""

    exit_code = TRY_AGAIN


class WouldFailAgain(RunFailed):
    """The run cannot continue, and would fail in the same way if it were resumed as it is."""

    exit_code = PodzeroError.exit_code


class LearnerFailed(PodzeroError, RuntimeError):
    """The learner failed, or its process died although its node did not; its cause is what a host raised."""


class LearnerGroup:
    """The workers of all learner hosts, rank 0 first."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = list(workers)
        self._advance: Call | None = None

    @property
    def leader(self) -> Worker:
        """The worker of host 0, which decides, publishes and reports."""
        return self.workers[0]

    def await_ready(self) -> None:
        """Waits until all hosts have built their learners."""
        calls = [(worker, worker.actor.begin("ready")) for worker in self.workers]
        try:
            await_answers(calls, BUILD_TIMEOUT_S)
        except NodeLost:
            raise
        except WorkerDied as death:  # which the loss of another host may have caused
            for loss in _dead(calls):
                if isinstance(loss, NodeLost):
                    raise loss from death
            raise

    def begin(self) -> None:
        """Starts training."""
        for worker in self.workers:
            worker.work = worker.actor.begin("run")

    @property
    def working(self) -> bool:
        """Whether all hosts train; False once host 0 has ended its work without an error.

        Raises:
          NodeLost: a host is gone with its node.
          LearnerFailed: a host failed.
        """
        for worker in self.workers:
            if worker.work is not None and worker.work.done:
                self._check(worker)
        work = self.leader.work
        return work is not None and not work.done

    @property
    def can_save(self) -> bool:
        """Whether all hosts train, so that the state that they would save is whole."""
        return all(worker.work is not None and not worker.work.done for worker in self.workers)

    def advance(self, share: float) -> None:
        """Tells host 0 what share of the run's minutes and games has passed (`Progress.tell`); never waits for it."""
        if self._advance is None or self._advance.done:
            self._advance = self.leader.actor.begin("advance", share)

    def checkpoint(self, folder: Path) -> int:
        """Saves the state at the end of the dispatch under way; returns its step once all hosts have written."""
        saves = [worker.actor.begin("checkpoint", folder, CHECKPOINT_TIMEOUT_S) for worker in self.workers]
        # A host raises its own error first, which says more than that it did not answer.
        deadline = time.monotonic() + CHECKPOINT_TIMEOUT_S + ANSWER_TIMEOUT_S
        steps = {int(save.result(max(0.0, deadline - time.monotonic()))) for save in saves}
        assert len(steps) == 1, f"the hosts saved different steps: {steps}"
        return steps.pop()

    def stop(self) -> list[MetricsReport | LogReport]:
        """Ends training on all hosts, which still answer afterwards; returns their last reports."""
        self.leader.actor.ask("stop", timeout_s=STOP_TIMEOUT_S)
        for worker in self.workers:
            if worker.work is not None:
                _await_host(worker)
        return last_reports(self.workers)

    def kill(self) -> None:
        """Ends all hosts at once, host 0 last: the others would report that it is silent."""
        for worker in reversed(self.workers):
            worker.actor.kill()

    def _check(self, worker: Worker) -> None:
        """Raises the error that ended a host's work; if another host's loss caused it, raises that loss."""
        assert worker.work is not None
        try:
            worker.work.result(ANSWER_TIMEOUT_S)
        except NodeLost:
            raise
        except Exception as failure:
            dead = _dead([(other, other.work) for other in self.workers if other is not worker and other.work])
            for loss in dead:
                if isinstance(loss, NodeLost):
                    raise loss from failure
            if isinstance(failure, WorkerDied):
                dead.insert(0, failure)
            reason = "; ".join(map(str, dead)) or f"{worker.actor.name} failed: {failure}"
            raise LearnerFailed(reason) from failure


def _dead(calls: Sequence[tuple[Worker, Call]]) -> list[WorkerDied]:
    """Finds the hosts whose processes died, since that may be why another host failed; a lost node ends the search."""
    deadline = time.monotonic() + BLAME_TIMEOUT_S
    pending, dead = list(calls), list[WorkerDied]()
    while pending and time.monotonic() < deadline:
        for worker, call in [found for found in pending if found[1].done]:
            pending.remove((worker, call))
            try:
                call.result(ANSWER_TIMEOUT_S)
            except WorkerDied as loss:
                dead.append(loss)
                if isinstance(loss, NodeLost):
                    return dead
            except Exception as failure:  # an error of the program, like that of the first host
                log.warning("%s failed as well", worker.actor.name, exc_info=failure)
        time.sleep(POLL_S)
    return dead


def _await_host(worker: Worker) -> None:
    """Waits for the end of a host's work."""
    assert worker.work is not None
    try:
        worker.work.result(4 * STOP_TIMEOUT_S)
    except (ClusterError, WorkerDied):
        raise
    except Exception as failure:
        raise ClusterError(f"{worker.actor.name} failed while it ended: {described(failure)}") from failure
