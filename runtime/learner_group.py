"""The learner's processes, one on each host: they start, save and end together."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from podzero.errors import ClusterError, PodzeroError
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S, STOP_TIMEOUT_S, Call, NodeLost, WorkerDied
from podzero.runtime.monitoring.reports import LogReport, MetricsReport
from podzero.runtime.worker import ANSWER_TIMEOUT_S, Worker, await_answers, last_reports

log = logging.getLogger(__name__)

CHECKPOINT_TIMEOUT_S = 600.0
"""Longest time for a host to reach the end of its dispatch and to write its part of a checkpoint."""
BLAME_TIMEOUT_S = 60.0
"""How long to look for the lost host that made another one fail: Ray takes 15 s to declare a node dead."""
POLL_S = 0.2


class RunFailed(PodzeroError, RuntimeError):
    """The run cannot go on; the message says which worker failed, why, and what to do."""


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
        """Waits until all hosts have built their learners.

        Raises:
          NodeLost: a host is gone with its node.
          Exception: whatever kept a host from building its learner; the first such error of any.
        """
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
        """Saves the state at the end of the dispatch under way; returns its step once all hosts have written.

        Raises:
          ClusterError, WorkerDied: a host did not answer.
          TimeoutError: a host did not write its part within `CHECKPOINT_TIMEOUT_S`.
        """
        saves = [worker.actor.begin("checkpoint", folder, CHECKPOINT_TIMEOUT_S) for worker in self.workers]
        # A host raises its own error first, which says more than that it did not answer.
        deadline = time.monotonic() + CHECKPOINT_TIMEOUT_S + ANSWER_TIMEOUT_S
        steps = {int(save.result(max(0.0, deadline - time.monotonic()))) for save in saves}
        assert len(steps) == 1, f"the hosts saved different steps: {steps}"
        return steps.pop()

    def stop(self) -> list[MetricsReport | LogReport]:
        """Ends training on all hosts, which still answer afterwards; returns their last reports.

        Raises:
          ClusterError: the hosts did not end in time, or failed while they ended.
          WorkerDied: a host is gone.
        """
        self.leader.actor.ask("stop", timeout_s=STOP_TIMEOUT_S)
        for worker in self.workers:
            if worker.work is not None:
                _await_end(worker)
        return last_reports(self.workers)

    def kill(self) -> None:
        """Ends all hosts at once, host 0 last: the others would report that it is silent."""
        for worker in reversed(self.workers):
            worker.actor.kill()

    def _check(self, worker: Worker) -> None:
        """Raises what ended the work of a host; if that was the loss of another host, raises the loss."""
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
    """The hosts among these whose processes died, which may be why a host failed; returns early on a lost node."""
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


def _await_end(worker: Worker) -> None:
    """Waits for the end of a host's work."""
    assert worker.work is not None
    try:
        worker.work.result(4 * STOP_TIMEOUT_S)
    except (ClusterError, WorkerDied):
        raise
    except Exception as failure:
        raise ClusterError(f"{worker.actor.name} failed while it ended: {failure}") from failure
