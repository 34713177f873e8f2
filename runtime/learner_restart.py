"""Restarts a lost learner from its newest usable checkpoint, while all other workers go on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from podzero.core.waiting import Wait
from podzero.files.directory_lock import TakenOver
from podzero.files.workdir import Workdir
from podzero.runtime.checkpoints import Checkpoint
from podzero.runtime.cluster.placement import HeldByOthers, MissingNodes
from podzero.runtime.failures import RestartPolicy
from podzero.runtime.start import Resumption, is_damage
from podzero.runtime.supervisor import LOOK_EVERY_S, Supervisor

log = logging.getLogger(__name__)


@dataclass(eq=False)
class LearnerRestart:
    """One restart. The driver's loop calls `advance` until the learner trains again.

    Attributes:
      seen: the step of a checkpoint that this process knows of.
      go_back: is told from which checkpoint the learner starts, before each attempt.
      next_at: monotonic time of the next attempt.
    """

    supervisor: Supervisor
    workdir: Workdir
    seen: int | None
    go_back: Callable[[Checkpoint | None], None]
    next_at: float
    _policy: RestartPolicy = field(default_factory=RestartPolicy)
    _nodes_wait: Wait = field(default_factory=Wait)
    _resumption: Resumption | None = None
    _checkpoint: Checkpoint | None = None
    _building: bool = False

    def advance(self) -> bool:
        """Takes the next step, if it is time; returns whether the learner trains again. Does not wait for nodes.

        Raises `HeldByOthers` if all workers have to start anew, and what `RestartPolicy` does not try again.
        """
        try:
            if self._building and self._resumption is not None:
                if built := self.supervisor.learner_built():
                    self._resumption.settle(self._checkpoint)
                return built
            if time.monotonic() >= self.next_at:
                self._begin()
        except (HeldByOthers, TakenOver):
            raise
        except MissingNodes as missing:
            self.supervisor.paid.enter("wait_nodes", time.monotonic())
            self.next_at = time.monotonic() + LOOK_EVERY_S
            if self._nodes_wait.message_due():
                log.warning("the learner has waited %s for nodes to join: %s", self._nodes_wait, missing)
        except Exception as failure:
            self._building = False
            self.supervisor.drop_learner()
            if self._resumption is not None and self._checkpoint is not None and is_damage(failure):
                self._resumption.reject(self._checkpoint, failure)
                return False
            pause_s = self._policy.pause_s(failure)
            self.next_at = time.monotonic() + pause_s
            log.warning("the learner could not start; next attempt in %g s", pause_s, exc_info=failure)
        return False

    def _begin(self) -> None:
        if self._resumption is None:
            self._resumption = Resumption(self.workdir, seen=self.seen)
        self._checkpoint = self._resumption.newest()
        self.go_back(self._checkpoint)
        self.supervisor.restart_learner(self._checkpoint, self._nodes_wait.seconds)
        self._building = True
