"""Reads the data of a report from the working directory of a running or ended run: its metrics, status and log."""

from __future__ import annotations

import json
import math
import os
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from podzero.config import FOR_SLICES, Experiment, builtin_configs, load
from podzero.core.errors import ConfigError
from podzero.core.reading import last_lines
from podzero.files.players import run_workdir
from podzero.files.store import store_of
from podzero.files.workdir import LATEST_TIME, Inheritance, RecordedChange, Workdir, WorkdirError, read_json, sweep_runs
from podzero.runtime.checkpoints import checkpoints
from podzero.runtime.monitoring.log_file import HEAD, OLD_FILES
from podzero.runtime.monitoring.monitor import kind_of
from podzero.runtime.monitoring.status import StoredStatus, read_status

if TYPE_CHECKING:
    from podzero.evaluation.games import StoredGame


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
    """Log messages that differ only in numbers."""

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
    games: Sequence[StoredGame] = ()
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
        """Reads the files; raises `WorkdirError` if the directory holds no run, or its files cannot be read."""
        self._workdir.refresh(long=True)
        experiment, status = self._workdir.experiment(), None
        try:
            with suppress(WorkdirError):
                status = read_status(self._workdir)
            return Record(
                experiment,
                _base(experiment.name),
                status,
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
    """Reads at least two runs: working directories, agents `zoo:NAME`, or folders of sweeps for all of theirs.

    Each is called by its name without the folders that all of them are in.
    """
    names = [str(run) for name in names for run in sweep_runs(Path(name)) or [Path(name)]]
    workdirs = {name: run_workdir(name) for name in names}
    if len({workdir.root for workdir in workdirs.values()}) < max(len(names), 2):
        raise ConfigError(f"expected at least two different runs to compare, not {', '.join(names)}")
    parts = [Path(name).parts for name in names]
    folders = zip(*(each[:-1] for each in parts), strict=False)
    common = sum(1 for _ in takewhile(lambda same: len(set(same)) == 1, folders))
    shown = [str(Path(*each[common:])) for each in parts]
    return {name: RunReader(workdir).read() for name, workdir in zip(shown, workdirs.values(), strict=True)}


def _newest_games(workdir: Workdir) -> list[StoredGame]:
    if not store_of(workdir.games).list(workdir.games):
        return []
    # Imports JAX, which takes seconds.
    from podzero.evaluation.games import GamesFolder

    rounds = GamesFolder(workdir.games)
    steps = rounds.steps()
    return rounds.read(steps[-1]) if steps else []


def _base(name: str) -> Experiment | None:
    with suppress(ConfigError):
        return next((load(known) for known in (name, FOR_SLICES + name) if known in builtin_configs()), None)
    return None


def read_events(workdir: Workdir) -> list[Event]:
    """The events at the end of the log files, newest first."""
    files = [workdir.log_file.with_name(f"{workdir.log_file.name}.{k}") for k in range(OLD_FILES, 0, -1)]
    lines = (line for file in (*files, workdir.log_file) for line in last_lines(file, READ_BYTES))
    return events(line.decode(errors="replace") for line in lines)


def events(lines: Iterable[str]) -> list[Event]:
    """Groups warnings, errors and starts in a log, oldest line first, to at most `MAX_EVENTS` events, newest first."""
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


def node_cells(hardware: Mapping[str, Any]) -> list[list[str]]:
    """Host, CPUs, GiB of memory and accelerators of each node of `Workdir.hardware_file`; damaged ones are left out."""
    nodes, rows = hardware.get("nodes"), []
    for node in nodes if isinstance(nodes, list) else ():
        match node:
            case {
                "host": str(host),
                "cpus": int() | float() as cpus,
                "memory_gib": int() | float() as memory,
                "accelerators": {**named},
            }:
                accelerators = ", ".join(f"{n} {kind}" for kind, n in named.items()) or "none"
                rows.append([host, f"{cpus:g}", f"{memory:,.1f}", accelerators])
    return rows


# The lines of `metrics.jsonl` as columns per worker.

FloatArray = NDArray[np.float64]


class WorkerTable:
    """The lines of a worker, with a row per line and a column per metric."""

    def __init__(self) -> None:
        self.times = array("d")
        """`[N]` seconds since the epoch."""
        self.steps = array("d")
        """`[N]` learner steps."""
        self.columns: dict[str, array[float]] = {}
        """`[N]` each, the metrics that occur in at least one line; NaN for lines without them."""

    def add(self, line: MetricsLine) -> None:
        """Adds a line."""
        # Earlier lines lack a new metric.
        for name in line.metrics.keys() - self.columns.keys():
            self.columns[name] = array("d", [math.nan]) * len(self.times)
        for name, column in self.columns.items():
            column.append(line.metrics.get(name, math.nan))
        self.times.append(line.time_s)
        self.steps.append(line.step)

    def column(self, name: str) -> FloatArray:
        """`[N]`, the values of a metric; NaN for lines without it."""
        return np.array(self.columns.get(name, [math.nan] * len(self.times)))


class Values(NamedTuple):
    """The values of a metric from one or more workers."""

    times: FloatArray
    """`[N]` seconds since the epoch, ascending."""
    steps: FloatArray
    """`[N]` learner steps."""
    values: FloatArray
    """`[N]`, finite."""


class History:
    """The metrics of all workers."""

    def __init__(self) -> None:
        self.workers: dict[str, WorkerTable] = {}
        self.damaged_lines = 0
        """Number of lines that could not be parsed."""

    def add_line(self, line: bytes) -> None:
        """Adds a line of `metrics.jsonl`; a damaged one only counts in `damaged_lines`."""
        if (parsed := parse_line(line)) is None:
            self.damaged_lines += 1
        else:
            self.workers.setdefault(parsed.worker, WorkerTable()).add(parsed)

    def of_kind(self, kind: str) -> list[WorkerTable]:
        """The tables of all workers of a kind, such as `actor` for `actor-0`, `actor-1` and so on."""
        return [table for worker, table in sorted(self.workers.items()) if kind_of(worker) == kind]

    def names(self, kind: str) -> set[str]:
        """The metrics that at least one worker of a kind has."""
        return {name for table in self.of_kind(kind) for name in table.columns}

    def each(self, kind: str, name: str) -> list[Values]:
        """The values of a metric for each worker of a kind that has it."""
        tables = [table for table in self.of_kind(kind) if name in table.columns]
        return [_known(table.times, table.steps, table.column(name)) for table in tables]

    def values(self, kind: str, name: str) -> Values:
        """The values of a metric of all workers of a kind together."""
        workers = self.each(kind, name)
        if not workers:
            return Values(*(np.empty(0),) * 3)
        return _known(*(np.concatenate(parts) for parts in zip(*workers, strict=True)))


def _known(times: ArrayLike, steps: ArrayLike, values: FloatArray) -> Values:
    """The finite values, sorted by time."""
    known = np.isfinite(values)
    order = np.argsort(np.asarray(times)[known], kind="stable")
    return Values(*(np.asarray(column)[known][order] for column in (times, steps, values)))


class MetricsLine(NamedTuple):
    """A line of a run's metrics."""

    time_s: float
    """Seconds since the epoch."""
    step: int
    """The learner step."""
    worker: str
    """The kind of process that reported them, such as `actor`, or one that has ended, such as `actor-3`."""
    metrics: dict[str, float]
    """Finite values by name, such as `learner/loss`; docs/watching.md explains the main ones."""


def parse_line(line: bytes) -> MetricsLine | None:
    """The content of a line; None if it is damaged."""
    try:
        tree = json.loads(line)
        time_s, step, worker, metrics = float(tree["t"]), int(float(tree["step"])), tree["worker"], tree["metrics"]
        if not (0 <= time_s < LATEST_TIME and isinstance(worker, str)):
            return None
        return MetricsLine(time_s, step, worker, {name: value for name, value in metrics.items() if _is_number(value)})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


LONGEST_LINE = 2**20
"""Bytes after which a line is cut, and so counts as damaged."""


class GrowingFile:
    """The lines that a file gets, which may be replaced meanwhile; not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = self._offset = 0

    def read(self) -> tuple[bool, list[bytes]]:
        """Whether the file was replaced, and its complete lines since the last call, or all of one that was replaced.

        A missing file has no lines; one that cannot be read raises `OSError`.
        """
        lines: list[bytes] = []
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            replaced, self._inode, self._offset = bool(self._inode), 0, 0
            return replaced, lines
        with file:
            found = os.fstat(file.fileno())
            # With another inode or a smaller size, the file was replaced, as when a run is resumed.
            replaced = found.st_ino != self._inode or found.st_size < self._offset
            start = file.seek(0 if replaced else self._offset)
            while (line := file.readline(LONGEST_LINE)).endswith(b"\n") or len(line) == LONGEST_LINE:
                lines.append(line)
        self._inode, self._offset = found.st_ino, start + sum(map(len, lines))
        return replaced, lines


class MetricsTail:
    """Reads a file of metrics as it grows; not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._file, self._history = GrowingFile(path), History()

    def read(self) -> History:
        """All metrics so far; empty without a file. A file that cannot be read raises `OSError`."""
        replaced, lines = self._file.read()
        if replaced:
            self._history = History()
        for line in lines:
            self._history.add_line(line)
        return self._history
