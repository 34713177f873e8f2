"""The driver's loop: fetches reports, replaces failed workers, saves, shows the status, and ends the run."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial

from podzero.config import Experiment
from podzero.core.errors import PodzeroError, described
from podzero.files.directory_lock import GONE_AFTER_S, TakenOver
from podzero.files.workdir import Workdir
from podzero.runtime.checkpoints import Checkpoint, seen_checkpoints
from podzero.runtime.cluster.placement import HeldByOthers
from podzero.runtime.cluster.remote import NodeLost, WorkerDied
from podzero.runtime.failures import LearnerFailures, RestartPolicy
from podzero.runtime.monitoring.background import Background
from podzero.runtime.monitoring.metrics import MetricsLog, WriteAttempts
from podzero.runtime.monitoring.monitor import Demand, Monitor
from podzero.runtime.monitoring.reports import LogReport, MetricsReport, PreemptionNotice, log_report
from podzero.runtime.monitoring.status import Phase, RunStatus, write_status
from podzero.runtime.monitoring.view import TerminalView
from podzero.runtime.monitoring.writers import MetricsWriter
from podzero.runtime.saving import Saver, SaveState
from podzero.runtime.start import LearnerRestart, last_checkpoint_failed, start_workers, with_advice
from podzero.runtime.stopping import StopSignals
from podzero.runtime.supervisor import Supervisor
from podzero.runtime.tracing import Tracer
from podzero.runtime.workers import ANSWER_TIMEOUT_S, LearnerFailed, RunFailed, last_reports

log = logging.getLogger(__name__)

TICK_S = 0.5
"""Pause between two rounds of the loop."""
STATUS_EVERY_S = 2.0
"""Time between two writes of `status.json`."""
LAST_SAVE_TIMEOUT_S = 1800.0
"""Longest time for the last checkpoint of a run that fails, and for the write under way before it."""
FILES_TIMEOUT_S = 8.0
"""Longest wait until status and metrics are written, before the last checkpoint and at the end."""
PHASE_TIMEOUT_S = 2.0
"""Longest wait until the status of a new phase is written."""
MOST_REPORTS = 20_000
"""Most reports that wait for storage; beyond that the oldest are dropped."""
STOPPED = "stopped by a signal"


class Run:
    """A run whose workers have started; `check_held` raises `TakenOver` once another process works in the directory."""

    def __init__(
        self,
        experiment: Experiment,
        workdir: Workdir,
        supervisor: Supervisor,
        view: TerminalView,
        saver: Saver,
        writers: Sequence[MetricsWriter] = (),
        check_held: Callable[[], None] = lambda: None,
        watch: Callable[[RunStatus], None] = lambda status: None,
    ) -> None:
        self._experiment, self._workdir, self._supervisor = experiment, workdir, supervisor
        self._view, self._saver, self._writers = view, saver, writers
        self._check_held, self._watch, self._paid = check_held, watch, supervisor.paid
        self._attempt_write = WriteAttempts()
        self._files = Background(check_held)
        self._tracer = Tracer(workdir)
        self._metrics: MetricsLog | None = None
        self._reports: deque[tuple[str, dict[str, float], int, float]] = deque(maxlen=MOST_REPORTS)
        """The arguments of `MetricsLog.add` that wait for the thread of `_files`, which alone uses the log."""
        self._learner_failures = LearnerFailures()
        self._demand = Demand(experiment.first_actors, experiment.actor_processes)
        self._restart: LearnerRestart | None = None
        """The restart of a learner that is lost; None while it trains."""

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Prepares for workers that have just started from `checkpoint`."""
        self.close()
        self._restart = None
        counters, self._began_at = (checkpoint.counters, checkpoint.step) if checkpoint else ({}, 0)
        now = time.monotonic()
        self._keep_training(checkpoint)
        self._monitor = Monitor(self._experiment, now, counters, self._began_at, self._paid)
        self._files.put("begin", partial(self._open_metrics, checkpoint.step if checkpoint else -1))
        self._saver.begin(checkpoint)
        self._status_due = time.monotonic()

    def until_end(self, signals: StopSignals) -> str:
        """Runs until a limit is reached or a signal arrives, and writes a last checkpoint; returns why it ended.

        If the run fails, what works is saved as well, replay's contents also without a learner; once another process
        has taken over the directory (`TakenOver`), nothing more is written there.
        """
        try:
            if (reason := self._loop(signals)) is None:
                return self._limit() or STOPPED
            self._stop(reason, signals)
            return reason
        finally:
            with suppress(Exception):  # it must not hide why the run ends
                self._enter("ended")
            self._files.wait(PHASE_TIMEOUT_S)

    def _loop(self, signals: StopSignals) -> str | None:
        """Repeats until the run must end; returns why, or None if there are no workers then."""
        try:
            while True:
                try:
                    while (reason := self._end_reason(signals)) is None:
                        self.handle(self._supervisor.listen())
                        self._tend_learner()
                        self._supervisor.learner.advance(self._monitor.share_passed(time.monotonic()))
                        self._reconcile()
                        self._save()
                        self._files.put("trace", partial(self._tracer.advance, self._supervisor.traceable()))
                        self._judge_demand(self._show())
                        time.sleep(TICK_S)
                except (NodeLost, LearnerFailed) as loss:
                    self._lose_learner(loss)
                except HeldByOthers as held:
                    if not self._recover(held, signals):
                        return None
                else:
                    return reason
        except Exception as failure:
            self._save_what_works(failure)
            if isinstance(failure, RunFailed):
                raise with_advice(failure, self._experiment, self._workdir) from failure
            raise

    def handle(self, reports: Iterable[MetricsReport | LogReport]) -> None:
        """Records the workers' reports."""
        now = time.monotonic()
        nodes_s = self._monitor.nodes_s(now)
        for report in reports:
            if isinstance(report, MetricsReport):
                self._monitor.add(report.worker, report.metrics, now)
                self._reports.append((report.worker, report.metrics, self._monitor.step, nodes_s))
            else:
                log_report(log, report)
                if isinstance(report, PreemptionNotice):
                    self._saver.request_checkpoint()

    def close(self) -> None:
        """Writes the metrics that wait in memory, unless another process has taken over the directory."""
        with suppress(TakenOver):
            self._files.put("close", self._close_metrics)
            self._files.wait(FILES_TIMEOUT_S)

    def _open_metrics(self, step: int, last: int | None = None) -> None:
        if last is not None:  # the last step, from which the run goes back
            self._close_metrics(last)
        self._metrics = MetricsLog(self._workdir, step, self._writers)

    def _write_metrics(self) -> None:
        while self._reports and self._metrics is not None:
            self._metrics.add(*self._reports.popleft())

    def _close_metrics(self, step: int | None = None) -> None:
        self._write_metrics()
        if self._metrics is not None:
            self._metrics.close(self._monitor.step if step is None else step)

    def _lose_learner(self, loss: NodeLost | LearnerFailed) -> None:
        """Ends what is left of a learner, which restarts alone."""
        pause_s = 0.0
        if isinstance(loss, LearnerFailed):
            self.handle(loss.reports)  # they tell the step at which it failed
            step, now = self._monitor.step, time.monotonic()
            pause_s = self._learner_failures.pause_s(loss, self._began_at, step, now)
        when = f"in {pause_s:g} s" if pause_s else "as soon as it has room"
        log.warning("%s\nThe learner restarts from its newest checkpoint %s; all others go on", loss, when)
        self._supervisor.drop_learner()
        self._monitor.lose_learner(time.monotonic())
        next_at, seen = time.monotonic() + pause_s, self._saver.newest
        self._restart = LearnerRestart(self._supervisor, self._workdir, seen, self._check_held, self._go_back, next_at)
        self._show_at_once()

    def _keep_training(self, checkpoint: Checkpoint | None) -> None:
        """Counts what was trained after the checkpoint, from which the learner starts, as lost."""
        kept_s = checkpoint.counters.get("training_s", math.inf) if checkpoint else 0.0
        self._paid.restart(kept_s, time.monotonic())

    def _tend_learner(self) -> None:
        """Takes the next step of the restart of a lost learner."""
        # What is being saved may become the checkpoint to start from; without a learner its part ends soon.
        if self._restart is not None and not self._saver.writes_learner and self._restart.advance():
            self._restart = None
            self._record_restart("learner")

    def _go_back(self, checkpoint: Checkpoint | None) -> None:
        """Continues at the step of the checkpoint from which the learner starts again."""
        step = checkpoint.step if checkpoint else 0
        self._began_at, lost = step, self._monitor.step - step
        self._keep_training(checkpoint)
        if lost > 0:
            log.warning("the learner restarts from step %s: %s steps since are made again", f"{step:,}", f"{lost:,}")
            self._files.put("go back", partial(self._open_metrics, step, self._monitor.step))
        self._monitor.step = step
        self._saver.newest = checkpoint.step if checkpoint else None

    def _recover(self, held: HeldByOthers, signals: StopSignals) -> bool:
        """Restarts all workers from the newest checkpoint once there are enough nodes; False if the run must end."""
        log.warning("%s\nAll workers are stopped. The run resumes from its newest checkpoint", held)
        self._enter("starting")
        self._supervisor.kill()
        self._saver.wait()
        restarts = self._monitor.status(time.monotonic()).restarts + 1
        policy = RestartPolicy()
        while not signals.event.is_set():
            self._check_held()
            try:
                with signals.interrupting():
                    checkpoint = start_workers(self._supervisor, self._workdir, seen=self._saver.newest)
            except Exception as failure:
                pause_s = policy.pause_s(failure)
                log.warning("the workers could not start; next attempt in %g s", pause_s, exc_info=failure)
                self._show_at_once()  # a driver that is killed meanwhile has told what its time went into
                signals.event.wait(pause_s)
            except KeyboardInterrupt:
                continue
            else:
                self.begin(checkpoint)
                now = time.monotonic()
                # The new monitor has the counters of the checkpoint, without the restarts since.
                since_checkpoint = float(restarts - self._monitor.status(now).restarts)
                self._monitor.add("driver", {"count/restarts": since_checkpoint}, now)
                return True
        return False

    def _newest(self) -> Checkpoint | None:
        """The newest checkpoint, whatever its state; None before the first one."""
        return next(iter(seen_checkpoints(self._workdir, self._saver.newest)), None)

    def _reconcile(self) -> None:
        """Replaces workers that have ended, and lets go of actors that are no longer wanted."""
        for name in self._supervisor.reconcile(self._newest):
            self._record_restart(name)
        for name, reports in self._supervisor.actors.fit().items():
            self.handle(reports)
            self._monitor.ended(name, time.monotonic())

    def _record_restart(self, name: str) -> None:
        self.handle([MetricsReport(time.time(), name, {"count/restarts": 1.0})])
        self._monitor.ended(name, time.monotonic())

    def _end_reason(self, signals: StopSignals) -> str | None:
        """Why the run must end; None while it continues."""
        if limit := self._limit():
            return limit
        if signals.event.is_set():
            return STOPPED
        if self._restart is not None or self._supervisor.learner.working:
            return None
        return f"the learner has made all of its {self._experiment.stop.steps or 0:,} steps"

    def _limit(self) -> str | None:
        """The limit that is reached, in words."""
        counters, hours = self._monitor.counters(now := time.monotonic()), self._monitor.nodes_s(now) / 3600
        stop, cost = self._experiment.stop, self._experiment.cluster.cost(hours)
        limit = stop.reached(stop.done(counters, self._monitor.step, hours, cost))
        return None if limit is None else f"{limit} is reached"

    def _save(self) -> None:
        """Applies the result of a finished write, and starts the next one if it is due."""
        if (snapshot := self._saver.finished()) is not None:
            self._supervisor.ladder = dict(self._saver.ladder)
            if snapshot > 0:
                self._supervisor.start_evaluator()
        # Since the last check no other process can have taken over the directory, unless that is long ago.
        held = time.monotonic() - self._files.checked_at < GONE_AFTER_S
        if self._saver.due and held:
            self._saver.start(self._save_state(self._supervisor.learner.can_save))

    def _save_state(self, learning: bool = True) -> SaveState:
        """Copies what a save needs: the saver's thread must not read what this thread changes."""
        supervisor = self._supervisor
        return SaveState(
            learner=copy(supervisor.learner),
            shards=tuple(supervisor.shards.actors),
            evaluator=supervisor.evaluator.actor if supervisor.evaluator else None,
            counters=self._monitor.counters(time.monotonic()),
            step=self._monitor.step,
            learning=learning,
        )

    def _judge_demand(self, status: RunStatus) -> None:
        """Decides by a status how many actors are wanted."""
        actors = self._supervisor.actors
        if self._demand.look(status, len(actors.workers), time.monotonic()):
            log.info("%d actors are wanted from now on: %s", self._demand.wanted, status.bottleneck)
        actors.wanted = self._demand.wanted

    def _show(self) -> RunStatus:
        """Updates the view and, if it is due, `status.json`; returns the status."""
        due = time.monotonic() >= self._status_due
        if due:
            metrics = self._saver.metrics() | self._monitor.metrics(time.monotonic())
            self.handle([MetricsReport(time.time(), "driver", metrics)])
        status = self._monitor.status(time.monotonic(), self._supervisor.silent)
        actors = self._supervisor.actors
        failing = self._supervisor.failures.failing
        status = replace(status, actors=len(actors.workers), actors_wanted=actors.wanted, failing=failing)
        if due:
            self._status_due = time.monotonic() + STATUS_EVERY_S
            self._files.put("metrics", self._write_metrics)
            write = partial(write_status, self._workdir, status)
            self._files.put("status", partial(self._attempt_write, self._workdir.status_file, write))
        self._view.show(status)
        self._watch(status)
        return status

    def _stop(self, reason: str, signals: StopSignals) -> None:
        """Stops actors, then the learner, writes a checkpoint, has the last snapshot judged, and stops the rest.

        Unfinished games are lost, and samples that replay had not confirmed when their actor ended.
        """
        self._enter("stopping")
        if not self._files.wait(FILES_TIMEOUT_S):
            hangs = TimeoutError(f"storage has not answered for {FILES_TIMEOUT_S:g} s")
            raise last_checkpoint_failed(reason, hangs, self._workdir)
        self._saver.wait()
        if self._restart is not None:
            self._supervisor.drop_learner()
        self._paid.enter("idle", time.monotonic())
        learning = self._restart is None
        for stop in (self._supervisor.stop_actors, self._supervisor.stop_learner):
            try:
                self.handle(stop())
            except Exception as failure:  # the checkpoint may still succeed
                log.error("the workers did not stop in order", exc_info=failure)
                # Of a learner that has just died the newest checkpoint is what there is: replay's contents are added.
                learning &= self._saver.newest is None or not isinstance(failure, (WorkerDied, NodeLost))
        failed: Exception | None = None
        self._paid.enter("checkpoint", time.monotonic())
        try:
            snapshot = self._saver.write_checkpoint(self._save_state(learning))
        except Exception as failure:
            failed = failure
            log.error("the last checkpoint could not be written", exc_info=failure)
        else:
            try:
                self._judge_last(snapshot, signals)
            except Exception as failure:  # the run has ended in order
                log.warning("the last snapshot is not judged", exc_info=failure)
        self._supervisor.stop_evaluator()
        if failed is not None:
            raise last_checkpoint_failed(reason, failed, self._workdir) from failed

    def _judge_last(self, step: int, signals: StopSignals) -> None:
        """Waits while the evaluator judges the last snapshot, that of `step`, within `evaluation.final_minutes`."""
        minutes = self._experiment.evaluation.final_minutes
        if not minutes or step <= 0 or signals.event.is_set():
            return
        what, evaluator = f"the last snapshot, of step {step:,},", self._supervisor.judge_last(step)
        if evaluator is None or evaluator.work is None:
            log.warning("%s is not judged: no node has room for the evaluator, or it has just failed", what)
            return
        log.info("%s is judged, for at most %g minutes (evaluation.final_minutes); Ctrl-C ends this", what, minutes)
        self.close()  # what is written later counts as time after training
        self._enter("judging", 60 * minutes)
        deadline = time.monotonic() + 60 * minutes
        while not (evaluator.work.done or signals.event.is_set() or time.monotonic() >= deadline):
            self.handle(evaluator.reports())
            self._show()
            time.sleep(TICK_S)
        if evaluator.work.done:
            evaluator.work.result(ANSWER_TIMEOUT_S)
            self.handle(last_reports([evaluator]))
            self._saver.amend(self._save_state())
        else:
            why = "a signal came first" if signals.event.is_set() else f"{minutes:g} minutes were not enough"
            log.warning("%s is not judged: %s", what, why)

    def _save_what_works(self, failure: Exception) -> None:
        """Writes a last checkpoint of a failing run; if that fails too, adds a note to `failure`."""
        # A learner that has failed is not asked: its state may be the cause. Replay's contents are kept without it.
        learning = self._supervisor.learner.can_save
        if isinstance(failure, TakenOver) or not (learning or self._supervisor.shards.actors):
            return
        try:
            with suppress(Exception):  # the view itself may have caused the failure
                self._enter("stopping")
            self._saver.write_last(self._save_state(learning), LAST_SAVE_TIMEOUT_S)
        except Exception as unsaved:
            log.error("the last checkpoint could not be written", exc_info=unsaved)
            note = f"The last checkpoint could not be written: {described(unsaved)}"
            if isinstance(failure, PodzeroError):
                failure.args = (f"{failure}\n{note}",)
            else:
                failure.add_note(note)

    def _enter(self, phase: Phase, limit_s: float = math.inf) -> None:
        self._monitor.enter(phase, time.monotonic(), limit_s)
        self._show_at_once()

    def _show_at_once(self) -> None:
        self._status_due = 0.0
        self._show()
        self._files.wait(PHASE_TIMEOUT_S)  # what follows may last, and no status is written meanwhile
