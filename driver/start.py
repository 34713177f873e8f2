"""Starts the workers of a run from its newest savepoint that can be used."""

from __future__ import annotations

import logging

from podzero.driver.savepoints import Savepoint, savepoints, set_aside
from podzero.driver.snapshots import set_aside_later
from podzero.driver.supervisor import Supervisor
from podzero.workdir import Workdir

log = logging.getLogger(__name__)


def start_workers(supervisor: Supervisor, workdir: Workdir) -> Savepoint | None:
    """Starts the workers; returns the savepoint that they started from.

    Damaged savepoints and the snapshots of lost steps are renamed.
    """
    for savepoint in savepoints(workdir):
        set_aside_later(workdir.snapshots, savepoint.step)
        try:
            supervisor.start(savepoint)
        except Exception as error:
            if not _is_damage(error):
                raise
            set_aside(savepoint, error)
        else:
            log.info("resumed from the savepoint of step %d", savepoint.step)
            return savepoint
    set_aside_later(workdir.snapshots, -1)
    supervisor.start(None)
    return None


def _is_damage(error: Exception) -> bool:
    """Whether an error means that a savepoint is damaged. Its imports are slow and only needed after an error."""
    from podzero.learner import CheckpointDamaged
    from podzero.replay import ReplayRestoreError

    return isinstance(error, (CheckpointDamaged, ReplayRestoreError))
