"""The learner's processes, one on each host: started together, saved together, ended together."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from podzero.cluster.remote import STOP_TIMEOUT_S, ClusterError, NodeLost, WorkerDied
from podzero.driver.worker import ANSWER_TIMEOUT_S, Worker
from podzero.errors import PodzeroError
from podzero.monitoring.reports import LogReport, MetricsReport

log = logging.getLogger(__name__)

SAVE_TIMEOUT_S = 600.0
BLAME_TIMEOUT_S = 60.0
"""How long to look for the host whose loss made others fail: Ray takes 15 s to give a machine up."""
_LOOK_S = 0.2


class RunFailed(PodzeroError, RuntimeError):
    """The run cannot go on; the message says who failed, why, and what to do."""


class LearnerGroup:
    """All hosts of the learner, rank 0 first."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = list(workers)

    @property
    def leader(self) -> Worker:
        """Host 0, which decides, publishes and reports."""
        return self.workers[0]

    def begin(self) -> None:
        """Starts training."""
        for worker in self.workers:
            worker.work = worker.actor.begin("run")

    @property
    def working(self) -> bool:
        """Whether all hosts are at work; False once host 0 has ended as it should.

        Raises:
          NodeLost: a host is gone with its machine.
          RunFailed: a host failed.
        """
        for worker in self.workers:
            if worker.work is not None and worker.work.done:
                self._check(worker)
        work = self.leader.work
        return work is not None and not work.done

    def checkpoint(self, folder: Path) -> int:
        """Saves the state of the next dispatch boundary; returns its step once all hosts have written their parts.

        Raises:
          ClusterError, WorkerDied: a host did not answer.
        """
        saves = [worker.actor.begin("checkpoint", folder) for worker in self.workers]
        steps = {int(save.result(SAVE_TIMEOUT_S)) for save in saves}
        assert len(steps) == 1, f"the hosts saved different steps: {steps}"
        return steps.pop()

    def stop(self) -> list[MetricsReport | LogReport]:
        """Ends training on all hosts, which still answer afterwards; returns their last words.

        Raises:
          ClusterError: they did not end in time, or failed on the way.
          WorkerDied: one is gone.
        """
        self.leader.actor.ask("stop", timeout_s=STOP_TIMEOUT_S)
        for worker in self.workers:
            if worker.work is not None:
                _await(worker)
        return [item for worker in self.workers for item in worker.last_words()]

    def kill(self) -> None:
        """Ends all hosts without ceremony, host 0 last: the others would complain about its silence."""
        for worker in reversed(self.workers):
            worker.actor.kill()

    def _check(self, worker: Worker) -> None:
        """Raises what ended a host's work; where it was the loss of another host, that."""
        assert worker.work is not None
        try:
            worker.work.result(ANSWER_TIMEOUT_S)
        except NodeLost:
            raise
        except Exception as failure:
            gone = self._gone(besides=worker)
            for loss in gone:
                if isinstance(loss, NodeLost):
                    raise loss from failure
            if isinstance(failure, WorkerDied):
                gone.insert(0, failure)
            words = "; ".join(map(str, gone)) or f"the {worker.actor.name} failed: {failure}"
            raise RunFailed(words) from failure

    def _gone(self, besides: Worker) -> list[WorkerDied]:
        """The hosts whose processes are gone, which may be why another one failed; ends at the first lost machine."""
        until = time.monotonic() + BLAME_TIMEOUT_S
        others, gone = [worker for worker in self.workers if worker is not besides], list[WorkerDied]()
        while others and time.monotonic() < until:
            for worker in [other for other in others if other.work and other.work.done]:
                others.remove(worker)
                assert worker.work is not None
                try:
                    worker.work.result(ANSWER_TIMEOUT_S)
                except WorkerDied as loss:
                    gone.append(loss)
                    if isinstance(loss, NodeLost):
                        return gone
                except Exception as failure:  # it failed as the first one did
                    log.warning("%s failed as well: %s", worker.actor.name, failure)
            time.sleep(_LOOK_S)
        return gone


def _await(worker: Worker) -> None:
    """Waits for the end of a host's work."""
    assert worker.work is not None
    try:
        worker.work.result(4 * STOP_TIMEOUT_S)
    except (ClusterError, WorkerDied):
        raise
    except Exception as failure:  # of any kind that a program has
        raise ClusterError(f"the {worker.actor.name} failed while it ended: {failure}") from failure
