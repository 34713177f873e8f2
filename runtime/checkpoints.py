"""Checkpoints: complete states of a run, from which it resumes. Each is one folder.

    checkpoints/STEP/learner/          the learner's state (Orbax)
                     replay/shard-K/   the contents of the replay shards (Reverb)
                     run.json          counters of the run, the rating ladder, the number of samples of each shard

A checkpoint is written under a hidden name, by learner and shards themselves, and renamed when it is complete and on
disk. A run resumes from the newest one whose learner and run.json are whole. A replay shard that is damaged there takes
the contents of the newest older checkpoint in which it is whole; without any, it is empty.
"""

from __future__ import annotations

import logging
import math
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from podzero.core.errors import PodzeroError
from podzero.files.storage import (
    LEARNER_FOLDER,
    LEARNER_MANIFEST,
    SHARD_MANIFEST,
    StorageError,
    read_saved,
    reading,
    sealed,
    shard_folder,
    unsealed,
)
from podzero.files.workdir import (
    Workdir,
    read_json,
    step_folder,
    step_folders,
    sync,
    sync_tree,
    unused,
    write_atomically,
)
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S, RemoteActor

log = logging.getLogger(__name__)

SHARD_TIMEOUT_S = BUILD_TIMEOUT_S
"""Longest time for a replay shard to write its contents: the same as for restoring them."""
VISIBLE_TIMEOUT_S = 60.0
"""Longest wait until the driver sees what other nodes have written: NFS keeps its view of a folder for a minute."""
_POLL_S = 0.5
_UNFINISHED = ".unfinished"
_REPLACED = ".replaced"
_DAMAGED = "damaged-"
_RUN_FILE = "run.json"
KEEP_DAMAGED = 2
"""How many damaged checkpoints are kept under other names."""
PER_DOUBLING = 4
"""How many rated snapshots are kept for each doubling of the step."""


class RunFileDamaged(PodzeroError, RuntimeError):
    """The `run.json` of a checkpoint is missing or damaged; an older checkpoint may be intact."""


class SavedShard(NamedTuple):
    """The contents of a replay shard in a checkpoint, which may be damaged."""

    folder: Path
    samples: int
    """The number of samples; 0 if unknown."""


class Checkpoint(NamedTuple):
    """A complete state of a run."""

    step: int
    folder: Path
    counters: dict[str, float]
    ladder: dict[str, Any]
    samples: list[int]
    """The number of samples in each replay shard."""
    fault: RunFileDamaged | StorageError | None = None
    """Why `run.json` could not be read. Counters, ladder and samples are then empty, and no run may start from here."""
    before: tuple[Checkpoint, ...] = ()
    """The older checkpoints, newest first."""

    def shard(self, index: int) -> list[SavedShard]:
        """The contents of a replay shard in this checkpoint and in the older ones, newest first."""
        return [
            SavedShard(shard_folder(found.folder, index), dict(enumerate(found.samples)).get(index, 0))
            for found in (self, *self.before)
        ]


def checkpoints(workdir: Workdir) -> list[Checkpoint]:
    """The checkpoints of a working directory, newest first; raises `StorageError` if it cannot be read."""
    with reading(workdir.checkpoints):
        # If the process died while a checkpoint of the same step was being replaced, the old one has another name.
        folders = {int(old.stem): old for old in workdir.checkpoints.glob(f"[0-9]*{_REPLACED}")}
        folders |= {step: step_folder(workdir.checkpoints, step) for step in step_folders(workdir.checkpoints)}
        found: list[Checkpoint] = []
        for step in sorted(folders):
            found.insert(0, _read(step, folders[step])._replace(before=tuple(found)))
        return found


def seen_checkpoints(workdir: Workdir, seen: int | None = None) -> list[Checkpoint]:
    """The checkpoints of a working directory, newest first; empty only if it never had one."""
    found = checkpoints(workdir)
    if seen is None:  # the step of one that this process knows of
        seen = read_json(workdir.status_file).get("checkpoint_step")
    if not found and isinstance(seen, int):
        raise StorageError(
            f"{workdir.checkpoints} shows no checkpoint on {socket.gethostname()}, but the run had one of step "
            f"{seen:,}: is the storage mounted? Nothing begins again at step 0 by itself. Bring the folder back and "
            f"give the same command again, or begin in a new directory: podzero train {anew(workdir)}"
        )
    return found


def anew(workdir: Workdir) -> str:
    """The arguments of `podzero train` that begin a run again at step 0, in a new directory."""
    return shlex.join([str(workdir.experiment_file), "--workdir", str(unused(workdir.root))])


def write_checkpoint(
    workdir: Workdir,
    save_learner: Callable[[Path], int],
    shards: Sequence[RemoteActor],
    counters: Mapping[str, float],
    ladder: Mapping[str, Any],
    keep: int,
) -> int:
    """Writes a checkpoint and deletes all but the newest `keep`; returns its step.

    `save_learner` writes the learner's state below a folder and returns its step. After any error the earlier
    checkpoints are untouched.
    """
    delete_unfinished(workdir)
    # A new name each time, so that a late write of an abandoned checkpoint cannot end up in this one.
    unfinished = workdir.checkpoints / f"{_UNFINISHED}-{time.time_ns()}"
    unfinished.mkdir(parents=True)
    try:
        deadline = time.monotonic() + SHARD_TIMEOUT_S
        saves = [shard.begin("checkpoint", shard_folder(unfinished, i)) for i, shard in enumerate(shards)]
        step = save_learner(unfinished)
        samples = [int(save.result(max(0.0, deadline - time.monotonic()))) for save in saves]
        _check_visible(unfinished, shards)
        _write_run(unfinished, counters, ladder, samples)
        sync_tree(unfinished)
    except Exception:
        shutil.rmtree(unfinished, ignore_errors=True)  # the next attempt deletes what a worker may still write there
        raise
    _move_into_place(unfinished, step_folder(workdir.checkpoints, step))
    for old in step_folders(workdir.checkpoints)[:-keep]:
        _delete(step_folder(workdir.checkpoints, old))
    return step


def amend(checkpoint: Checkpoint, counters: Mapping[str, float], ladder: Mapping[str, Any]) -> None:
    """Replaces the counters and the rating ladder of a checkpoint."""
    _write_run(checkpoint.folder, counters, ladder, checkpoint.samples)


def age_s(checkpoint: Checkpoint) -> float:
    """Seconds since a checkpoint was written, by the storage's clock and this machine's."""
    with suppress(OSError):
        return max(0.0, time.time() - (checkpoint.folder / _RUN_FILE).stat().st_mtime)
    return 0.0


def delete_unfinished(workdir: Workdir) -> None:
    """Deletes the remains of interrupted writes and deletions. Only one process may save."""
    for abandoned in workdir.checkpoints.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(abandoned, ignore_errors=True)


def set_aside(checkpoint: Checkpoint, reason: Exception) -> None:
    """Renames a damaged checkpoint, so that it is kept but not used; keeps the newest `KEEP_DAMAGED` of these."""
    aside = checkpoint.folder.with_name(f"{_DAMAGED}{checkpoint.folder.stem}")
    shutil.rmtree(aside, ignore_errors=True)
    checkpoint.folder.rename(aside)
    log.warning("the checkpoint of step %d cannot be used and is kept as %s", checkpoint.step, aside, exc_info=reason)
    for old in sorted(aside.parent.glob(f"{_DAMAGED}[0-9]*"))[:-KEEP_DAMAGED]:
        _delete(old)
        log.warning("the damaged checkpoint %s was deleted: %d newer ones are kept", old, KEEP_DAMAGED)


def newest_checkpoint(workdir: Workdir) -> Checkpoint | None:
    """The newest checkpoint whose counters can be read."""
    return next((found for found in checkpoints(workdir) if found.fault is None), None)


def _check_visible(folder: Path, shards: Sequence[RemoteActor]) -> None:
    """Checks that the driver sees the parts of a checkpoint that learner and shards wrote on their own nodes."""
    parts = [("the learner", folder / LEARNER_FOLDER / LEARNER_MANIFEST)]
    for index, shard in enumerate(shards):
        parts.append((f"{shard.name} on node {shard.node}", shard_folder(folder, index) / SHARD_MANIFEST))
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


def _delete(folder: Path) -> None:
    """Deletes a checkpoint under a hidden name, so that half of it is never taken for a whole one."""
    with suppress(OSError):  # the next save tries again
        hidden = folder.rename(folder.with_name(f"{_UNFINISHED}-{folder.name}"))
        shutil.rmtree(hidden, ignore_errors=True)


def _read(step: int, folder: Path) -> Checkpoint:
    file, fault = folder / _RUN_FILE, None
    try:
        text = read_saved(file, folder)
        if text is None:
            raise RunFileDamaged(f"{folder} has no {_RUN_FILE}: the checkpoint was not finished")
        run = unsealed(text)
        counters = {name: float(value) for name, value in run["counters"].items()}
        return Checkpoint(step, folder, counters, dict(run["ladder"]), [int(samples) for samples in run["samples"]])
    except (RunFileDamaged, StorageError) as found:
        fault = found
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        fault = RunFileDamaged(f"{file} is damaged: {error}")
    return Checkpoint(step, folder, {}, {}, [], fault)


def _write_run(folder: Path, counters: Mapping[str, float], ladder: Mapping[str, Any], samples: Sequence[int]) -> None:
    run = {"counters": dict(counters), "ladder": dict(ladder), "samples": list(samples)}
    write_atomically(folder / _RUN_FILE, sealed(run))


def delete_old_snapshots(folder: Path, newest: int, ladder: Mapping[str, Any]) -> None:
    """Deletes the snapshots in `folder` that `kept_snapshots` leaves out, given the run's rating ladder."""
    steps = step_folders(folder)
    for step in set(steps) - kept_snapshots(steps, newest, rated_steps(ladder)):
        shutil.rmtree(step_folder(folder, step), ignore_errors=True)


def kept_snapshots(steps: Collection[int], newest: int, rated: Collection[int]) -> set[int]:
    """Of the `steps` of all snapshots, those whose snapshots are kept; `rated` are the steps with a rating.

    These are the newest ones, and the rated ones that the evaluator may choose as opponents: the last rated one, and
    for every doubling of the step the first in each of `PER_DOUBLING` equal intervals of its logarithm. The evaluator
    chooses the one nearest to half of the current step.
    """
    candidates = sorted(set(rated) & set(steps))
    first = {int(PER_DOUBLING * math.log2(max(step, 1))): step for step in reversed(candidates)}
    return {*sorted(steps)[-newest:], *candidates[-1:], *first.values()}


def rated_steps(ladder: Mapping[str, Any]) -> set[int]:
    """The steps of the snapshots in a rating ladder, where they are called `@STEP`."""
    names = {row[player] for row in ladder.get("results", ()) for player in ("first", "second")}
    return {int(name[1:]) for name in names if name.startswith("@") and name[1:].isdigit()}
