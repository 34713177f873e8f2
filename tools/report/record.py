"""Reads what a working directory holds of its run, also while the run goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from podzero.changes import RecordedChange
from podzero.config import FOR_SLICES, Experiment, builtin_configs, load
from podzero.errors import ConfigError
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.monitoring.status import StoredStatus, read_status
from podzero.tools.report.events import Event, read_events
from podzero.tools.report.history import History
from podzero.tools.report.tail import MetricsTail
from podzero.workdir import Workdir, WorkdirError, read_json

if TYPE_CHECKING:
    from podzero.evaluation.kept_games import KeptGame


class Record(NamedTuple):
    """What is known of a run."""

    experiment: Experiment
    base: Experiment | None
    """The built-in experiment of the same name."""
    status: StoredStatus | None
    """None if there is none, or it is damaged."""
    history: History
    ladder: Mapping[str, Any]
    """The rating ladder of the newest checkpoint."""
    events: Sequence[Event]
    hardware: Mapping[str, Any]
    """What `Workdir.hardware_file` holds; empty if there is none, or it is damaged."""
    games: Sequence[KeptGame] = ()
    """Of the evaluator's newest round."""
    changes: Sequence[RecordedChange] = ()
    """Settings that were changed when the run was resumed."""


class RunReader:
    """Reads a run again and again; metrics that were read before are kept."""

    def __init__(self, workdir: Workdir) -> None:
        self._workdir = workdir
        self._metrics = MetricsTail(workdir.metrics_file)

    def read(self) -> Record:
        """The run as its files are now.

        Raises:
          WorkdirError: the directory holds no run, or its files cannot be read.
        """
        experiment = self._workdir.experiment()
        try:
            return Record(
                experiment,
                _base(experiment.name),
                _status(self._workdir),
                self._metrics.read(),
                next((checkpoint.ladder for checkpoint in checkpoints(self._workdir)), {}),
                read_events(self._workdir),
                read_json(self._workdir.hardware_file),
                _newest_games(self._workdir),
                self._workdir.changes(),
            )
        except OSError as error:
            raise WorkdirError(f"cannot read {error.filename or self._workdir.root}: {error.strerror}") from None


def _newest_games(workdir: Workdir) -> list[KeptGame]:
    if not workdir.games.is_dir():
        return []
    from podzero.evaluation.kept_games import GamesFolder  # imports JAX

    rounds = GamesFolder(workdir.games)
    steps = rounds.steps()
    return rounds.read(steps[-1]) if steps else []


def _base(name: str) -> Experiment | None:
    try:
        found = next((known for known in (name, FOR_SLICES + name) if known in builtin_configs()), None)
        return None if found is None else load(found)
    except ConfigError:
        return None


def _status(workdir: Workdir) -> StoredStatus | None:
    try:
        return read_status(workdir)
    except WorkdirError:
        return None
