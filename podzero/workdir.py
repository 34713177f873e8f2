"""A working directory is the whole experiment: where each thing lies, who holds it, and what it may hold."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

import yaml

from podzero.config import Experiment, parse
from podzero.errors import ConfigError

_FREE: Any = {
    **dict.fromkeys(("stop", "evaluation", "checkpoint", "cluster"), True),
    "actors": {"count", "min_count", "cpus", "max_restarts"},
    "network": {"remat"},
    "learner": {"mesh", "microbatches", "calibrate"},
    "replay": {"cpus"},
}
"""What may change from one resumption to the next: it does not change what is learned."""


class WorkdirError(RuntimeError):
    """A working directory that cannot be used; the message says why and what to do."""


class Workdir:
    """The layout of one working directory.

    experiment.yaml            the resolved experiment
    checkpoints/STEP/          complete states: learner/ (Orbax), replay/shard-K/ (Reverb), run.json
    snapshots/STEP/            acting parameters, small and many: what players and ratings are made of
    metrics.jsonl              every figure of every role, one JSON object a line
    tensorboard/               the same for TensorBoard
    status.json                the newest figures, replaced as a whole every few seconds
    train.log                  the log
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

    @property
    def is_run(self) -> bool:
        """Whether an experiment lives here."""
        return self.experiment_file.is_file()

    def experiment(self) -> Experiment:
        """The experiment that lives here.

        Raises:
          WorkdirError: there is none, or its file is damaged.
        """
        if not self.is_run:
            raise WorkdirError(f"{self.root} is no working directory: it holds no experiment.yaml")
        try:
            return parse(yaml.safe_load(self.experiment_file.read_text()), str(self.experiment_file))
        except (OSError, yaml.YAMLError, ConfigError) as error:
            raise WorkdirError(f"{self.experiment_file} cannot be read: {error}") from None

    def open(self, experiment: Experiment) -> bool:
        """Makes the directory ready for `experiment`; returns whether it is a resumption.

        Only what `_FREE` names may differ from what the directory holds.

        Raises:
          WorkdirError: it cannot be written, or holds another experiment; nothing has been changed then.
        """
        if self.is_run:
            changes = differences(self.experiment(), experiment, _FREE)
            if changes:
                listed = "\n".join(f"  {change}" for change in changes)
                raise WorkdirError(
                    f"{self.root} holds another experiment:\n{listed}\n"
                    "Choose another --workdir, or give the same experiment to resume it."
                )
        resumed = self.is_run
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            write_atomically(self.experiment_file, experiment.to_yaml())
        except OSError as error:
            raise WorkdirError(f"cannot write the working directory {self.root}: {error.strerror}") from None
        return resumed

    def lock(self) -> IO[str]:
        """Holds the directory for this process until the returned file is closed.

        Raises:
          WorkdirError: another live process trains here.
        """
        file = (self.root / ".lock").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise WorkdirError(f"{self.root} is in use: process {holder} trains there") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        return file


def step_folders(parent: Path) -> list[int]:
    """The steps of which `parent` holds a folder, ascending."""
    if not parent.is_dir():
        return []
    return sorted(int(child.name) for child in parent.iterdir() if child.is_dir() and child.name.isdigit())


def step_folder(parent: Path, step: int) -> Path:
    """The folder of a step, named so that names sort as numbers do."""
    return parent / f"{step:09d}"


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file as a whole: a reader sees the old text or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty when there is no such file or it is damaged."""
    try:
        tree = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def differences(held: Experiment, given: Experiment, free: Any = None) -> list[str]:
    """`field: holds X, given Y` for each field that differs, those aside that `free` names (pydantic's `exclude`)."""
    old, new = (flatten(e.model_dump(mode="json", exclude=free)) for e in (held, given))
    return [
        f"{key}: holds {old.get(key)}, given {new.get(key)}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping as one level with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
