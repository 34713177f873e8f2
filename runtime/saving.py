"""Decides when checkpoints and snapshots are due, and writes them in a thread of the driver."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from podzero.config import Experiment
from podzero.core.waiting import doubled
from podzero.files.storage import StorageError
from podzero.files.workdir import Workdir
from podzero.runtime.checkpoints import (
    SHARD_TIMEOUT_S,
    Checkpoint,
    age_s,
    amend,
    delete_old_snapshots,
    newest_checkpoint,
    write_checkpoint,
)
from podzero.runtime.cluster.remote import RemoteActor
from podzero.runtime.monitoring.status import duration
from podzero.runtime.workers import ANSWER_TIMEOUT_S, LearnerGroup

log = logging.getLogger(__name__)

MOST_CHECKPOINTS = 2
"""Checkpoints that are stored; older ones are deleted."""
NEWEST_SNAPSHOTS = 20
"""The newest snapshots that are stored, in addition to those that ratings need."""
FIRST_SNAPSHOT_S = 30.0
"""Time between two attempts to write the first snapshot, which needs trained parameters."""
RETRY_S = 60.0
"""Time from the first failed checkpoint to the next attempt; it doubles, up to `checkpoint.every_minutes`."""
SAME_NOTICE_S = 10.0
"""A checkpoint that began so shortly before a notice is the one that it asks for."""
FINISH_TIMEOUT_S = SHARD_TIMEOUT_S + 120.0
"""Longest wait for a write that has begun."""


class SaveState(NamedTuple):
    """A checkpoint's contents and the processes that write it: all that the thread reads of the driver's state."""

    learner: LearnerGroup
    shards: tuple[RemoteActor, ...]
    evaluator: RemoteActor | None
    counters: Mapping[str, float]
    ladder: Mapping[str, Any]
    """The rating ladder to use if the evaluator does not answer."""


class Saved(NamedTuple):
    """The result of a finished write."""

    snapshot_step: int
    """The step of the newest snapshot; 0 or less until the parameters have been trained."""
    ladder: Mapping[str, Any]


class Saver:
    """Writes checkpoints and snapshots when they are due, one at a time, by default in a thread."""

    def __init__(self, experiment: Experiment, workdir: Workdir, executor: Executor | None = None) -> None:
        self.newest: int | None = None
        """The step of the newest checkpoint; None before the first one."""
        self._experiment = experiment
        self._workdir = workdir
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="saver")
        self._write: Future[Saved] | None = None
        self._writes_checkpoint = False
        self.begin()

    def begin(self, checkpoint: Checkpoint | None = None) -> None:
        """Restarts the intervals after the workers have started from `checkpoint`."""
        now = time.monotonic()
        self._began_at, self._write_began = -math.inf, now
        self.newest = checkpoint.step if checkpoint else None
        self._newest_began = now - age_s(checkpoint) if checkpoint else now
        """Monotonic time at which the newest checkpoint was begun; without one, the start of the run."""
        self._failed = 0
        self._checkpoint_due = now + 60 * self._experiment.checkpoint.every_minutes
        self._snapshot_due = now + FIRST_SNAPSHOT_S

    def request_checkpoint(self) -> None:
        """Makes a checkpoint due at once, unless one has just begun: the processes of a node all announce its end."""
        now = time.monotonic()
        if now - self._began_at > SAME_NOTICE_S:
            self._checkpoint_due = now

    def metrics(self) -> dict[str, float]:
        """The newest checkpoint's age and step, the failed attempts since, and for how long one has been written."""
        step = {} if self.newest is None else {"checkpoint/step": float(self.newest)}
        now, writes = time.monotonic(), self._write is not None and self._writes_checkpoint
        return step | {
            "checkpoint/age_s": now - self._newest_began,
            "checkpoint/failed_saves": float(self._failed),
            "checkpoint/saving_s": now - self._write_began if writes else 0.0,
        }

    @property
    def due(self) -> bool:
        """Whether `start` would begin a write."""
        return self._write is None and time.monotonic() >= min(self._checkpoint_due, self._snapshot_due)

    def start(self, state: SaveState) -> None:
        """Begins the write that is due; call it when `due` is true."""
        now = self._write_began = time.monotonic()
        self._writes_checkpoint = now >= self._checkpoint_due
        if self._writes_checkpoint:
            self._checkpoint_due = now + 60 * self._experiment.checkpoint.every_minutes
            self._began_at = now
        else:
            self._snapshot_due = now + 60 * self._experiment.evaluation.every_minutes
        write = self.write_checkpoint if self._writes_checkpoint else self._write_snapshot
        self._write = self._executor.submit(write, state)

    def finished(self) -> Saved | None:
        """The result of a write that has finished since the last call; failures are logged."""
        if self._write is None or not self._write.done():
            return None
        write, self._write = self._write, None
        if failure := write.exception():
            self._warn(failure)
            return None
        saved = write.result()
        if saved.snapshot_step <= 0:
            self._snapshot_due = time.monotonic() + FIRST_SNAPSHOT_S
        return saved

    def wait(self) -> None:
        """Waits for the write under way, if any, and drops its result."""
        if self._write is None:
            return
        if wait([self._write], FINISH_TIMEOUT_S).not_done:
            log.error("the checkpoint or snapshot that was being written is not complete after %g s", FINISH_TIMEOUT_S)
            self._write = None
        self.finished()

    def write_checkpoint(self, state: SaveState) -> Saved:
        """Writes a checkpoint, and a snapshot of the newest acting parameters."""
        began = time.monotonic()
        ladder = _newest_ladder(state)
        learner, shards, counters = state.learner.checkpoint, state.shards, state.counters
        step = write_checkpoint(self._workdir, learner, shards, counters, ladder, MOST_CHECKPOINTS)
        self.newest, self._newest_began, self._failed = step, began, 0
        log.info("checkpoint of step %d written", step)
        try:
            # Without the evaluator, which has just given its ladder.
            return self._write_snapshot(state._replace(ladder=ladder, evaluator=None))
        except Exception as failure:  # the checkpoint is complete
            log.warning("the snapshot after the checkpoint of step %d was not written", step, exc_info=failure)
            return Saved(0, ladder)

    def amend(self, state: SaveState) -> None:
        """Writes the counters and the newest ratings into the newest checkpoint; a failure is logged."""
        try:
            if (checkpoint := newest_checkpoint(self._workdir)) is not None:
                amend(checkpoint, state.counters, _newest_ladder(state))
        except (OSError, StorageError) as failure:
            log.warning("the newest ratings are not in the newest checkpoint", exc_info=failure)

    def write_last(self, state: SaveState, timeout_s: float) -> None:
        """Writes a checkpoint after the write under way, if any."""
        write = self._executor.submit(self.write_checkpoint, state)
        if wait([write], timeout_s).not_done:
            raise TimeoutError(f"it was not complete within {timeout_s:g} s")
        write.result()

    def close(self) -> None:
        """Drops the writes that have not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _warn(self, failure: BaseException) -> None:
        """Logs a failed write; a failed checkpoint is retried soon, and is an error from the second in a row on."""
        if not self._writes_checkpoint:
            log.warning("a snapshot was not written; training goes on", exc_info=failure)
            return
        self._failed += 1
        pause_s = doubled(RETRY_S, self._failed, 60 * self._experiment.checkpoint.every_minutes)
        self._checkpoint_due = min(self._checkpoint_due, time.monotonic() + pause_s)
        log.log(
            logging.WARNING if self._failed == 1 else logging.ERROR,
            "no checkpoint could be written, attempt %d since the newest one: if the run ended now, the last %s would "
            "be lost. Training goes on; next attempt in %g s",
            self._failed,
            duration(time.monotonic() - self._newest_began),
            pause_s,
            exc_info=failure,
        )

    def _write_snapshot(self, state: SaveState) -> Saved:
        step = int(state.learner.leader.actor.ask("snapshot"))
        ladder = _newest_ladder(state)
        delete_old_snapshots(self._workdir.snapshots, NEWEST_SNAPSHOTS, ladder)
        return Saved(step, ladder)


def _newest_ladder(state: SaveState) -> Mapping[str, Any]:
    """The evaluator's rating ladder; the last known one if it does not answer."""
    ladder = state.ladder
    if state.evaluator is not None:
        try:
            ladder = state.evaluator.ask("ladder", timeout_s=ANSWER_TIMEOUT_S)
        except Exception as failure:
            log.warning("the evaluator did not give its newest ratings", exc_info=failure)
    return ladder
