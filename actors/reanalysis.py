"""The reanalyser's loop: search again what was played, with parameters that have learned since."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from podzero.actors.reanalyse_targets import Reanalyse
from podzero.clock import StageClock
from podzero.config import Experiment
from podzero.envs import SimulatorError, faults_of, simulator_errors
from podzero.protocols import ParamSource, ReplayWriter, Report, StateReader
from podzero.replay import priorities_of
from podzero.types import Params, StoredState, Window

REPORT_EVERY_S = 2.0


class ReanalysisActor:
    """One reanalyser: searches `reanalyse.games` old positions side by side and writes them back with new targets.

    Args:
      experiment: the experiment; `replay` and `env` matter here.
      name: the reanalyser's name in figures and messages, as `reanalyser-0`.
      refresh: searches again.
      prepare: prepares published parameters for the network that searches, once per version.
      source, past, writer, report: the doors to parameters, what was played, refreshed samples and the figures.
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
        self._turn = 0
        self._faults = faults_of(experiment.env)
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends `run` after what is being searched; thread-safe, returns at once. Closing `past` ends a wait for it."""
        self._stopping.set()

    def run(self) -> None:
        """Searches again until told to stop, or until there is no more to come from `past`.

        Raises:
          EnvironmentFailed: games on the host fail again and again.
        """
        self._stopping.clear()
        clock, metrics = StageClock(), _Metrics()
        with clock("wait_params"):
            version, params = self._source.wait(self._experiment.replay.timeout_s)
            params = self._prepare(params)
        while not self._stopping.is_set():
            with clock("wait_past"):
                states = next(self._states, None)
            if states is None:
                break
            try:
                with clock("search"), simulator_errors():
                    self._turn += 1
                    found = self._reanalyse(params, version, self._turn, states)
            except SimulatorError as error:
                self._faults.add(str(error), episodes=0)  # what was played stays as it is
                continue
            self._faults.completed()
            with clock("write"):
                self._writer.write(found.samples, None if found.errors is None else priorities_of(found.errors))
            metrics.add(states, version)
            with clock("params"):
                if newer := self._source.poll():
                    version, params = newer.version, self._prepare(newer.params)
            if clock.elapsed_s >= REPORT_EVERY_S:
                self._report(self._name, metrics.flush() | clock.flush())
        self._report(self._name, metrics.flush() | clock.flush())


class _Metrics:
    """Counts what the loop did between two reports."""

    def __init__(self) -> None:
        self._count = 0
        self._age = 0.0
        self._version = 0

    def add(self, states: StoredState | Window, version: int) -> None:
        self._count += len(states.version)
        self._age = float(np.mean(version - np.asarray(states.version)))
        self._version = version

    def flush(self) -> dict[str, float]:
        """`reanalysis/age` is of what was searched last: learner steps since it was searched when it was played."""
        metrics = {
            "count/reanalysed": float(self._count),
            "reanalysis/age": self._age,
            "reanalysis/version": float(self._version),
        }
        self._count = 0
        return metrics
