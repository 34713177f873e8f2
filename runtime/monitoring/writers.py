"""The interface of metrics writers, and the threads that keep slow or failing services from delaying a run."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Protocol

from podzero.config import Experiment, MetricsConfig
from podzero.core.errors import ConfigError
from podzero.core.importing import how_to_install
from podzero.files.workdir import Workdir
from podzero.runtime.monitoring.reports import MetricsReport
from podzero.runtime.monitoring.services import MlflowWriter, PrometheusWriter, WandbWriter

log = logging.getLogger(__name__)

QUEUE_REPORTS = 4_096
"""Most reports that wait for a writer; beyond that the oldest are dropped."""
FIRST_PAUSE_S = 1.0
"""Pause after a failed write; it doubles with each further one."""
LONGEST_PAUSE_S = 60.0
MAX_FAILURES = 60
"""Failures in a row after which a writer is abandoned: about an hour."""
CLOSE_TIMEOUT_S = 20.0
"""Longest wait for a writer when a run ends."""
PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}
"""The optional package that a setting of section `metrics` needs."""


class MetricsWriter(Protocol):
    """Sends the metrics of all workers somewhere. Called from one thread."""

    def write(self, report: MetricsReport, step: int) -> None:
        """Writes the metrics of a worker at a learner step; `count/...` are counts since its previous report.

        Raises:
          Exception: the write failed and may be repeated.
        """
        ...

    def close(self) -> None:
        """Writes the remaining metrics; the last call."""
        ...


class BackgroundWriter:
    """Runs a `MetricsWriter` in a thread, so that it neither delays nor stops a run.

    A failed write is repeated; a writer that fails `MAX_FAILURES` times in a row is abandoned.

    Args:
      name: the writer's name, for messages.
      make: makes the writer, in the thread, once there is something to write; repeated like a write if it fails.
    """

    def __init__(self, name: str, make: Callable[[], MetricsWriter]) -> None:
        self._name = name
        self._make = make
        self._writer: MetricsWriter | None = None
        self._waiting: deque[tuple[MetricsReport, int]] = deque(maxlen=QUEUE_REPORTS)
        self._woken = threading.Condition()
        self._closing = threading.Event()
        # A daemon: a service that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=f"metrics-{name}", daemon=True)
        self._thread.start()

    def write(self, report: MetricsReport, step: int) -> None:
        """Queues the metrics of a worker; never blocks or fails."""
        with self._woken:
            self._waiting.append((report, step))
            self._woken.notify()

    def close(self) -> None:
        """Waits until everything is written, at most `CLOSE_TIMEOUT_S`."""
        self._closing.set()
        with self._woken:
            self._woken.notify()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            log.warning(
                "%s has not taken the last metrics after %g s; they are lost there", self._name, CLOSE_TIMEOUT_S
            )

    def _run(self) -> None:
        # The first report comes before the writer is made: a run that never starts is not created at the service.
        item = self._next()
        if item is None or not self._repeat(self._open):
            return
        assert self._writer is not None
        while item is not None and self._repeat(partial(self._writer.write, *item)):
            item = self._next()
        try:
            self._writer.close()
        except Exception as error:
            log.warning("%s could not be closed: %s", self._name, error)

    def _open(self) -> None:
        self._writer = self._make()

    def _next(self) -> tuple[MetricsReport, int] | None:
        """The oldest waiting report; None after the last one."""
        with self._woken:
            self._woken.wait_for(lambda: self._waiting or self._closing.is_set())
            return self._waiting.popleft() if self._waiting else None

    def _repeat(self, action: Callable[[], None]) -> bool:
        """Repeats `action` until it succeeds; returns False if it fails `MAX_FAILURES` times or the run ends."""
        failures = 0
        while True:
            try:
                action()
            except Exception as error:
                failures += 1
                if failures == 1:
                    log.warning("cannot write metrics to %s, will try again; training continues: %s", self._name, error)
            else:
                if failures:
                    log.info("metrics go to %s again", self._name)
                return True
            pause_s = min(FIRST_PAUSE_S * 2 ** (failures - 1), LONGEST_PAUSE_S)
            if failures >= MAX_FAILURES or self._closing.wait(pause_s):
                log.warning("%s gets no more metrics of this run after %d failures in a row", self._name, failures)
                return False


def check_packages(config: MetricsConfig) -> None:
    """Checks that the packages of all chosen writers are installed.

    Raises:
      ConfigError: one is missing; the message says how to install it.
    """
    for setting, package in PACKAGES.items():
        if getattr(config, setting) is not None and find_spec(setting) is None:
            raise ConfigError(
                f"metrics.{setting} needs the package {package}, which is not installed: {how_to_install(setting)}"
            )


def start_writers(experiment: Experiment, workdir: Workdir) -> list[BackgroundWriter]:
    """The writers that section `metrics` chooses, except TensorBoard's, which is part of `MetricsLog`."""
    config = experiment.metrics
    check_packages(config)
    writers = []
    if config.prometheus is not None:
        # Made at once, unlike the others: a port that is in use ends the start of the run.
        endpoint = PrometheusWriter(config.prometheus, experiment.name)
        writers.append(BackgroundWriter("Prometheus", lambda: endpoint))
    if config.wandb is not None:
        writers.append(BackgroundWriter("Weights & Biases", partial(WandbWriter, config.wandb, experiment, workdir)))
    if config.mlflow is not None:
        writers.append(BackgroundWriter("MLflow", partial(MlflowWriter, config.mlflow, experiment, workdir)))
    return writers
