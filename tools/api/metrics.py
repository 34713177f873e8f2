"""The metrics of a run as NumPy arrays."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from podzero.core.errors import ConfigError, nearest
from podzero.files.players import run_workdir
from podzero.files.workdir import WorkdirError
from podzero.tools.report.record import History, MetricsTail, Values

_OF_EACH_KIND = ("time/", "count/")
"""Prefixes of metrics that several kinds of workers have."""


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
    try:
        history = MetricsTail(run.metrics_file).read()
    except OSError as error:
        raise WorkdirError(f"cannot read {run.metrics_file}: {error.strerror}") from None
    return by_name(history)


def by_name(history: History) -> Metrics:
    """All metrics, sorted by name."""
    found = [(kind, name) for kind in history.kinds for name in history.names(kind)]
    reporters = Counter(name for _, name in found)
    named = {
        f"{kind}/{name}" if name.startswith(_OF_EACH_KIND) or reporters[name] > 1 else name: history.values(kind, name)
        for kind, name in found
    }
    return Metrics(sorted(named.items()))
