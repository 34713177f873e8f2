"""Writers of metrics for Weights & Biases, MLflow and Prometheus, in threads that keep them from delaying a run.

Optional packages are imported on first use.
"""

from __future__ import annotations

import json
import logging
import math
import re
import threading
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from podzero.config import Experiment, MetricsConfig, flatten
from podzero.core.errors import ConfigError, os_errors
from podzero.core.importing import how_to_install
from podzero.core.waiting import doubled
from podzero.files.workdir import Workdir, read_json, write_atomically
from podzero.runtime.monitoring.reports import MetricsReport

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
WANDB_STEP = "learner_step"
"""The metric on the horizontal axis of all others at Weights & Biases."""
_LONGEST_VALUE = 500
"""Most characters of a parameter that MLflow's servers accept."""
_LABELS = ("run", "worker")
PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}
"""The optional package that a setting of section `metrics` needs."""


class MetricsWriter(Protocol):
    """Sends the metrics of all kinds of workers somewhere. Called from one thread."""

    def write(self, report: MetricsReport, step: int) -> None:
        """Writes the metrics of a kind at a learner step; `count/...` are counts since its previous report.

        A write that raises any exception may be repeated.
        """
        ...

    def close(self) -> None:
        """Writes the remaining metrics; the last call."""
        ...


class BackgroundWriter:
    """Runs a `MetricsWriter` in a thread, so that it neither delays nor stops a run.

    A failed write is repeated; a writer that fails `MAX_FAILURES` times in a row is abandoned. `make` makes the writer,
    in the thread, once there is something to write.
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
        """Queues the metrics of a kind; never blocks or fails."""
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
            log.warning("%s has not taken the last metrics in %g s; they are lost there", self._name, CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while (item := self._next()) is not None and self._send(*item):
            pass
        try:
            if self._writer is not None:
                self._writer.close()
        except Exception as error:
            log.warning("%s could not be closed: %s", self._name, error)

    def _next(self) -> tuple[MetricsReport, int] | None:
        """The oldest waiting report; None after the last one."""
        with self._woken:
            self._woken.wait_for(lambda: self._waiting or self._closing.is_set())
            return self._waiting.popleft() if self._waiting else None

    def _send(self, report: MetricsReport, step: int) -> bool:
        """Writes until it succeeds; returns False if it fails `MAX_FAILURES` times or the run ends."""
        failures = 0
        while True:
            try:
                # Made after the first report: a run that never starts is not created at the service.
                self._writer = self._writer or self._make()
                self._writer.write(report, step)
            except Exception as error:
                failures += 1
                if failures == 1:
                    log.warning("cannot write metrics to %s, will try again; training continues: %s", self._name, error)
            else:
                if failures:
                    log.info("metrics go to %s again", self._name)
                return True
            pause_s = doubled(FIRST_PAUSE_S, failures, LONGEST_PAUSE_S)
            if failures >= MAX_FAILURES or self._closing.wait(pause_s):
                log.warning("%s gets no more metrics of this run after %d failures in a row", self._name, failures)
                return False


class WandbWriter:
    """Logs metrics as `KIND/NAME`, over the learner step; a `MetricsWriter` for `PROJECT` or `ENTITY/PROJECT`."""

    def __init__(self, project: str, experiment: Experiment, workdir: Workdir) -> None:
        import wandb

        entity, _, name = project.rpartition("/")
        self._run: Any = wandb.init(
            entity=entity or None,
            project=name,
            name=experiment.name,
            id=_identity(workdir, "wandb", lambda: uuid.uuid4().hex),
            resume="allow",
            config=experiment.model_dump(mode="json"),
            dir=str(workdir.root),
            # podzero's metrics and settings only: wandb would also send the terminal, the machine's load and the code.
            settings=wandb.Settings(
                console="off", silent=True, x_disable_stats=True, disable_git=True, disable_code=True
            ),
        )
        # wandb's own step counts calls of `log`, of which the workers make many at one learner step.
        self._run.define_metric("*", step_metric=WANDB_STEP)

    def write(self, report: MetricsReport, step: int) -> None:
        """Logs the metrics of a kind."""
        named = {f"{report.worker}/{name}": value for name, value in report.metrics.items()}
        self._run.log(named | {WANDB_STEP: step})

    def close(self) -> None:
        """Sends the remaining metrics."""
        self._run.finish()


class MlflowWriter:
    """Logs metrics as `KIND/NAME` at the learner step; a `MetricsWriter` for the tracking server at a URI.

    The experiment's name becomes that of the MLflow experiment, and a working directory is one run of it.
    """

    def __init__(self, uri: str, experiment: Experiment, workdir: Workdir) -> None:
        from mlflow import MlflowClient, entities

        self._client, self._entities = MlflowClient(tracking_uri=uri), entities
        self._run = _identity(workdir, "mlflow", lambda: self._create(experiment, workdir))
        # The run that was resumed is marked as finished.
        self._client.update_run(self._run, status="RUNNING")

    def write(self, report: MetricsReport, step: int) -> None:
        """Logs the finite metrics of a kind."""
        metrics = [
            self._entities.Metric(_mlflow_name(f"{report.worker}/{name}"), value, round(1000 * report.time_s), step)
            for name, value in report.metrics.items()
            if math.isfinite(value)
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        """Marks the run as finished."""
        self._client.set_terminated(self._run)

    def _create(self, experiment: Experiment, workdir: Workdir) -> str:
        """A new run with the settings of `experiment`; returns its id."""
        # If another run creates it meanwhile, this fails, and finds it when it is repeated.
        found = self._client.get_experiment_by_name(experiment.name)
        parent = found.experiment_id if found else self._client.create_experiment(experiment.name)
        tags, named = {"workdir": str(workdir.root)}, workdir.root.name
        run = self._client.create_run(str(parent), tags=tags, run_name=named)
        settings = flatten(experiment.model_dump(mode="json")).items()
        params = [self._entities.Param(_mlflow_name(name), str(value)[:_LONGEST_VALUE]) for name, value in settings]
        self._client.log_batch(run.info.run_id, params=params)
        return str(run.info.run_id)


def _mlflow_name(name: str) -> str:
    # MLflow refuses other characters in the names of metrics and parameters.
    return re.sub(r"[^\w\-. /]", "_", name)


class PrometheusWriter:
    """Serves the newest metrics at `http://ADDRESS/metrics` (port 0: a free one) until closed; a `MetricsWriter`.

    `replay/size` becomes the gauge `podzero_replay_size{run="...", worker="..."}`, `count/moves` becomes the counter
    `podzero_moves_total`.
    """

    def __init__(self, address: str, run: str) -> None:
        host, _, port = address.rpartition(":")
        self._run = run
        # The default registry belongs to the whole process: a second run in it could not add the same names.
        self._registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {}
        with os_errors(ConfigError, f"metrics.prometheus = {address}: cannot listen there"):
            self._server, self._thread = start_http_server(int(port), host, self._registry)

    def write(self, report: MetricsReport, step: int) -> None:
        """Replaces the kind's gauges and adds to its counters."""
        self._metric(Gauge, "step", report.worker).set(step)
        for name, value in report.metrics.items():
            stage, _, quantity = name.partition("/")
            if stage != "count":
                self._metric(Gauge, name, report.worker).set(value)
            # A counter refuses negative numbers, and would be NaN for good after a single NaN.
            elif value >= 0:
                self._metric(Counter, quantity, report.worker).inc(value)

    def close(self) -> None:
        """Stops the endpoint."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _metric(self, kind: type[Gauge | Counter], name: str, worker: str) -> Any:
        """The gauge of a kind, or its counter."""
        # Prometheus takes letters, digits and underscores.
        metric = f"podzero_{re.sub(r'[^a-zA-Z0-9]+', '_', name).strip('_')}"
        if metric not in self._metrics:
            what = f"podzero's {name}, summed" if kind is Counter else f"podzero's {name}"
            self._metrics[metric] = kind(metric, what, _LABELS, registry=self._registry)
        return self._metrics[metric].labels(self._run, worker)


def _identity(workdir: Workdir, service: str, create: Callable[[], str]) -> str:
    """The id of this run at a service, made by `create`, or by an earlier start: the working directory keeps it."""
    held = read_json(workdir.writers_file)
    if not isinstance(held.get(service), str):
        held[service] = create()
        write_atomically(workdir.writers_file, json.dumps(held) + "\n")
    return str(held[service])


def check_packages(config: MetricsConfig) -> None:
    """Refuses a chosen writer whose package is missing; the message says how to install it."""
    for setting, package in PACKAGES.items():
        if getattr(config, setting) is not None and find_spec(setting) is None:
            raise ConfigError(f"metrics.{setting} needs {package}, which is not installed: {how_to_install(setting)}")


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
