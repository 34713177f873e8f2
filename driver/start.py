"""Starts the workers of a run from its newest checkpoint that can be used."""

from __future__ import annotations

import logging

from podzero.driver.checkpoints import Checkpoint, checkpoints, set_aside
from podzero.driver.snapshots import set_aside_later
from podzero.driver.supervisor import Supervisor
from podzero.workdir import Workdir

log = logging.getLogger(__name__)


def start_workers(supervisor: Supervisor, workdir: Workdir) -> Checkpoint | None:
    """Starts the workers; returns the checkpoint that they started from.

    Damaged checkpoints and the snapshots of lost steps are renamed.
    """
    for checkpoint in checkpoints(workdir):
        set_aside_later(workdir.snapshots, checkpoint.step)
        try:
            supervisor.start(checkpoint)
        except Exception as error:
            if not _is_damage(error):
                raise
            set_aside(checkpoint, error)
        else:
            log.info("resumed from the checkpoint of step %d", checkpoint.step)
            return checkpoint
    set_aside_later(workdir.snapshots, -1)
    supervisor.start(None)
    return None


def _is_damage(error: Exception) -> bool:
    """Whether an error means that a checkpoint is damaged. Its imports are slow and only needed after an error."""
    from podzero.learner import CheckpointDamaged
    from podzero.replay import ReplayRestoreError

    return isinstance(error, (CheckpointDamaged, ReplayRestoreError))
