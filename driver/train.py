"""`podzero train`: one run of an experiment, from an empty or a used working directory to its end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from podzero.cluster.placement import reserved_cpus
from podzero.cluster.ray_cluster import connect
from podzero.cluster.remote import ClusterError, NodeLost, WorkerDied
from podzero.cluster.run_lock import lock_run
from podzero.config import Experiment, GameConfig
from podzero.driver.learner_group import RunFailed
from podzero.driver.savepoints import Savepoint, savepoints, set_aside, write_savepoint
from podzero.driver.supervisor import Supervisor
from podzero.monitoring.metrics import MetricsLog
from podzero.monitoring.monitor import Monitor
from podzero.monitoring.reports import LogReport, MetricsReport, PreemptionNotice
from podzero.monitoring.status import Phase, write_status
from podzero.monitoring.terminal import View
from podzero.workdir import Workdir

log = logging.getLogger(__name__)

TICK_S = 0.5
STATUS_EVERY_S = 2.0
FIRST_SNAPSHOT_S = 30.0
RETRY_S = 10.0
"""Pause between two attempts to start again after a machine was lost."""


def train(experiment: Experiment, root: str | Path, address: str | None, view: View) -> str:
    """Runs an experiment until one of its limits, a signal, or a failure; returns why it ended.

    A working directory that holds savepoints of this experiment is resumed from the newest usable one.

    Raises:
      WorkdirError, ConfigError, ClusterError, RunFailed: for the person who started it.
    """
    began = time.monotonic()
    workdir = Workdir(root)
    with ExitStack() as stack:
        if workdir.is_run:
            stack.enter_context(workdir.lock())
            workdir.open(experiment)
        else:
            workdir.open(experiment)
            stack.enter_context(workdir.lock())
        stack.enter_context(_log_file(workdir))
        stack.enter_context(view)
        cluster = stack.enter_context(
            connect(address, sum(reserved_cpus(experiment)), f"podzero:{workdir.root}", _environment_extras(experiment))
        )
        lock = lock_run(f"process {os.getpid()} at {socket.gethostname()} trains {workdir.root}")
        told_to_stop = stack.enter_context(_signals())
        from podzero.params import start_param_store

        supervisor = Supervisor(cluster, experiment, workdir, start_param_store(), told_to_stop)
        stack.callback(supervisor.kill)
        savepoint = _start(supervisor, workdir)
        run = Run(experiment, workdir, supervisor, view)
        stack.callback(run.close)
        run.begin(savepoint, began)
        reason = run.until_end(told_to_stop)
        del lock
        return reason


class Run:
    """The driver's side of a run: listens, heals, saves, shows, and decides when it is over."""

    def __init__(self, experiment: Experiment, workdir: Workdir, supervisor: Supervisor, view: View) -> None:
        self._experiment = experiment
        self._workdir = workdir
        self._supervisor = supervisor
        self._view = view
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="saver")
        self._metrics: MetricsLog | None = None

    def begin(self, savepoint: Savepoint | None, began: float) -> None:
        """Listens to a crew that was just started from `savepoint`; the run's time counts on from `began`."""
        step = savepoint.step if savepoint else 0
        self._monitor = Monitor(self._experiment, began, savepoint.counters if savepoint else None, step)
        if self._metrics is not None:
            self._metrics.close()
        self._metrics = MetricsLog(self._workdir, step if savepoint else None)
        self._saving: Future[Any] | None = None
        self._save_began = 0.0  # in seconds since the epoch, as a notice says when it was given
        now = time.monotonic()
        self._save_at = now + 60 * self._experiment.checkpoint.every_minutes
        self._snapshot_at = now + FIRST_SNAPSHOT_S
        self._status_at = now

    def until_end(self, told_to_stop: threading.Event) -> str:
        """The loop of the driver; ends with a savepoint and returns why it ended."""
        while True:
            try:
                while (reason := self._over(told_to_stop)) is None:
                    self._hear(self._supervisor.listen())
                    for name in self._supervisor.reconcile(self._savepoint):
                        self._monitor.add(name, {"count/restarts": 1.0}, time.monotonic())
                    self._save_when_due()
                    self._show()
                    time.sleep(TICK_S)
            except NodeLost as loss:
                if not self._recover(loss, told_to_stop):
                    self._enter("ended")
                    return "stopped by a signal"
            except RunFailed as failure:
                self._enter("ended")
                raise self._with_advice(failure) from failure
            else:
                self._wind_down()
                return reason

    def close(self) -> None:
        """Closes the files."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        if self._metrics is not None:
            self._metrics.close()

    def _recover(self, loss: NodeLost, told_to_stop: threading.Event) -> bool:
        """Goes on from the last savepoint on machines that replace a lost one, however often; False if told to stop."""
        log.warning("%s\nEverything is released; the run goes on once machines have joined again", loss)
        self._supervisor.kill()
        began = time.monotonic()
        restarts = self._monitor.status(began).restarts + 1
        while not told_to_stop.is_set():
            try:
                savepoint = _start(self._supervisor, self._workdir)
            except (ClusterError, WorkerDied) as failure:
                log.warning("could not start again: %s", failure)
                told_to_stop.wait(RETRY_S)
            else:
                self.begin(savepoint, began)
                self._monitor.add("driver", {"count/restarts": float(restarts)}, time.monotonic())
                return True
        return False

    def _over(self, told_to_stop: threading.Event) -> str | None:
        """Why the run is over, or None."""
        stop, counters = self._experiment.stop, self._monitor.counters(time.monotonic())
        if told_to_stop.is_set():
            return "stopped by a signal"
        if stop.minutes is not None and counters["elapsed_s"] >= 60 * stop.minutes:
            return f"{stop.minutes:g} minutes are over"
        if stop.games is not None and counters["games"] >= stop.games:
            return f"{stop.games:,} games are played"
        if not self._supervisor.learning:
            return f"{stop.steps or 0:,} steps are done"
        return None

    def _hear(self, items: Iterable[MetricsReport | LogReport]) -> None:
        """Takes in what the roles said."""
        now = time.monotonic()
        for item in items:
            if isinstance(item, MetricsReport):
                self._monitor.add(item.worker, item.metrics, now)
                assert self._metrics is not None
                self._metrics.add(item.worker, item.metrics, self._monitor.status(now).step)
            else:
                log.log(item.level, "%s: %s", item.worker, item.text)
                if isinstance(item, PreemptionNotice) and self._save_began < item.time_s:
                    self._save_at = now

    def _save_when_due(self) -> None:
        """Starts a savepoint or a snapshot for the evaluator, one thing at a time, beside the loop."""
        if self._saving is not None:
            if not self._saving.done():
                return
            if failure := self._saving.exception():
                log.warning("saving failed, the run goes on: %s", failure)
            self._saving = None
        now = time.monotonic()
        if now >= self._save_at:
            self._save_at = now + 60 * self._experiment.checkpoint.every_minutes
            self._save_began = time.time()
            self._saving = self._worker.submit(self._save)
        elif now >= self._snapshot_at:
            self._snapshot_at = now + 60 * self._experiment.evaluation.every_minutes
            self._saving = self._worker.submit(self._snapshot)

    def _save(self) -> None:
        """Writes a savepoint, with a snapshot of the parameters that act."""
        learner = self._supervisor.learner
        assert learner is not None
        shards = self._supervisor.shards.actors
        counters = self._monitor.counters(time.monotonic())
        keep = self._experiment.checkpoint.keep
        step = write_savepoint(
            self._workdir, learner.checkpoint, shards, counters, self._supervisor.newest_ladder(), keep
        )
        learner.leader.actor.ask("snapshot")
        log.info("savepoint of step %d written", step)

    def _snapshot(self) -> None:
        """Writes a snapshot; the evaluator starts with the first one of trained parameters."""
        assert self._supervisor.learner is not None
        step = self._supervisor.learner.leader.actor.ask("snapshot")
        if step <= 0:
            self._snapshot_at = time.monotonic() + FIRST_SNAPSHOT_S
        elif self._supervisor.evaluator is None:
            self._supervisor.start_evaluator()

    def _savepoint(self) -> Savepoint | None:
        """The newest, which a new one may just be replacing."""
        return next(iter(savepoints(self._workdir)), None)

    def _show(self) -> None:
        """Brings the view and, less often, `status.json` up to date."""
        now = time.monotonic()
        status = self._monitor.status(now)
        self._view.show(status)
        if now >= self._status_at:
            self._status_at = now + STATUS_EVERY_S
            write_status(self._workdir, status)

    def _wind_down(self) -> None:
        """Stops everybody so that nothing is lost: writers, then learner, then a last savepoint."""
        self._enter("stopping")
        if self._saving is not None:
            self._saving.exception(timeout=600)
        self._hear(self._supervisor.stop_actors())
        try:
            self._hear(self._supervisor.stop_learner())
            self._save()
        except (ClusterError, WorkerDied) as failure:
            log.error("the last savepoint could not be written: %s", failure)
        self._supervisor.stop_evaluator()
        self._enter("ended")

    def _enter(self, phase: Phase) -> None:
        self._monitor.enter(phase)
        self._status_at = 0.0
        self._show()

    def _with_advice(self, failure: RunFailed) -> RunFailed:
        saved = savepoints(self._workdir)
        where = f"the savepoint of step {saved[0].step:,}" if saved else "the start: no savepoint was written yet"
        return RunFailed(f"{failure}\nThe same command goes on from {where}. The log: {self._workdir.log_file}")


def _start(supervisor: Supervisor, workdir: Workdir) -> Savepoint | None:
    """Starts the crew from the newest savepoint that can be used; damaged ones are set aside."""
    for savepoint in savepoints(workdir):
        try:
            supervisor.start(savepoint)
        except Exception as error:
            if not _is_damage(error):
                raise
            set_aside(savepoint, error)
        else:
            log.info("resumed from the savepoint of step %d", savepoint.step)
            return savepoint
    supervisor.start(None)
    return None


def _is_damage(error: Exception) -> bool:
    """Whether an error means that a savepoint cannot be used; costly imports, for the bad case only."""
    from podzero.learner import CheckpointDamaged
    from podzero.replay import ReplayRestoreError

    return isinstance(error, (CheckpointDamaged, ReplayRestoreError))


def _environment_extras(experiment: Experiment) -> list[str] | None:
    """Optional dependencies of the environment to install on all nodes; None if they have it already."""
    if not experiment.cluster.install_environment:
        return None
    envs = [] if isinstance(experiment.env, GameConfig) else ["envs"]
    return envs + (["tpu"] if experiment.cluster.tpu else [])


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set; a second Ctrl-C interrupts at once."""
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if stopping.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _log_file(workdir: Workdir) -> Iterator[None]:
    """Everything that podzero logs also goes into the working directory."""
    handler = logging.FileHandler(workdir.log_file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("podzero")
    logger.setLevel(logging.INFO)
    logger.propagate = False  # libraries put handlers of their own on the root
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
