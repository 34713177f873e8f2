"""Checkpoints: complete states of a run, from which it resumes. Each is one folder.

    checkpoints/STEP/learner/          the learner's state (Orbax)
                     replay/shard-K/   the contents of the replay shards (Reverb)
                     run.json          counters of the run and the rating ladder

A checkpoint is written under another name and renamed when it is complete and on disk.
"""

from __future__ import annotations

import json
import logging
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from podzero.cluster.remote import RemoteActor
from podzero.errors import PodzeroError
from podzero.storage import LEARNER_FOLDER, LEARNER_MANIFEST, SHARD_MANIFEST, StorageError, read_saved
from podzero.workdir import Workdir, step_folder, step_folders, sync, sync_tree, write_atomically

log = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 600.0
VISIBLE_TIMEOUT_S = 60.0
"""Longest wait until the driver sees what other nodes have written: NFS keeps its view of a folder for a minute."""
_POLL_S = 0.5
_UNFINISHED = ".unfinished"
_REPLACED = ".replaced"
_RUN_FILE = "run.json"


class RunFileDamaged(PodzeroError, RuntimeError):
    """The `run.json` of a checkpoint is missing or damaged; an older checkpoint may be intact."""


class Checkpoint(NamedTuple):
    """A complete state of a run."""

    step: int
    folder: Path
    counters: dict[str, float]
    ladder: dict[str, Any]
    fault: RunFileDamaged | StorageError | None = None
    """Why the counters and the ladder could not be read; both are empty then, and no run may start from them."""

    def shard(self, index: int) -> Path:
        """The folder with the contents of a replay shard."""
        return _shard_folder(self.folder, index)


def checkpoints(workdir: Workdir) -> list[Checkpoint]:
    """The checkpoints of a working directory, newest first."""
    # If the process died while a checkpoint of the same step was being replaced, the old one has another name.
    folders = {int(old.stem): old for old in workdir.checkpoints.glob(f"[0-9]*{_REPLACED}")}
    folders |= {step: step_folder(workdir.checkpoints, step) for step in step_folders(workdir.checkpoints)}
    return [_read(step, folders[step]) for step in sorted(folders, reverse=True)]


def write_checkpoint(
    workdir: Workdir,
    save_learner: Callable[[Path], int],
    shards: Sequence[RemoteActor],
    counters: Mapping[str, float],
    ladder: Mapping[str, Any],
    keep: int,
) -> int:
    """Writes a checkpoint and deletes the oldest ones; returns its step.

    Args:
      workdir: where it goes.
      save_learner: writes the learner's state below a folder and returns its step.
      shards: the replay shards.
      counters: the counters of the run.
      ladder: the rating ladder.
      keep: how many checkpoints are kept.

    Raises:
      ClusterError, WorkerDied: a worker did not answer; the checkpoints before are untouched.
      StorageError: this node does not see what a worker wrote; the checkpoints before are untouched.
      OSError: it cannot be written; the checkpoints before are untouched.
    """
    for abandoned in workdir.checkpoints.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    # A new name each time, so that a late write of an abandoned checkpoint cannot end up in this one.
    unfinished = workdir.checkpoints / f"{_UNFINISHED}-{time.time_ns()}"
    unfinished.mkdir(parents=True)
    saves = [shard.begin("checkpoint", _shard_folder(unfinished, i)) for i, shard in enumerate(shards)]
    step = save_learner(unfinished)
    for save in saves:
        save.result(WRITE_TIMEOUT_S)
    _check_visible(unfinished, shards)
    write_atomically(unfinished / _RUN_FILE, json.dumps({"counters": counters, "ladder": ladder}))
    sync_tree(unfinished)
    _move_into_place(unfinished, step_folder(workdir.checkpoints, step))
    for old in step_folders(workdir.checkpoints)[:-keep]:
        shutil.rmtree(step_folder(workdir.checkpoints, old), ignore_errors=True)
    return step


def set_aside(checkpoint: Checkpoint, reason: Exception) -> None:
    """Renames a damaged checkpoint, so that it is kept but not used, and logs a warning."""
    aside = checkpoint.folder.with_name(f"damaged-{checkpoint.folder.stem}")
    shutil.rmtree(aside, ignore_errors=True)
    checkpoint.folder.rename(aside)
    log.warning("the checkpoint of step %d cannot be used and is kept as %s", checkpoint.step, aside, exc_info=reason)


def newest_checkpoint(workdir: Workdir) -> Checkpoint | None:
    """The newest checkpoint of a working directory whose counters can be read."""
    return next((found for found in checkpoints(workdir) if found.fault is None), None)


def _check_visible(folder: Path, shards: Sequence[RemoteActor]) -> None:
    """Checks that the driver sees the parts of a checkpoint, which learner and shards wrote on their own nodes.

    Raises:
      StorageError: it does not, so that the run could not resume; the message names the part, and who wrote it.
    """
    parts = [("the learner", folder / LEARNER_FOLDER / LEARNER_MANIFEST)]
    for index, shard in enumerate(shards):
        parts.append((f"{shard.name} on node {shard.node}", _shard_folder(folder, index) / SHARD_MANIFEST))
    deadline = time.monotonic() + VISIBLE_TIMEOUT_S
    while missing := [(writer, file) for writer, file in parts if not file.is_file()]:
        if time.monotonic() >= deadline:
            writer, file = missing[0]
            raise StorageError(
                f"{writer} wrote {file}, but the driver on {socket.gethostname()} does not see it: the working "
                "directory must be on storage that all nodes share, mounted at the same path. Until then no checkpoint "
                "is complete"
            )
        time.sleep(_POLL_S)


def _move_into_place(unfinished: Path, folder: Path) -> None:
    """Renames a complete checkpoint to its final name. At every moment this step has a complete checkpoint."""
    replaced = folder.with_name(folder.name + _REPLACED)
    if folder.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        folder.rename(replaced)
    unfinished.rename(folder)
    sync(folder.parent)
    for old in folder.parent.glob(f"[0-9]*{_REPLACED}"):
        shutil.rmtree(old, ignore_errors=True)


def _read(step: int, folder: Path) -> Checkpoint:
    try:
        return Checkpoint(step, folder, *_read_run(folder))
    except (RunFileDamaged, StorageError) as fault:
        return Checkpoint(step, folder, {}, {}, fault)


def _read_run(folder: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """The counters and the ladder in the folder of a checkpoint.

    Raises:
      RunFileDamaged: they are missing or damaged.
      StorageError: they cannot be read now.
    """
    try:
        text = read_saved(folder, _RUN_FILE)
        if text is None:
            raise RunFileDamaged(f"{folder} has no {_RUN_FILE}: the checkpoint was not finished")
        run = json.loads(text)
        return {name: float(value) for name, value in run["counters"].items()}, dict(run["ladder"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunFileDamaged(f"{folder / _RUN_FILE} is damaged: {error}") from error


def _shard_folder(folder: Path, index: int) -> Path:
    return folder / "replay" / f"shard-{index}"
