"""The working directory of a run: where its files lie, which process may write them, and which experiment they hold."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

import yaml

from podzero.config import Experiment, parse
from podzero.errors import ConfigError, PodzeroError

_CHANGEABLE: Any = {
    **dict.fromkeys(("stop", "evaluation", "checkpoint", "metrics", "cluster", "restarts", "int8", "server"), True),
    "actors": {"count", "min_count", "cpus", "inference", "resources", "moves_per_dispatch"},
    "search": {"tree"},
    "network": {"remat"},
    "learner": {"mesh", "microbatches", "calibrate", "cpu_convolutions"},
    "replay": {"cpus", "memory_gib"},
}
"""The settings that may differ when a run is resumed: they do not change what is learned."""


class WorkdirError(PodzeroError, RuntimeError):
    """A working directory that cannot be used; the message says why and what to do."""


class Workdir:
    """The layout of one working directory.

    experiment.yaml            the resolved experiment
    checkpoints/STEP/          checkpoints: learner/ (Orbax), replay/shard-K/ (Reverb), run.json
    snapshots/STEP/            acting parameters, for players and ratings
    metrics.jsonl              the metrics of every worker, one JSON object a line
    tensorboard/               the same metrics for TensorBoard
    status.json                the newest status, replaced as a whole every few seconds
    train.log                  the log
    hardware.json              the nodes of the cluster when the run started or resumed last
    writers.json               names of this run at Weights & Biases and MLflow
    matches/                   games that `podzero evaluate` played, as SGF or PGN
    games/STEP.jsonl           games of the evaluator's rounds, one JSON object a line
    videos/                    episodes that `podzero play` recorded
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).expanduser().absolute()
        self.experiment_file = self.root / "experiment.yaml"
        self.checkpoints = self.root / "checkpoints"
        self.snapshots = self.root / "snapshots"
        self.metrics_file = self.root / "metrics.jsonl"
        self.tensorboard = self.root / "tensorboard"
        self.status_file = self.root / "status.json"
        self.log_file = self.root / "train.log"
        self.hardware_file = self.root / "hardware.json"
        self.writers_file = self.root / "writers.json"
        self.games = self.root / "games"

    @property
    def is_run(self) -> bool:
        """Whether the directory holds an experiment."""
        return self.experiment_file.is_file()

    def experiment(self) -> Experiment:
        """Reads the experiment of this directory.

        Raises:
          WorkdirError: there is none, or its file is damaged.
        """
        if not self.is_run:
            raise WorkdirError(f"{self.root} is not a working directory: it holds no experiment.yaml")
        try:
            return parse(yaml.safe_load(self.experiment_file.read_text()), str(self.experiment_file))
        except (OSError, yaml.YAMLError, ConfigError) as error:
            raise WorkdirError(f"{self.experiment_file} cannot be read: {error}") from None

    def check(self, experiment: Experiment) -> None:
        """Checks that `experiment` can run in this directory, which may be new; changes nothing.

        Raises:
          WorkdirError: the directory holds another experiment; names the settings that differ.
        """
        changes = differences(self.experiment(), experiment, _CHANGEABLE) if self.is_run else []
        if changes:
            listed = "\n".join(f"  {change}" for change in changes)
            raise WorkdirError(
                f"{self.root} holds another experiment:\n{listed}\n"
                "Choose another --workdir, or give the same experiment to resume it."
            )

    def open(self, experiment: Experiment) -> None:
        """Writes `experiment` into this directory, which is created if it is missing.

        Raises:
          WorkdirError: the directory holds another experiment, or cannot be written.
        """
        self.check(experiment)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            write_atomically(self.experiment_file, experiment.to_yaml())
        except OSError as error:
            raise self._not_writable(error) from None

    def lock(self) -> IO[str]:
        """Reserves the directory for this process until the returned file is closed; creates it if it is missing.

        Raises:
          WorkdirError: another live process works here, or the directory cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            file = (self.root / ".lock").open("a+")
        except OSError as error:
            raise self._not_writable(error) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise WorkdirError(f"{self.root} is in use: process {holder} works there") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        return file

    def _not_writable(self, error: OSError) -> WorkdirError:
        return WorkdirError(f"cannot write the working directory {self.root}: {error.strerror}")


def step_folders(parent: Path) -> list[int]:
    """The steps for which `parent` has a folder, ascending."""
    if not parent.is_dir():
        return []
    return sorted(int(child.name) for child in parent.iterdir() if child.is_dir() and child.name.isdigit())


def step_folder(parent: Path, step: int) -> Path:
    """The folder of a step; its name is padded with zeros, so that names sort in the order of their steps."""
    return parent / f"{step:09d}"


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file: readers see the old text or the new one, never a part, even after a power failure."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    sync(temporary)
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Waits until the contents of a file, or the names in a folder, are on disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems without fsync for folders
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Waits until everything below `folder` is on disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty if the file is missing or damaged."""
    try:
        tree = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def differences(held: Experiment, given: Experiment, exclude: Any = None) -> list[str]:
    """Lists the settings that differ, as `field: holds X, given Y`.

    Args:
      held: the experiment of a working directory.
      given: the experiment to compare.
      exclude: settings to leave out, in the form of pydantic's `exclude`.
    """
    old, new = (flatten(e.model_dump(mode="json", exclude=exclude)) for e in (held, given))
    return [
        f"{key}: holds {old.get(key)}, given {new.get(key)}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turns a nested mapping into one level with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
