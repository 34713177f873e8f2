"""Starts a run's workers from its newest usable checkpoint; tells the user how to resume a failed run."""

from __future__ import annotations

import logging
import shlex

from podzero.config import Experiment
from podzero.core.errors import PodzeroError, described
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
from podzero.runtime.supervisor import Supervisor
from podzero.runtime.workers import RunFailed

log = logging.getLogger(__name__)

SMALLER = 3.0
"""After a divergence, the advice divides the learning rate by this."""


class NoUsableCheckpoint(WorkdirError):
    """All checkpoints of a run are damaged. A run never starts over at step 0 without being asked to."""


def start_workers(
    supervisor: Supervisor, workdir: Workdir, step: int | None = None, seen: int | None = None
) -> Checkpoint | None:
    """Starts the workers; returns the checkpoint that they started from, None in a directory that never had any.

    It is that of `step`, or else the newest usable one; `seen` is the step of one that this process knows of. Damaged
    checkpoints, and the checkpoints and snapshots of later steps, are renamed once the workers have started.

    Raises:
      NoUsableCheckpoint: all checkpoints are damaged, or the one of `step` is damaged or missing.
      StorageError: checkpoints that exist are not seen, or only after others had been chosen.
      After these, and after any other error of `Supervisor.start`, nothing is renamed.
    """
    delete_unfinished(workdir)
    damaged: list[tuple[Checkpoint, Exception]] = []
    present = checkpoints(workdir) if step is not None else seen_checkpoints(workdir, seen)
    for checkpoint in present if step is None else [found for found in present if found.step == step]:
        try:
            if checkpoint.fault is not None:
                raise checkpoint.fault
            supervisor.start(checkpoint)
        except Exception as error:
            from podzero.learner import CheckpointDamaged  # slow, and only needed after an error

            if not isinstance(error, (CheckpointDamaged, RunFileDamaged)):
                raise
            log.warning("the checkpoint of step %d is damaged", checkpoint.step, exc_info=error)
            damaged.append((checkpoint, error))
        else:
            _set_aside_later(supervisor, workdir, checkpoint.step, damaged, present)
            log.info("resumed from the checkpoint of step %d", checkpoint.step)
            return checkpoint
    if step is not None:
        raise _not_this_one(workdir, step, damaged)
    if damaged:
        raise _none_usable(workdir, damaged)
    supervisor.start(None)
    _set_aside_later(supervisor, workdir, -1, [], [])
    return None


def _set_aside_later(
    supervisor: Supervisor,
    workdir: Workdir,
    step: int,
    damaged: list[tuple[Checkpoint, Exception]],
    present: list[Checkpoint],
) -> None:
    """Renames checkpoints and snapshots later than `step`, where the workers started; kills them if that fails."""
    try:
        known = {found.step for found in present}
        new = [found.folder for found in checkpoints(workdir) if found.step > step and found.step not in known]
        if new:
            raise StorageError(
                f"{new[0]} appeared while the workers started from an older state: the storage shows its files "
                "late. Give the same command again, to resume from that checkpoint"
            )
        for checkpoint, reason in damaged:
            set_aside(checkpoint, reason)
        # Repeated: a checkpoint that was to be replaced is found once the newer one of its step has another name.
        while later := [found for found in checkpoints(workdir) if found.step > step]:
            for checkpoint in later:
                log.warning("the later checkpoint is kept as %s", keep_as(checkpoint.folder, "lost"))
        # The resumed run writes these steps again, and the evaluator would take the old ones for the newest.
        for snapshot in step_folders(workdir.snapshots):
            if snapshot > step:
                keep_as(step_folder(workdir.snapshots, snapshot), "lost")
    except BaseException:
        supervisor.kill()
        raise


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
    """The command that resumes a run; after a divergence with `rate`, the setting of a smaller learning rate.

    All steps after `diverged` were skipped. Later checkpoints have the weights of this step, since skipped steps leave
    them as they are.
    """
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
    good = next((step for step in whole if step <= diverged), whole[-1])
    where = shlex.quote(f"{root}@{good}")
    return f"Resume from the checkpoint of step {good:,} with a smaller learning rate: podzero train {where} {rate}"
