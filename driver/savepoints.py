"""Savepoints: complete states of a run, from which it goes on. One folder each, whole or absent.

    checkpoints/STEP/learner/          the learner's state (Orbax)
                     replay/shard-K/   the shards' contents (Reverb)
                     run.json          counters of the run and the rating ladder

A savepoint is written under another name and renamed when everything in it is complete.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from podzero.cluster.remote import RemoteActor
from podzero.workdir import Workdir, read_json, step_folder, step_folders, write_atomically

log = logging.getLogger(__name__)

WRITE_TIMEOUT_S = 600.0
_UNFINISHED = ".unfinished"
_RUN_FILE = "run.json"


class Savepoint(NamedTuple):
    """A complete state of a run."""

    step: int
    folder: Path
    counters: dict[str, float]
    ladder: dict[str, Any]

    def shard(self, index: int) -> Path:
        """Where a shard's contents lie."""
        return _shard_folder(self.folder, index)


def savepoints(workdir: Workdir) -> list[Savepoint]:
    """The savepoints of a working directory, newest first."""
    found = []
    for step in reversed(step_folders(workdir.checkpoints)):
        folder = step_folder(workdir.checkpoints, step)
        run = read_json(folder / _RUN_FILE)
        found.append(Savepoint(step, folder, run.get("counters", {}), run.get("ladder", {})))
    return found


def write_savepoint(
    workdir: Workdir,
    save_learner: Callable[[Path], int],
    shards: Sequence[RemoteActor],
    counters: dict[str, float],
    ladder: dict[str, Any],
    keep: int,
) -> int:
    """Writes a savepoint and removes the oldest beyond `keep`; returns its step.

    Args:
      workdir: where it goes.
      save_learner: writes the learner's state below a folder and returns its step.
      shards: of replay.
      counters: of the run.
      ladder: of ratings.
      keep: how many savepoints stay.

    Raises:
      ClusterError, WorkerDied: a role did not answer; whatever was there before is untouched.
    """
    for abandoned in workdir.checkpoints.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    unfinished = workdir.checkpoints / f"{_UNFINISHED}-{time.time_ns()}"  # a new name, so that no late part lands in it
    unfinished.mkdir(parents=True)
    saves = [shard.begin("checkpoint", _shard_folder(unfinished, i)) for i, shard in enumerate(shards)]
    step = save_learner(unfinished)
    for save in saves:
        save.result(WRITE_TIMEOUT_S)
    write_atomically(unfinished / _RUN_FILE, json.dumps({"counters": counters, "ladder": ladder}))

    folder = step_folder(workdir.checkpoints, step)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    for old in step_folders(workdir.checkpoints)[:-keep]:
        shutil.rmtree(step_folder(workdir.checkpoints, old), ignore_errors=True)
    return step


def set_aside(savepoint: Savepoint, reason: Exception) -> None:
    """Takes a damaged savepoint out of the way without deleting it, and says so."""
    aside = savepoint.folder.with_name(f"damaged-{savepoint.folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    savepoint.folder.rename(aside)
    log.warning("the savepoint of step %d cannot be used (%s); it is kept as %s", savepoint.step, reason, aside)


def _shard_folder(folder: Path, index: int) -> Path:
    return folder / "replay" / f"shard-{index}"
