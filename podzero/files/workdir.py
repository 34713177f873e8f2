"""The working directory of a run: its files, its lock, its experiment, and how another experiment differs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from podzero.config import Experiment, Layers, OptimizerConfig, OwnFile, flatten, parse, read_tree
from podzero.core.errors import TRY_AGAIN, ConfigError, PodzeroError, os_errors
from podzero.core.importing import file_digest
from podzero.core.reading import LARGEST_FILE, parse_json
from podzero.files.directory_lock import DirectoryLock, Held, LockHolder, holder_of
from podzero.files.store import copy_of, store_of, sync

NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(("stop", "evaluation", "checkpoint", "metrics", "cluster", "int8", "server"), True),
    "actors": {"count", "min_count", "cpus", "inference", "resources", "cache_mib", "moves_per_dispatch", "max_lag"},
    "search": {"tree"},
    "network": {"remat"},
    "learner": {"mesh", "microbatches", "cpu_convolutions"},
    "replay": {"cpus"},
}
"""The settings that do not change what is learned, in the form of pydantic's `exclude`."""

CHANGEABLE: dict[str, Any] = NEUTRAL | {
    "learner": {
        **dict.fromkeys(NEUTRAL["learner"], True),
        "optimizer": {name for name in OptimizerConfig.model_fields if name != "name"},
    },
}
"""The settings that may change when a run is resumed: the neutral ones, and those of the optimizer except its name,
because the checkpoint holds the state of that optimizer."""


class Change(NamedTuple):
    """A setting that differs."""

    setting: str
    """The setting's dotted name."""
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.setting}: holds {self.old}, given {self.new}"


class RecordedChange(NamedTuple):
    """A change of a setting when a run was resumed."""

    t: float
    """Unix time, in seconds."""
    step: int
    """The learner step from which the run was resumed."""
    change: Change


def differences(held: Experiment, given: Experiment, exclude: Any = None, absent: Any = None) -> list[Change]:
    """The settings that differ between a working directory's experiment and a given one, sorted by name.

    `exclude`: settings to leave out, as in pydantic; `absent`: the value of one that an experiment lacks.
    """
    changes = [Change(key, *values) for key, values in side_by_side((held, given), exclude, absent).items()]
    # Runs from before the digest of a file was recorded hold None.
    return [change for change in changes if not (change.setting.endswith(".sha256") and change.old is None)]


def side_by_side(experiments: Sequence[Experiment], exclude: Any = None, absent: Any = None) -> dict[str, list[Any]]:
    """As `differences`, of any number of experiments: the settings that are not the same in all, with their values."""
    trees = [flatten(experiment.model_dump(mode="json", exclude=exclude)) for experiment in experiments]
    rows = {key: [tree.get(key, absent) for tree in trees] for key in sorted({key for tree in trees for key in tree})}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}


_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)")
"""An address, such as that of object storage; `pathlib` leaves one slash of two."""
STEP_NAME = re.compile("[0-9]{1,15}")
"""A learner step as text."""
LATEST_TIME = 1e11
"""Latest plausible time, in seconds since the epoch (the year 5138); later times mark damaged lines."""
_LONG = ("metrics.", "train.log")
"""How the names of the long files begin."""
SWEEP_FILE = "sweep.json"
"""The file by which the folder of a sweep is known; the working directories of its runs are the folders beside it."""


class WorkdirError(PodzeroError, RuntimeError):
    """A working directory that cannot be used; the message says why and what to do."""


class InUse(WorkdirError):
    """Another live process works in the directory; it may end."""

    exit_code = TRY_AGAIN


class Inheritance(NamedTuple):
    """What an experiment takes over from those that it extends."""

    lineage: str
    """As in `Layers`."""
    settings: Mapping[str, str]
    """The file of each inherited setting, by the setting's dotted name."""


class Workdir:
    """The layout of one working directory.

    experiment.yaml            the resolved experiment
    changes.jsonl              settings that were changed when the run was resumed, one JSON object a line: the time `t`
                               (Unix seconds), the learner step, the setting, its old and its new value
    inherited.json             which experiments the run's own extended at its start, and the settings taken from each
    checkpoints/STEP/          checkpoints: learner/ (Orbax), replay/shard-K/ (Reverb), run.json
    snapshots/STEP/            acting parameters, for players and ratings
    published/STEP/            the newest ones that Ray could not transfer
    code/DIGEST/NAME.py        copies of the files of the user's own that the experiment names
    teacher/                   a copy of the agent that the run learns from: experiment.yaml and one snapshot
    .../lost-STEP/             checkpoints and snapshots after the step from which the run was resumed
    metrics.jsonl              the metrics of each kind of worker, one JSON object a line
    tensorboard/               the same metrics for TensorBoard
    status.json                the newest status, replaced as a whole every few seconds
    train.log                  the log
    hardware.json              the nodes of the cluster when the run started or resumed last
    writers.json               names of this run at Weights & Biases and MLflow
    matches/                   games that `podzero evaluate` played, as SGF or PGN
    games/STEP.jsonl           games of the evaluator's rounds, one JSON object a line
    videos/                    episodes that `podzero play` recorded
    traces/TIME/PROCESS/       profiler traces of running processes; trace.json asks the driver for them
    """

    def __init__(self, root: str | Path, works: bool = False) -> None:
        """Takes the directory's path, or its address in a bucket; it need not exist.

        Of one in a bucket the copy of this machine is used: that of the run's processes if this one `works` in the
        directory, else one for readers, which is brought up to date.
        """
        copy = copy_of(root, "run" if works else "read")
        if copy is None:
            refuse_url(root)
        self.root = Path(os.path.expanduser(root)).absolute() if copy is None else copy
        self._lock_file = self.root / ".lock"
        self.experiment_file = self.root / "experiment.yaml"
        self.changes_file = self.root / "changes.jsonl"
        self.inherited_file = self.root / "inherited.json"
        self.checkpoints = self.root / "checkpoints"
        self.snapshots = self.root / "snapshots"
        self.published = self.root / "published"
        self.code = self.root / "code"
        self.teacher = self.root / "teacher"
        self.metrics_file = self.root / "metrics.jsonl"
        self.tensorboard = self.root / "tensorboard"
        self.status_file = self.root / "status.json"
        self.log_file = self.root / "train.log"
        self.hardware_file = self.root / "hardware.json"
        self.writers_file = self.root / "writers.json"
        self.games = self.root / "games"
        self.traces = self.root / "traces"
        self.trace_file = self.root / "trace.json"
        self._is_read = copy is not None and not works
        self.refresh()

    def refresh(self, long: bool = False) -> None:
        """Brings a reader's copy of a directory in a bucket up to date; its log and metrics only if `long`."""
        if self._is_read:
            self._get_files(() if long else _LONG)

    def replace_copy(self) -> None:
        """Replaces the copy of a directory in a bucket, with which another machine may have gone on meanwhile.

        For the process that holds the lock.
        """
        if not store_of(self.root).remote:
            return
        for path in self.root.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
        self._get_files()

    def _get_files(self, without: tuple[str, ...] = ()) -> None:
        """Gets the files at the top of a directory in a bucket, except those whose names begin so."""
        store = store_of(self.root)
        present = {name for name in store.list(self.root) if "." in name[1:]}
        for name in present:
            if not name.startswith(without):
                store.get(self.root / name)
        for file in self.root.iterdir() if self.root.is_dir() else ():
            if file.is_file() and file.name not in {*present, self._lock_file.name} and file.suffix != ".html":
                file.unlink()
        if self._is_read and not present:
            shutil.rmtree(self.root, ignore_errors=True)

    @property
    def is_run(self) -> bool:
        """Whether the directory holds an experiment."""
        return self.experiment_file.is_file()

    def experiment(self) -> Experiment:
        """Reads the experiment of this directory; a `WorkdirError` says if there is none, or its file is damaged."""
        if not self.is_run:
            raise WorkdirError(f"{self.root} is not a working directory: it holds no experiment.yaml")
        try:
            return self.with_copied_code(parse(read_tree(self.experiment_file), str(self.experiment_file)))
        except (OSError, ConfigError) as error:
            raise WorkdirError(f"the experiment of {self.root} cannot be read: {error}") from None

    def with_copied_code(self, experiment: Experiment) -> Experiment:
        """The experiment with this directory's copies of the files that it names, as far as there are any."""
        if experiment.own_files:
            store_of(self.code).get(self.code)
        copies = {section: own.copied_to(copy) for section, own, copy in self._copies(experiment) if copy.is_file()}
        return experiment.with_sections(copies)

    def keep_code(self, experiment: Experiment) -> Experiment:
        """Copies the files that the experiment names into this directory; returns the experiment with the copies.

        The run and its players thus have, on all nodes, the files with which it was started.
        """
        for section, own, copy in self._copies(experiment):
            if copy.is_file():
                continue
            assert own.file is not None
            with os_errors(WorkdirError, f"{section}: cannot copy {own.file} to {copy}"):
                copy.parent.mkdir(parents=True, exist_ok=True)
                with written_together(copy.parent) as folder:
                    copied = shutil.copyfile(own.file, folder / copy.name)
                    if not str(file_digest(str(copied))).startswith(copy.parent.name):
                        changed = f"{section}: {own.file} has changed since the experiment was read; start it again"
                        raise WorkdirError(changed)
            store_of(copy).put(copy)
        return self.with_copied_code(experiment)

    def _copies(self, experiment: Experiment) -> Iterator[tuple[str, OwnFile, Path]]:
        """The dotted names and sections that name a file of known digest, and where this directory keeps its copy."""
        for section, own in experiment.own_files.items():
            if own.file is not None and own.sha256 is not None:
                yield section, own, self.code / own.sha256[:12] / own.file.name

    def check(self, experiment: Experiment) -> None:
        """Refuses to run `experiment` in a directory that holds another one; the message names what differs."""
        changes = differences(self.experiment(), experiment, CHANGEABLE) if self.is_run else []
        if changes:
            listed = "\n".join(f"  {change}" for change in changes)
            raise WorkdirError(
                f"{self.root} holds another experiment:\n{listed}\n"
                f"Resume that run with: podzero train {shlex.quote(str(self.root))}\n"
                "Or choose another --workdir for this experiment"
            )

    def open(self, experiment: Experiment, step: int = 0, layers: Layers | None = None) -> None:
        """Writes `experiment` into this directory, creating it if missing, and records changed settings.

        The run starts or resumes at learner step `step`. What the experiment inherits from its files, `layers`, is
        recorded for the report; it is written as a whole, so that nothing else needs these files.
        """
        self.check(experiment)
        changes = differences(self.experiment(), experiment) if self.is_run else []
        with self._writing():
            self.root.mkdir(parents=True, exist_ok=True)
            if changes:
                now = round(time.time(), 3)
                lines = [json.dumps({"t": now, "step": step, **change._asdict()}) + "\n" for change in changes]
                write_atomically(self.changes_file, "".join([self._read_changes(), *lines]))
            if layers is not None and layers.inherited:
                inherited = {"lineage": layers.lineage, "settings": layers.inherited}
                write_atomically(self.inherited_file, json.dumps(inherited))
            write_atomically(self.experiment_file, experiment.to_yaml())

    def changes(self) -> list[RecordedChange]:
        """The settings that were changed when the run was resumed, oldest first; damaged lines are skipped."""
        found = []
        for line in self._read_changes().splitlines():
            # Only the report reads this record: a line that was edited or damaged must not end anything.
            with suppress(ValueError):
                match parse_json(line):
                    case {
                        "t": int() | float() as t,
                        "step": int(step),
                        "setting": str(setting),
                        "old": old,
                        "new": new,
                    }:
                        if 0 <= t < LATEST_TIME:
                            found.append(RecordedChange(t, step, Change(setting, old, new)))
        return found

    def inheritance(self) -> Inheritance | None:
        """What the experiment inherited when the run started; None if nothing, or if the record is damaged."""
        match read_json(self.inherited_file):
            case {"lineage": str(lineage), "settings": {**settings}}:
                return Inheritance(lineage, {str(name): str(origin) for name, origin in settings.items()})
        return None

    def lock(self) -> DirectoryLock:
        """Reserves the directory, made if missing, until the lock is closed; `InUse` if another process has it."""
        with self._writing():
            self.root.mkdir(parents=True, exist_ok=True)
        try:
            return DirectoryLock(self._lock_file)
        except Held as held:
            raise InUse(f"{self.root} is in use: {held.holder} works there") from None
        except OSError as error:
            if error.filename is not None:  # not the lock, but the file could not be made
                with self._writing():
                    raise
            raise WorkdirError(
                f"cannot lock {self._lock_file}: {error.strerror or error}; choose a --workdir on a file system "
                "with flock, or in a bucket that exists"
            ) from None

    def holder(self) -> LockHolder | None:
        """The process that trains here, on any machine, that is, holds the lock; None if no process does."""
        return holder_of(self._lock_file)

    def _read_changes(self) -> str:
        return self.changes_file.read_text(errors="replace", encoding="utf-8") if self.changes_file.exists() else ""

    def _writing(self) -> AbstractContextManager[None]:
        return os_errors(WorkdirError, f"cannot write the working directory {self.root}")


def refuse_url(path: str | Path) -> None:
    """Refuses addresses such as `gs://bucket/run` and `file:///run`; the message says what to use instead."""
    if url := _URL.fullmatch(str(path)):
        raise WorkdirError(
            f"{url[1]}://{url[2]} is not a folder; only runs may be in buckets: gs://BUCKET/NAME, s3://BUCKET/NAME. "
            "Give a folder of this machine, for example runs/NAME; for several machines one on a file system that they "
            "share, for example /shared/NAME (NFS, Filestore; docs/tpu.md)"
        )


def sweep_runs(folder: Path) -> list[Path]:
    """The working directories in the folder of a sweep, sorted by name; empty if it is no such folder."""
    if not (folder / SWEEP_FILE).is_file():
        return []
    return sorted(file.parent for file in folder.glob("*/experiment.yaml"))


def split_step(name: str) -> tuple[Path, int | None] | None:
    """The directory and the step of `DIR`, `DIR@STEP` or `DIR@best`; None if there is no such directory."""
    # The name of a directory may itself contain an @.
    if _is_directory(name):
        return Path(name), None
    folder, at, step = name.rpartition("@")
    if not at or not _is_directory(folder):
        return None
    if step == "best":
        return Path(folder), best_step(Workdir(folder))
    if not STEP_NAME.fullmatch(step):
        raise ConfigError(f"{name}: expected a learner step or `best` after the @, for example {folder}@1200")
    return Path(folder), int(step)


def best_step(workdir: Workdir) -> int:
    """The learner step of the snapshot with the best score of an evaluation, by the run's status."""
    workdir.refresh()
    try:
        return int(parse_json(workdir.status_file.read_text(encoding="utf-8"))["best"]["best_step"])
    except (OSError, ValueError, KeyError, TypeError):
        why = "no snapshot of this run has been judged, or its status is damaged"
        raise ConfigError(f"{workdir.root}@best: {why}; name one by its step") from None


def _is_directory(name: str) -> bool:
    return bool(name) and os.path.isdir(Workdir(name).root)


def keep_as(folder: Path, prefix: str) -> Path:
    """Renames a complete folder to `PREFIX-NAME`, numbered if that exists; returns the new path."""
    kept = unused(folder.with_name(f"{prefix}-{folder.name}"))
    store_of(folder).commit(folder, kept)
    return kept


def unused(path: Path) -> Path:
    """The first of `PATH`, `PATH-2`, `PATH-3`, ... that does not exist."""
    free, number, taken = path, 1, store_of(path.parent).list(path.parent)
    while free.name in taken:
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def step_folders(parent: Path) -> list[int]:
    """The steps for which `parent` has a folder, ascending."""
    names = filter(STEP_NAME.fullmatch, store_of(parent).list(parent))
    return sorted(int(name) for name in names if not (parent / name).is_file())


def step_folder(parent: Path, step: int) -> Path:
    """The folder of a step."""
    # Zeros make the names sort in the order of their steps.
    return parent / f"{step:09d}"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces a file: readers see the old content or the new one, never a part, even after a power failure."""
    # Each process has its own, since several may write the same file; in the same folder, so that the rename is atomic.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    sync(temporary)
    os.replace(temporary, path)
    # The new name is an entry of the folder, and on disk only with it.
    sync(path.parent)


@contextmanager
def written_together(target: Path) -> Iterator[Path]:
    """A temporary folder, whose files replace those in `target` at the end; after an error they are deleted."""
    with TemporaryDirectory(dir=target, prefix=".new-") as folder:
        yield Path(folder)
        for written in Path(folder).iterdir():
            sync(written)
            os.replace(written, target / written.name)
        sync(target)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty if the file is missing or damaged."""
    try:
        with path.open(encoding="utf-8") as file:
            tree = parse_json(file.read(LARGEST_FILE))
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}
