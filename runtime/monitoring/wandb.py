"""Metrics for Weights & Biases."""

from __future__ import annotations

import uuid
from typing import Any

import wandb

from podzero.config import Experiment
from podzero.runtime.monitoring.identities import identity
from podzero.runtime.monitoring.reports import MetricsReport
from podzero.workdir import Workdir

STEP = "learner_step"
"""The metric that is the horizontal axis of all others."""


class WandbWriter:
    """Logs metrics as `WORKER/NAME`, over the learner step; a `MetricsWriter`.

    A working directory is one run there, however often it is resumed.

    Args:
      project: `PROJECT` or `ENTITY/PROJECT`.
      experiment: its name and settings become those of the run.
      workdir: holds wandb's own files.

    Raises:
      wandb.Error: the run cannot be opened, for example without a key.
    """

    def __init__(self, project: str, experiment: Experiment, workdir: Workdir) -> None:
        entity, _, name = project.rpartition("/")
        self._run: Any = wandb.init(
            entity=entity or None,
            project=name,
            name=experiment.name,
            id=identity(workdir, "wandb", lambda: uuid.uuid4().hex),
            resume="allow",
            config=experiment.model_dump(mode="json"),
            dir=str(workdir.root),
            settings=wandb.Settings(
                console="off", silent=True, x_disable_stats=True, disable_git=True, disable_code=True
            ),
        )
        self._run.define_metric("*", step_metric=STEP)

    def write(self, report: MetricsReport, step: int) -> None:
        """Logs the metrics of a worker."""
        named = {f"{report.worker}/{name}": value for name, value in report.metrics.items()}
        self._run.log(named | {STEP: step})

    def close(self) -> None:
        """Sends what waits."""
        self._run.finish()
