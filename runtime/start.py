"""Starts workers from the newest usable checkpoint: all of them, or a lost learner; says how to resume a failed run."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial

from podzero.config import Experiment
from podzero.core.errors import PodzeroError, described
from podzero.core.waiting import Wait, in_thread
from podzero.files.directory_lock import TakenOver
from podzero.files.storage import StorageError
from podzero.files.workdir import Workdir, WorkdirError, keep_as, step_folder, step_folders
from podzero.runtime.checkpoints import (
    Checkpoint,
    RunFileDamaged,
    anew,
    checkpoints,
    delete_unfinished,
    seen_checkpoints,
    set_aside,
)
from podzero.runtime.cluster.placement import HeldByOthers, MissingNodes
from podzero.runtime.failures import RestartPolicy
from podzero.runtime.supervisor import LOOK_EVERY_S, STORAGE_PATIENCE_S, Supervisor
from podzero.runtime.workers import RunFailed

log = logging.getLogger(__name__)

SMALLER = 3.0
"""After a divergence, the advice divides the learning rate by this."""


class NoUsableCheckpoint(WorkdirError):
    """All checkpoints of a run are damaged. A run never starts over at step 0 without being asked to."""


class Resumption:
    """Finds the checkpoint to start from: that of `step`, or else the newest usable one.

    `seen` is the step of one that this process knows of. Nothing is renamed before `settle`.
    """

    def __init__(self, workdir: Workdir, step: int | None = None, seen: int | None = None) -> None:
        """Raises `StorageError` if checkpoints that exist are not seen."""
        self._workdir = workdir
        self._step = step
        self._present = checkpoints(workdir) if step is not None else seen_checkpoints(workdir, seen)
        self._damaged: list[tuple[Checkpoint, Exception]] = []

    def newest(self) -> Checkpoint | None:
        """The newest one that is not known to be damaged; None in a directory that never had any.

        Raises:
          NoUsableCheckpoint: all checkpoints are damaged, or the one of `step` is damaged or missing.
          StorageError: it cannot be read now.
        """
        damaged = {checkpoint.step for checkpoint, _ in self._damaged}
        for checkpoint in self._present:
            if checkpoint.step not in damaged and self._step in (None, checkpoint.step):
                try:
                    checkpoint.check()
                except RunFileDamaged as damage:
                    self.reject(checkpoint, damage)
                else:
                    return checkpoint
        if self._step is not None:
            raise _not_this_one(self._workdir, self._step, self._damaged)
        if self._damaged:
            raise _none_usable(self._workdir, self._damaged)
        return None

    def reject(self, checkpoint: Checkpoint | None, error: Exception) -> bool:
        """Counts the checkpoint as damaged if the error of a start from it says so; returns whether it does."""
        from podzero.learner import CheckpointDamaged  # slow, and only needed after an error

        if checkpoint is None or not isinstance(error, (CheckpointDamaged, RunFileDamaged)):
            return False
        log.warning("the checkpoint of step %d is damaged", checkpoint.step, exc_info=error)
        self._damaged.append((checkpoint, error))
        return True

    def settle(self, checkpoint: Checkpoint | None) -> None:
        """Renames damaged checkpoints, and checkpoints and snapshots of later steps; workers have started from this.

        Raises `StorageError` if others have appeared meanwhile, before anything is renamed.
        """
        step, known = checkpoint.step if checkpoint else -1, {found.step for found in self._present}
        later = [found for found in checkpoints(self._workdir) if found.step > step]
        if new := [found.folder for found in later if found.step not in known]:
            raise StorageError(
                f"{new[0]} appeared while the workers started from an older state: the storage shows its files "
                "late. Give the same command again, to resume from that checkpoint"
            )
        for damaged, reason in self._damaged:
            set_aside(damaged, reason)
        for found in later:
            if found.folder.exists():  # not one of those set aside
                log.warning("the later checkpoint is kept as %s", keep_as(found.folder, "lost"))
        # The resumed run writes these steps again, and the evaluator would take the old ones for the newest.
        for snapshot in step_folders(self._workdir.snapshots):
            if snapshot > step:
                keep_as(step_folder(self._workdir.snapshots, snapshot), "lost")


def start_workers(
    supervisor: Supervisor, workdir: Workdir, step: int | None = None, seen: int | None = None
) -> Checkpoint | None:
    """Starts all workers; returns the checkpoint that they started from, None in a directory that never had any.

    Which one that is, and what is renamed, says `Resumption`, whose errors this raises as well, and those of
    `Supervisor.start`; nothing is renamed then.
    """
    delete_unfinished(workdir)
    resumption = Resumption(workdir, step, seen)
    while True:
        checkpoint = resumption.newest()
        try:
            supervisor.start(checkpoint)
            break
        except Exception as error:
            if not resumption.reject(checkpoint, error):
                raise
    try:
        resumption.settle(checkpoint)
    except BaseException:
        supervisor.kill()
        raise
    if checkpoint is not None:
        log.info("resumed from the checkpoint of step %d", checkpoint.step)
    return checkpoint


@dataclass(eq=False)
class LearnerRestart:
    """A restart of a lost learner from its newest usable checkpoint, while all other workers go on.

    The driver's loop calls `advance` until the learner trains again; threads read and rename checkpoints meanwhile.

    Attributes:
      seen: the step of a checkpoint that this process knows of.
      confirm: raises `TakenOver` if this process may no longer work in the directory.
      go_back: is told from which checkpoint the learner starts, before each attempt.
      next_at: monotonic time of the next attempt.
    """

    supervisor: Supervisor
    workdir: Workdir
    seen: int | None
    confirm: Callable[[], None]
    go_back: Callable[[Checkpoint | None], None]
    next_at: float
    _policy: RestartPolicy = field(default_factory=RestartPolicy)
    _nodes_wait: Wait = field(default_factory=Wait)
    _resumption: Resumption | None = None
    _checkpoint: Checkpoint | None = None
    _attempt: Generator[bool] | None = None

    def advance(self) -> bool:
        """Takes the next step, if it is time; returns whether the learner trains again. Waits for nobody.

        Raises `HeldByOthers` if all workers have to start anew, and what `RestartPolicy` does not try again.
        """
        try:
            if self._attempt is None and time.monotonic() >= self.next_at:
                self._attempt = self._try()
            return self._attempt is not None and next(self._attempt, True)
        except (HeldByOthers, TakenOver):
            raise
        except MissingNodes as missing:
            self._attempt = None
            self.supervisor.paid.enter("wait_nodes", time.monotonic())
            self.next_at = time.monotonic() + LOOK_EVERY_S
            if self._nodes_wait.message_due():
                log.warning("the learner has waited %s for nodes to join: %s", self._nodes_wait, missing)
        except Exception as failure:
            self._attempt = None
            self.supervisor.drop_learner()
            if self._resumption is not None and self._resumption.reject(self._checkpoint, failure):
                return False
            pause_s = self._policy.pause_s(failure)
            self.next_at = time.monotonic() + pause_s
            log.warning("the learner could not start; next attempt in %g s", pause_s, exc_info=failure)
        return False

    def _try(self) -> Generator[bool]:
        """One attempt; yields False whenever it has to wait."""
        self._resumption, self._checkpoint = yield from _answer(self._find)
        self.go_back(self._checkpoint)
        self.supervisor.restart_learner(self._checkpoint, self._nodes_wait.seconds)
        while not self.supervisor.learner_built():
            yield False
        # Before it trains, and can write a checkpoint of a step that is to be renamed.
        yield from _answer(partial(self._resumption.settle, self._checkpoint))
        self.supervisor.train()

    def _find(self) -> tuple[Resumption, Checkpoint | None]:
        self.confirm()  # since checkpoints may be renamed
        resumption = self._resumption or Resumption(self.workdir, seen=self.seen)
        return resumption, resumption.newest()


def _answer[Found](work: Callable[[], Found]) -> Generator[bool, None, Found]:
    """What a thread finds out or does on storage, which may hang; yields False until then."""
    answer = in_thread("checkpoints", work, STORAGE_PATIENCE_S)
    while not answer.done():
        yield False
    return answer.result()


def _not_this_one(workdir: Workdir, step: int, damaged: list[tuple[Checkpoint, Exception]]) -> NoUsableCheckpoint:
    others = [found.step for found in checkpoints(workdir) if found.step != step]
    listed = f"there are others of steps {', '.join(map(str, others))}" if others else "there is no other"
    reason = f"is damaged: {damaged[0][1]}" if damaged else "does not exist"
    again = f"{workdir.root}@{others[0]}" if others else str(workdir.root)
    return NoUsableCheckpoint(
        f"the checkpoint of step {step} in {workdir.root} {reason}; {listed}, and nothing was renamed. Resume from "
        f"another one, for example: podzero train {shlex.quote(again)}"
    )


def _none_usable(workdir: Workdir, damaged: list[tuple[Checkpoint, Exception]]) -> NoUsableCheckpoint:
    listed = "\n".join(f"  {checkpoint.folder}: {error}" for checkpoint, error in damaged)
    return NoUsableCheckpoint(
        f"no checkpoint of {workdir.root} can be used:\n{listed}\n"
        "The run does not begin again at step 0 by itself, and nothing was renamed. Restore one of these folders from "
        f"a copy and give the same command again, or begin in a new directory: podzero train {anew(workdir)}"
    )


class LastCheckpointFailed(PodzeroError, RuntimeError):
    """A run has ended without its last checkpoint: the steps since the newest one are lost."""

    exit_code = 3


def last_checkpoint_failed(reason: str, failure: Exception, workdir: Workdir) -> LastCheckpointFailed:
    """The error of a run that ended for `reason` and could not write its last checkpoint; says what to do."""
    return LastCheckpointFailed(
        f"the run has ended ({reason}), but its last checkpoint could not be written: {described(failure)}. What "
        f"came after the newest one is lost.\n{_next_command(workdir)}\nOn a cluster, add the --address of this run. "
        f"Log: {workdir.log_file}"
    )


def with_advice(failure: RunFailed, experiment: Experiment, workdir: Workdir) -> RunFailed:
    """Adds to a run's failure the command that resumes the run."""
    from podzero.learner import TrainingDiverged  # slow, and only needed after a failure

    cause: BaseException | None = failure
    while cause is not None and not isinstance(cause, TrainingDiverged):
        cause = cause.__cause__
    rate = f"learner.optimizer.learning_rate={experiment.learner.optimizer.learning_rate / SMALLER:.2g}"
    advice = _next_command(workdir) if cause is None else _next_command(workdir, cause.step, rate)
    return type(failure)(f"{failure}\n{advice}\nOn a cluster, add the --address of this run. Log: {workdir.log_file}")


def _next_command(workdir: Workdir, diverged: int | None = None, rate: str = "") -> str:
    """The command that resumes a run; after a divergence with `rate`, the setting of a smaller learning rate."""
    try:
        whole = [found.step for found in seen_checkpoints(workdir) if found.fault is None]
    except StorageError as unseen:
        return str(unseen)
    root = str(workdir.root)
    if diverged is None:
        what = f"Resume from the checkpoint of step {whole[0]:,}" if whole else "Start again without a checkpoint"
        return f"{what}: podzero train {shlex.quote(root)}"
    if not whole:
        return f"There is no checkpoint. Start again with a smaller learning rate: podzero train {anew(workdir)} {rate}"
    # All steps after `diverged` were skipped, and left the weights of later checkpoints as they were.
    good = next((step for step in whole if step <= diverged), whole[-1])
    where = shlex.quote(f"{root}@{good}")
    return f"Resume from the checkpoint of step {good:,} with a smaller learning rate: podzero train {where} {rate}"
