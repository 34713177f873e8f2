"""Writers of metrics for Weights & Biases, MLflow and Prometheus. Optional packages are imported on first use."""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from podzero.config import Experiment
from podzero.core.errors import ConfigError
from podzero.files.changes import flatten
from podzero.files.workdir import Workdir, read_json, write_atomically
from podzero.runtime.monitoring.reports import MetricsReport

WANDB_STEP = "learner_step"
"""The metric on the horizontal axis of all others at Weights & Biases."""
_LONGEST_VALUE = 500
"""Most characters of a parameter that MLflow's servers accept."""
_PARAMS_AT_ONCE = 100
"""Most parameters that they accept in one call."""
_LABELS = ("run", "worker")


class WandbWriter:
    """Logs metrics as `WORKER/NAME`, over the learner step; a `MetricsWriter`.

    Args:
      project: `PROJECT` or `ENTITY/PROJECT`.
      experiment: its name and settings become those of the W&B run.
      workdir: holds wandb's files and the run's id, so that a resumed run continues the same W&B run.
    """

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
        """Logs the metrics of a worker."""
        named = {f"{report.worker}/{name}": value for name, value in report.metrics.items()}
        self._run.log(named | {WANDB_STEP: step})

    def close(self) -> None:
        """Sends the remaining metrics."""
        self._run.finish()


class MlflowWriter:
    """Logs metrics as `WORKER/NAME` at the learner step; a `MetricsWriter`.

    The experiment's name becomes that of the MLflow experiment, and a working directory is one run of it.

    Args:
      uri: URI of the tracking server.
      experiment: its settings become the parameters of the MLflow run.
      workdir: its path becomes a tag; it keeps the run's id, so that a resumed run continues the same MLflow run.
    """

    def __init__(self, uri: str, experiment: Experiment, workdir: Workdir) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        self._run = _identity(workdir, "mlflow", lambda: self._create(experiment, workdir))
        # The run that was resumed is marked as finished.
        self._client.update_run(self._run, status="RUNNING")

    def write(self, report: MetricsReport, step: int) -> None:
        """Logs the finite metrics of a worker."""
        from mlflow.entities import Metric

        metrics = [
            Metric(_mlflow_name(f"{report.worker}/{name}"), value, round(1000 * report.time_s), step)
            for name, value in report.metrics.items()
            if math.isfinite(value)
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        """Marks the run as finished."""
        self._client.set_terminated(self._run)

    def _create(self, experiment: Experiment, workdir: Workdir) -> str:
        """A new run with the settings of `experiment`; returns its id."""
        from mlflow.entities import Param, RunTag

        tags = [RunTag("workdir", str(workdir.root))]
        run = self._client.create_run(self._experiment_id(experiment.name), run_name=workdir.root.name)
        settings = flatten(experiment.model_dump(mode="json")).items()
        params = [Param(_mlflow_name(name), str(value)[:_LONGEST_VALUE]) for name, value in settings]
        for first in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(run.info.run_id, params=params[first : first + _PARAMS_AT_ONCE], tags=tags)
        return str(run.info.run_id)

    def _experiment_id(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:
            # Another run may have created it since.
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)


def _mlflow_name(name: str) -> str:
    # MLflow refuses other characters in the names of metrics and parameters.
    return re.sub(r"[^\w\-. /]", "_", name)


class PrometheusWriter:
    """Serves the newest metrics at `http://ADDRESS/metrics` until it is closed; a `MetricsWriter`.

    `replay/size` becomes the gauge `podzero_replay_size{run="...", worker="..."}`, `count/moves` becomes the counter
    `podzero_moves_total`.

    Args:
      address: `HOST:PORT`; port 0 chooses a free one.
      run: the name of the experiment.
    """

    def __init__(self, address: str, run: str) -> None:
        host, _, port = address.rpartition(":")
        self._run = run
        # The default registry belongs to the whole process: a second run in it could not add the same names.
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        try:
            self._server, self._thread = start_http_server(int(port), host, self._registry)
        except OSError as error:
            raise ConfigError(f"metrics.prometheus = {address}: cannot listen there: {error.strerror}") from None

    @property
    def port(self) -> int:
        """The port of the endpoint."""
        return int(self._server.server_port)

    def write(self, report: MetricsReport, step: int) -> None:
        """Replaces the worker's gauges and adds to its counters."""
        labels = self._run, report.worker
        self._gauge("step").labels(*labels).set(step)
        for name, value in report.metrics.items():
            stage, _, quantity = name.partition("/")
            if stage != "count":
                self._gauge(name).labels(*labels).set(value)
            # A counter refuses negative numbers, and would be NaN for good after a single NaN.
            elif value >= 0:
                self._counter(quantity).labels(*labels).inc(value)

    def close(self) -> None:
        """Stops the endpoint."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _gauge(self, name: str) -> Gauge:
        metric = prometheus_name(name)
        if metric not in self._gauges:
            self._gauges[metric] = Gauge(metric, f"podzero's {name}", _LABELS, registry=self._registry)
        return self._gauges[metric]

    def _counter(self, quantity: str) -> Counter:
        metric = prometheus_name(quantity)
        if metric not in self._counters:
            self._counters[metric] = Counter(metric, f"podzero's {quantity}, summed", _LABELS, registry=self._registry)
        return self._counters[metric]


def prometheus_name(name: str) -> str:
    """The Prometheus name of a metric: letters, digits and underscores."""
    return f"podzero_{re.sub(r'[^a-zA-Z0-9]+', '_', name).strip('_')}"


def _identity(workdir: Workdir, service: str, create: Callable[[], str]) -> str:
    """The id of this run at a service: stored in the working directory, made by `create` if it is not there yet."""
    held = read_json(workdir.writers_file)
    if not isinstance(held.get(service), str):
        held[service] = create()
        write_atomically(workdir.writers_file, json.dumps(held) + "\n")
    return str(held[service])
