"""Runs from Python: `train` starts one in a process of its own, `metrics` reads what one has reported."""

from __future__ import annotations

import atexit
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from podzero.config import Experiment
from podzero.core.errors import ConfigError, nearest, os_errors
from podzero.files.players import run_workdir
from podzero.files.workdir import Workdir, WorkdirError
from podzero.launch.train import find_start
from podzero.runtime.driver_process import STOP_LIMIT_S, DriverProcess
from podzero.runtime.monitoring.log_file import read_log
from podzero.runtime.monitoring.monitor import kind_of
from podzero.runtime.monitoring.status import RunStatus, read_status
from podzero.runtime.stopping import stop_run
from podzero.tools.report.record import MetricsLine, MetricsTail, Values, parse_line

if TYPE_CHECKING:
    from podzero.tools.api.acting import EnvironmentAgent
    from podzero.tools.api.agent import Agent

_POLL_S = 0.1
_OF_EACH_KIND = ("time/", "count/")
"""Prefixes of metrics that several kinds of workers have."""


def train(
    experiment: str | Path | Experiment, *overrides: str, workdir: str | Path | None = None, address: str | None = None
) -> TrainingRun:
    """Starts or resumes a run, as `podzero train` does; returns when it has been accepted, before it trains.

    The run is a process of its own, which an interrupted cell leaves alone; it ends, saved, when this Python does.

    Args:
      experiment: the name of an experiment, a YAML file, a run to resume as `DIR` or `DIR@STEP`, or an `Experiment`.
      overrides: settings, such as `"stop.minutes=2"`.
      workdir: the working directory; by default one below `runs`.
      address: the Ray cluster to join, as `podzero train --address` takes it.

    Raises:
      ConfigError, WorkdirError: there is no such experiment or setting, or the directory holds another experiment.
      TrainingFailed: `podzero train` refuses the run; the message says why.
    """
    with tempfile.TemporaryDirectory(prefix="podzero-") as folder:
        if isinstance(experiment, Experiment):
            config = str(Path(folder, "experiment.yaml"))
            Path(config).write_text(experiment.to_yaml(), encoding="utf-8")
        else:
            config = str(experiment)
        root = find_start(config, overrides, None if workdir is None else Path(workdir)).root
        arguments = [config, *overrides, "--workdir", str(root), "--view", "plain"]
        run = TrainingRun(Workdir(root, works=True), [*arguments, *(["--address", address] if address else [])])
        run.await_accepted()
    return run


class TrainingRun:
    """A run in a process of its own; made by `train`. As a context manager it stops the run at its end."""

    def __init__(self, workdir: Workdir, arguments: list[str]) -> None:
        self._workdir = workdir
        self._process = DriverProcess(workdir, arguments)
        atexit.register(self._end)

    @property
    def workdir(self) -> Path:
        """The working directory, as commands such as `podzero report` take it."""
        return self._workdir.root

    @property
    def running(self) -> bool:
        """Whether the run's process lives."""
        return self._process.running

    @property
    def status(self) -> RunStatus:
        """The newest status: phase, step, games, rates, losses, ratings; `WorkdirError` if a run ended before any."""
        return read_status(self._workdir).status

    def metrics(self) -> Iterator[MetricsLine]:
        """The metrics of all processes, from the run's first line on, as they come; ends with the run as `wait`."""
        newest: dict[str, float] = {}
        while self.running and not self._workdir.metrics_file.exists():
            time.sleep(_POLL_S)
        with suppress(FileNotFoundError):
            for line in read_log(self._workdir.metrics_file, lambda: self.running):
                parsed = parse_line(line.encode())
                # A resumption writes the file anew, with the lines before its checkpoint.
                if parsed is not None and parsed.time_s > newest.get(parsed.worker, 0.0):
                    newest[parsed.worker] = parsed.time_s
                    yield parsed
        self.wait()

    def stop(self, limit_s: float = STOP_LIMIT_S) -> Self:
        """Ends the run with a last checkpoint, and waits for its end as `wait`; does nothing if it has ended."""
        if self.running:
            stop_run(self._workdir, limit_s, lambda text: None)
        return self.wait(limit_s)

    def wait(self, limit_s: float | None = None) -> Self:
        """Waits until the run has ended by itself; returns the run.

        Raises:
          NotStopped: it has not ended within `limit_s` seconds; it goes on.
          TrainingFailed: the run has failed, or its last checkpoint could not be written.
        """
        try:
            self._process.wait(limit_s)
        finally:
            if not self.running:
                atexit.unregister(self._end)
        return self

    def agent(self, simulations: int | None = None) -> Agent | EnvironmentAgent:
        """The agent of the newest snapshot, as `podzero.load` returns it; `SnapshotError` if there is none yet."""
        # Imports JAX, which takes seconds.
        from podzero.tools.api.agent import load

        return load(self.workdir, simulations=simulations)

    def await_accepted(self) -> None:
        """Waits until the run's process has checked the experiment and works in its directory; see `train`."""
        try:
            while self.running:
                holder = self._workdir.holder()
                if holder is not None and holder.pid == self._process.pid:
                    return
                time.sleep(_POLL_S)
        except BaseException:
            self._end()
            raise
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<the run in {self.workdir}, {'running' if self.running else 'ended'}>"

    def _end(self) -> None:
        """Ends the process, if it lives, with a last checkpoint."""
        if self.running:
            print(f"podzero: the run in {self.workdir} writes a last checkpoint and ends", file=sys.stderr)
            self._process.end()


class Metrics(dict[str, Values]):
    """Values by metric; an unknown name raises `ConfigError`."""

    def __missing__(self, name: str) -> Values:
        known = f"it has: {', '.join(self)}" if self else "it has reported none yet"
        raise ConfigError(f"the run has no metric '{name}'{nearest(name, self)}; {known}")


def metrics(workdir: str | Path) -> Metrics:
    """Reads the metrics of a running or ended run.

    Args:
      workdir: the run's working directory, or an agent that comes with podzero, such as `zoo:go_9x9`.

    Returns:
      by metric, such as `learner/loss`: `times` (`[N]` seconds since the epoch, ascending), `steps` (`[N]` learner
      steps) and `values` (`[N]`, finite) of all workers together. Shares of time, counts, and metrics of several kinds
      of workers are prefixed with the kind, such as `actor/time/search` or `actor/count/games`.

    Raises:
      WorkdirError: the directory holds no run, or its metrics cannot be read.
      ConfigError: there is no such agent.
    """
    run = run_workdir(str(workdir))
    run.refresh(long=True)
    with os_errors(WorkdirError, f"cannot read {run.metrics_file}"):
        history = MetricsTail(run.metrics_file).read()
    found = [(kind, name) for kind in set(map(kind_of, history.workers)) for name in history.names(kind)]
    reporters = Counter(name for _, name in found)
    named = {
        f"{kind}/{name}" if name.startswith(_OF_EACH_KIND) or reporters[name] > 1 else name: history.values(kind, name)
        for kind, name in found
    }
    return Metrics(sorted(named.items()))
