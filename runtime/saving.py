"""Decides when checkpoints and snapshots are due, and writes them in threads of the driver."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any, Literal, NamedTuple

from podzero.config import Experiment
from podzero.core.waiting import doubled
from podzero.files.storage import StorageError
from podzero.files.workdir import Workdir
from podzero.runtime import checkpoints
from podzero.runtime.checkpoints import SHARD_TIMEOUT_S, Checkpoint
from podzero.runtime.cluster.remote import RemoteActor
from podzero.runtime.monitoring.status import duration
from podzero.runtime.workers import ANSWER_TIMEOUT_S, LearnerGroup

log = logging.getLogger(__name__)

MOST_CHECKPOINTS = 2
"""Checkpoints that are stored, and so many with replay; older ones are deleted."""
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
    step: int = -1
    """The learner's newest step that is known."""
    learning: bool = True
    """Whether the learner can be saved; else replay's contents are added to its newest checkpoint."""


Write = Literal["learner", "replay", "snapshot"]


class Saver:
    """Writes checkpoints of the learner and snapshots in one thread, and replay's contents, which take longer, beside.

    Every `checkpoint.every_minutes` replay's contents follow a checkpoint of the learner, and are added to it.
    """

    def __init__(self, experiment: Experiment, workdir: Workdir, executor: Executor | None = None) -> None:
        """Writes into a working directory, by default in threads of its own."""
        self.confirm: Callable[[], None] = lambda: None
        """Raises if this process may no longer write there."""
        self._experiment = experiment
        self._workdir = workdir
        self._executor = executor or ThreadPoolExecutor(2, thread_name_prefix="saver")
        self._writes: dict[Write, Future[Any]] = {}
        """The writes under way: of replay's contents, and beside it of learner or snapshot."""
        self._follows: SaveState | None = None
        """What replay's contents are to be written with once the learner's write has ended, if they are to follow."""
        self._adding = -1
        """The step of the checkpoint to which replay is being added."""
        self.begin()

    def begin(self, checkpoint: Checkpoint | None = None) -> None:
        """Restarts the intervals after the workers have started from `checkpoint`."""
        now, config = time.monotonic(), self._experiment.checkpoint
        self._write_began: dict[Write, float] = {}
        """Monotonic time at which the write under way of each was begun."""
        self.newest = checkpoint.step if checkpoint else None
        """The step of the newest checkpoint."""
        self.ladder: Mapping[str, Any] = checkpoint.ladder if checkpoint else {}
        """The last known rating ladder."""
        since = now - checkpoints.age_s(checkpoint) if checkpoint else now
        self._begun: dict[Write, float] = {"learner": since, "replay": since}
        """Monotonic time at which the newest save of each was begun; without one, the start of the run."""
        self._failed: Counter[Write] = Counter()
        """The failures since then."""
        self._every_s = 60 * config.every_minutes
        self._learner_every_s = 60 * min(config.learner_minutes, config.every_minutes)
        self._checkpoint_due, self._learner_due = now + self._every_s, now + self._learner_every_s
        self._snapshot_due = now + FIRST_SNAPSHOT_S

    def request_checkpoint(self) -> None:
        """Makes a checkpoint with replay due, unless one has just begun: a node's processes all announce its end.

        While replay is still being written, the learner is saved at once, and replay again afterwards.
        """
        now = time.monotonic()
        if now - self._write_began.get("replay", -math.inf) > SAME_NOTICE_S:
            self._checkpoint_due = self._learner_due = now

    def metrics(self) -> dict[str, float]:
        """The newest checkpoint's age and step, the failed attempts since, and for how long one has been written."""
        step = {} if self.newest is None else {"checkpoint/step": float(self.newest)}
        now = time.monotonic()
        saving = [now - self._write_began[what] for what in self._writes if what != "snapshot"]
        return step | {
            "checkpoint/age_s": now - self._begun["learner"],
            "checkpoint/failed_saves": float(max(self._failed.values(), default=0)),
            "checkpoint/saving_s": max(saving, default=0.0),
        }

    @property
    def writes_learner(self) -> bool:
        """Whether a checkpoint of the learner or a snapshot is being written."""
        return bool(self._writes.keys() - {"replay"})

    @property
    def due(self) -> bool:
        """Whether `start` would begin a write."""
        now = time.monotonic()
        due = self._replay_due(now) or now >= min(self._learner_due, self._snapshot_due)
        return due and not self.writes_learner

    def _replay_due(self, now: float) -> bool:
        return now >= self._checkpoint_due and "replay" not in self._writes

    def start(self, state: SaveState) -> None:
        """Begins the write that is due; call it when `due` is true."""
        now = time.monotonic()
        with_replay = self._replay_due(now) and (state.learning or self.newest is not None)
        self._follows = state if with_replay else None
        if with_replay:
            self._checkpoint_due, self._write_began["replay"] = now + self._every_s, now
        if not state.learning:
            self._add_replay()
            return
        saved = state.step == self.newest  # the learner waits, and has this state
        if saved and not with_replay and now >= self._learner_due:
            self._learner_due, self._begun["learner"] = now + self._learner_every_s, now
        if with_replay or now >= self._learner_due:
            self._learner_due, self._write_began["learner"] = now + self._learner_every_s, now
            self._writes["learner"] = self._executor.submit(self._write_learner, state, with_replay)
        elif now >= self._snapshot_due:
            self._snapshot_due = now + 60 * self._experiment.evaluation.every_minutes
            self._writes["snapshot"] = self._executor.submit(self._write_snapshot, state)

    def finished(self) -> int | None:
        """What a write of learner or snapshot has returned since the last call, the step of the newest snapshot, which
        is 0 or less until the parameters have been trained, and without a snapshot; None if none has ended.

        Failures are logged. The write of replay's contents may follow it.
        """
        step: int | None = None
        for what in [what for what, write in self._writes.items() if write.done()]:
            write = self._writes.pop(what)
            if what == "replay":
                self._adding = -1
            if failure := write.exception():
                self._warn(failure, what)
            elif what != "replay":
                step = write.result()
                self._add_replay()
        return step

    def _add_replay(self) -> None:
        """Begins to write replay's contents, if they are to follow, into the newest checkpoint."""
        if self._follows is not None and self.newest is not None:
            self._adding = self.newest
            self._writes["replay"] = self._executor.submit(self._write_replay, self._follows, self.newest)

    def wait(self) -> None:
        """Waits for the writes under way, if any, and drops their results."""
        self._follows = None
        if wait(self._writes.values(), FINISH_TIMEOUT_S).not_done:
            log.error("the checkpoint or snapshot that was being written is not complete after %g s", FINISH_TIMEOUT_S)
        self.finished()
        self._writes.clear()

    def write_checkpoint(self, state: SaveState) -> int:
        """Writes a checkpoint with replay, and a snapshot of the newest acting parameters; returns its step."""
        step = self._write_learner(state, with_replay=True) if state.learning else 0
        if self.newest is not None:
            self._write_replay(state, self.newest)
        return step

    def amend(self, state: SaveState) -> None:
        """Writes the counters and the newest ratings into the newest checkpoint; a failure is logged."""
        try:
            if (checkpoint := checkpoints.newest_checkpoint(self._workdir)) is not None:
                checkpoints.amend(checkpoint, state.counters, self._newest_ladder(state))
        except (OSError, StorageError) as failure:
            log.warning("the newest ratings are not in the newest checkpoint", exc_info=failure)

    def write_last(self, state: SaveState, timeout_s: float) -> None:
        """Writes a checkpoint after the writes under way, if any."""
        deadline = time.monotonic() + timeout_s
        wait(self._writes.values(), timeout_s)
        write = self._executor.submit(self.write_checkpoint, state)
        if wait([write], max(0.0, deadline - time.monotonic())).not_done:
            raise TimeoutError(f"it was not complete within {timeout_s:g} s")
        write.result()

    def close(self) -> None:
        """Drops the writes that have not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _warn(self, failure: BaseException, what: Write) -> None:
        """Logs a failed write; a failed save is retried soon, and is an error from the second in a row on."""
        if what == "snapshot":
            log.warning("a snapshot was not written; training goes on", exc_info=failure)
            return
        self._failed[what] += 1
        now, pause_s = time.monotonic(), doubled(RETRY_S, self._failed[what], self._every_s)
        if what == "learner":
            self._learner_due = now + pause_s
        if what == "replay" or self._follows is not None:
            self._checkpoint_due = min(self._checkpoint_due, now + pause_s)
        log.log(
            logging.WARNING if self._failed[what] == 1 else logging.ERROR,
            "no checkpoint of %s could be written, attempt %d since the newest one: if the run ended now, the last %s "
            "would be lost. Training goes on; next attempt in %g s",
            what,
            self._failed[what],
            duration(now - self._begun[what]),
            pause_s,
            exc_info=failure,
        )

    def _write_learner(self, state: SaveState, with_replay: bool) -> int:
        """Writes a checkpoint of the learner, and with replay, which is added later, a snapshot; returns its step."""
        # The evaluator may be compiling for long, so it is not asked each minute.
        ladder = self._newest_ladder(state) if with_replay else self.ladder
        began, has_replay = time.monotonic(), bool(state.shards)
        step = checkpoints.write_learner(
            self._workdir, state.learner.checkpoint, state.counters, ladder, has_replay, self.confirm
        )
        self.newest, self._begun["learner"], self._failed["learner"] = step, began, 0
        checkpoints.delete_old(self._workdir, MOST_CHECKPOINTS, self._adding)
        if not with_replay:
            return 0
        log.info("checkpoint of step %d written", step)
        try:
            # Without the evaluator, which has just given its ladder.
            return self._write_snapshot(state._replace(evaluator=None))
        except Exception as failure:  # the checkpoint is complete
            log.warning("the snapshot after the checkpoint of step %d was not written", step, exc_info=failure)
            return 0

    def _write_replay(self, state: SaveState, step: int) -> None:
        if not state.shards:
            self.amend(state)
            return
        began = time.monotonic()
        ladder = self._newest_ladder(state)
        checkpoints.add_replay(self._workdir, step, state.shards, state.counters, ladder, self.confirm)
        self._begun["replay"], self._failed["replay"] = began, 0
        log.info("replay's contents are added to the checkpoint of step %d", step)
        checkpoints.delete_old(self._workdir, MOST_CHECKPOINTS, self._adding)

    def _write_snapshot(self, state: SaveState) -> int:
        step = int(state.learner.leader.actor.ask("snapshot"))
        if step <= 0:
            self._snapshot_due = time.monotonic() + FIRST_SNAPSHOT_S
        best, ladder = int(state.counters.get("best_step", -1)), self._newest_ladder(state)
        checkpoints.delete_old_snapshots(self._workdir.snapshots, NEWEST_SNAPSHOTS, ladder, best)
        return step

    def _newest_ladder(self, state: SaveState) -> Mapping[str, Any]:
        """The evaluator's rating ladder; the last known one if it does not answer."""
        if state.evaluator is not None:
            try:
                self.ladder = state.evaluator.ask("ladder", timeout_s=ANSWER_TIMEOUT_S)
            except Exception as failure:
                log.warning("the evaluator did not give its newest ratings, and the last known are saved: %s", failure)
        return self.ladder
