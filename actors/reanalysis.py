"""The reanalyser's loop: read stored samples, search them with the newest parameters, write them with new targets."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from podzero.actors.reanalyse_targets import Reanalyse
from podzero.clock import REPORT_EVERY_S, StageClock
from podzero.config import Experiment
from podzero.envs import SimulatorError, faults_of, simulator_errors
from podzero.protocols import ParamSource, ReplayWriter, Report, StateReader
from podzero.replay import priorities_of
from podzero.types import Params, StoredState, Window
from podzero.waiting import first_params


class ReanalysisActor:
    """One reanalyser: searches batches of `reanalyse.games` stored samples and writes them with new targets.

    Args:
      experiment: of which `replay` and `env` are used.
      name: of the reanalyser in metrics and messages, as `reanalyser-0`.
      reanalyse: computes the new targets.
      prepare: converts published parameters for the search, once per version.
      source: of parameters.
      states: reads stored samples.
      writer: to the table of reanalysed samples.
      report: of metrics.
    """

    def __init__(
        self,
        *,
        experiment: Experiment,
        name: str,
        reanalyse: Reanalyse,
        prepare: Callable[[Params], Params],
        source: ParamSource,
        states: StateReader,
        writer: ReplayWriter,
        report: Report,
    ) -> None:
        self._experiment = experiment
        self._name = name
        self._reanalyse = reanalyse
        self._prepare = prepare
        self._source = source
        self._states = states
        self._writer = writer
        self._report = report
        self._batches = 0
        self._faults = faults_of(experiment.env)
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends `run` after the current batch; thread-safe, returns at once. Close `states` to end a wait for it."""
        self._stopping.set()

    def run(self) -> None:
        """Reanalyses until `stop` is called or `states` is closed.

        Raises:
          EnvironmentFailed: games on the host failed more often in a row than `env.max_failures` allows.
        """
        self._stopping.clear()
        clock, metrics = StageClock(), _Metrics()
        with clock("wait_params"):
            if (first := first_params(self._source, self._stopping)) is None:
                return
            version, params = first.version, self._prepare(first.params)
        while not self._stopping.is_set():
            with clock("wait_states"):
                states = next(self._states, None)
            if states is None:
                break
            try:
                with clock("search"), simulator_errors():
                    self._batches += 1
                    result = self._reanalyse(params, version, self._batches, states)
            except SimulatorError as error:
                self._faults.add(str(error), episodes=0)  # no episode is lost: the stored samples are unchanged
                continue
            self._faults.completed()
            with clock("write"):
                self._writer.write(result.samples, None if result.errors is None else priorities_of(result.errors))
            metrics.add(states, version)
            with clock("params"):
                if newer := self._source.poll():
                    version, params = newer.version, self._prepare(newer.params)
            if clock.elapsed_s >= REPORT_EVERY_S:
                self._report(self._name, metrics.flush() | clock.flush())
        self._report(self._name, metrics.flush() | clock.flush())


class _Metrics:
    """Adds up the metrics of the loop between two reports."""

    def __init__(self) -> None:
        self._count = 0
        self._age = 0.0
        self._version = 0

    def add(self, states: StoredState | Window, version: int) -> None:
        self._count += len(states.version)
        self._age = float(np.mean(version - np.asarray(states.version)))
        self._version = version

    def flush(self) -> dict[str, float]:
        """`reanalysis/age` is the mean of the last batch: learner steps since the actors searched its samples."""
        metrics = {
            "count/reanalysed": float(self._count),
            "reanalysis/age": self._age,
            "reanalysis/version": float(self._version),
        }
        self._count = 0
        return metrics
