"""Metrics for MLflow."""

from __future__ import annotations

import math
import re

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from podzero.changes import flatten
from podzero.config import Experiment
from podzero.runtime.monitoring.identities import identity
from podzero.runtime.monitoring.reports import MetricsReport
from podzero.workdir import Workdir

_LONGEST_VALUE = 500
"""Characters of a parameter that MLflow's servers take."""
_PARAMS_AT_ONCE = 100
"""Parameters that they take in one call."""


class MlflowWriter:
    """Logs metrics as `WORKER/NAME` at the learner step; a `MetricsWriter`.

    The experiment of podzero is an experiment there, a working directory one run of it, however often it is resumed.

    Args:
      uri: of the tracking server.
      experiment: its settings become the parameters of the run.
      workdir: its path becomes a tag of the run.

    Raises:
      MlflowException: the server does not answer, or refuses the run.
    """

    def __init__(self, uri: str, experiment: Experiment, workdir: Workdir) -> None:
        self._client = MlflowClient(tracking_uri=uri)
        self._run = identity(workdir, "mlflow", lambda: self._create(experiment, workdir))
        self._client.update_run(self._run, status="RUNNING")

    def write(self, report: MetricsReport, step: int) -> None:
        """Logs the metrics of a worker that are finite."""
        metrics = [
            Metric(metric_name(f"{report.worker}/{name}"), value, round(1000 * report.time_s), step)
            for name, value in report.metrics.items()
            if math.isfinite(value)
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        """Marks the run as finished."""
        self._client.set_terminated(self._run)

    def _create(self, experiment: Experiment, workdir: Workdir) -> str:
        """A new run with the settings of `experiment`; returns its id."""
        tags = [RunTag("workdir", str(workdir.root))]
        run = self._client.create_run(self._experiment_id(experiment.name), run_name=workdir.root.name)
        settings = flatten(experiment.model_dump(mode="json")).items()
        params = [Param(metric_name(name), str(value)[:_LONGEST_VALUE]) for name, value in settings]
        for first in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(run.info.run_id, params=params[first : first + _PARAMS_AT_ONCE], tags=tags)
        return str(run.info.run_id)

    def _experiment_id(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:  # another run has just created it
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)


def metric_name(name: str) -> str:
    """A name of characters that MLflow takes."""
    return re.sub(r"[^\w\-. /]", "_", name)
