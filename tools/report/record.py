"""Reads the data of a report from the working directory of a running or ended run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from podzero.config import FOR_SLICES, Experiment, builtin_configs, load
from podzero.core.errors import ConfigError
from podzero.files.players import run_workdir
from podzero.files.workdir import Inheritance, RecordedChange, Workdir, WorkdirError, read_json, sweep_runs
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.monitoring.log_file import HEAD, OLD_FILES
from podzero.runtime.monitoring.status import StoredStatus, read_status
from podzero.tools.report.history import History, MetricsTail

if TYPE_CHECKING:
    from podzero.evaluation.games import KeptGame


READ_BYTES = 2**20
"""Bytes read at the end of each log file."""
MAX_EVENTS = 200
"""Most events in a report."""
MAX_TEXT = 400
"""Most characters of a message in a report."""
_SHOWN_LEVELS = ("WARNING", "ERROR", "CRITICAL")
_RESTART = re.compile(r"resumed from the checkpoint|starts on node")
_NUMBER = re.compile(r"\d[\d,.]*")


class Event(NamedTuple):
    """A group of log messages that differ only in numbers."""

    level: str
    text: str
    """The newest message."""
    last: str
    """Time of the newest message, in the driver's time zone."""
    times: int
    """Number of messages."""


class Record(NamedTuple):
    """The content of a run's working directory."""

    experiment: Experiment
    base: Experiment | None
    """The built-in experiment of the same name, if there is one."""
    status: StoredStatus | None
    """None if the file is missing or damaged."""
    history: History
    ladder: Mapping[str, Any]
    """The rating ladder of the newest checkpoint."""
    events: Sequence[Event]
    hardware: Mapping[str, Any]
    """The content of `Workdir.hardware_file`; empty if the file is missing or damaged."""
    games: Sequence[KeptGame] = ()
    """The games of the evaluator's newest round."""
    changes: Sequence[RecordedChange] = ()
    """The settings that were changed when the run was resumed."""
    inheritance: Inheritance | None = None
    """What the experiment inherited when the run started; None if nothing."""


class RunReader:
    """Reads a run repeatedly; of the metrics, only what was added since the last time."""

    def __init__(self, workdir: Workdir) -> None:
        self._workdir = workdir
        self._metrics = MetricsTail(workdir.metrics_file)

    def read(self) -> Record:
        """Reads the files.

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
                self._workdir.inheritance(),
            )
        except OSError as error:
            raise WorkdirError(f"cannot read {error.filename or self._workdir.root}: {error.strerror}") from None


def read_runs(names: Sequence[str]) -> dict[str, Record]:
    """Reads runs to be compared with one another, by their names.

    Args:
      names: working directories, folders of sweeps for all of their runs, or agents of the zoo as `zoo:NAME`.

    Raises:
      ConfigError: an agent does not exist, a run is named twice, or only one is named.
      WorkdirError: a directory holds no run, or its files cannot be read.
    """
    names = [str(run) for name in names for run in sweep_runs(Path(name)) or [Path(name)]]
    workdirs = {name: run_workdir(name) for name in names}
    if len({workdir.root for workdir in workdirs.values()}) < max(len(names), 2):
        raise ConfigError(f"expected at least two different runs to compare, not {', '.join(names)}")
    return {name: RunReader(workdir).read() for name, workdir in workdirs.items()}


def _newest_games(workdir: Workdir) -> list[KeptGame]:
    if not workdir.games.is_dir():
        return []
    # Imports JAX, which takes seconds.
    from podzero.evaluation.games import GamesFolder

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


def read_events(workdir: Workdir) -> list[Event]:
    """The events at the end of the log files, newest first."""
    files = [workdir.log_file.with_name(f"{workdir.log_file.name}.{k}") for k in range(OLD_FILES, 0, -1)]
    return events(line for file in (*files, workdir.log_file) for line in _last_lines(file))


def events(lines: Iterable[str]) -> list[Event]:
    """Groups the warnings, errors and starts of workers in a log, oldest line first, into at most `MAX_EVENTS` events,
    newest first.
    """
    found: dict[tuple[str, str], Event] = {}
    for line in lines:
        head = HEAD.match(line)
        if head is None or not (head["level"] in _SHOWN_LEVELS or _RESTART.search(head["text"])):
            continue
        moment, level, text = head["time"], head["level"], head["text"][:MAX_TEXT]
        key = level, _NUMBER.sub("#", text)
        # Insert again, so that the dictionary is ordered by the newest messages.
        earlier = found.pop(key, None)
        found[key] = Event(level, text, moment, 1 + (earlier.times if earlier else 0))
    return list(reversed(found.values()))[:MAX_EVENTS]


def _last_lines(file: Path) -> list[str]:
    """The lines in the last `READ_BYTES` of a file; empty if it cannot be read."""
    try:
        with file.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(size - READ_BYTES, 0))
            return log.read(READ_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []
