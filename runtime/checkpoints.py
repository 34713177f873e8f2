"""Checkpoints: complete states of a run, from which it resumes. Each is one folder.

    checkpoints/STEP/learner/          the learner's state (Orbax)
                     replay/shard-K/   the contents of the replay shards (Reverb)
                     run.json          counters of the run, the rating ladder, and the parts of the checkpoint

The learner is saved more often than replay. `run.json` names the parts: for each its folder, which is an older
checkpoint's where replay was not saved with the learner, and the digest of the part's own manifest, so that parts which
do not belong together are refused.

Each part is written under a hidden name, by learner and shards themselves, and renamed when it is complete and on disk;
then it is named in `run.json`. A run resumes from the newest checkpoint whose learner and run.json are whole, with the
newest contents of replay that were saved before it. A replay shard that is damaged there takes the contents of the
newest older checkpoint in which it is whole; without any, it is empty.
"""

from __future__ import annotations

import logging
import math
import shlex
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from podzero.core.errors import PodzeroError
from podzero.files import storage
from podzero.files.storage import LEARNER_FOLDER, REPLAY_FOLDER, StorageError, shard_folder
from podzero.files.store import UNFINISHED, store_of
from podzero.files.workdir import Workdir, read_json, step_folder, step_folders, unused, write_atomically
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S, RemoteActor

log = logging.getLogger(__name__)

SHARD_TIMEOUT_S = BUILD_TIMEOUT_S
"""Longest time for a replay shard to write its contents: the same as for restoring them."""
VISIBLE_TIMEOUT_S = 60.0
"""Longest wait until the driver sees what other nodes have written: NFS keeps its view of a folder for a minute."""
_POLL_S = 0.5
_DAMAGED = "damaged-"
_RUN_FILE = "run.json"
KEEP_DAMAGED = 2
"""How many damaged checkpoints are kept under other names."""
PER_DOUBLING = 4
"""How many rated snapshots are kept for each doubling of the step."""


class RunFileDamaged(PodzeroError, RuntimeError):
    """The `run.json` of a checkpoint is missing, damaged, or of other parts; an older checkpoint may be intact."""


class SavedShard(NamedTuple):
    """The contents of a replay shard in a checkpoint, which may be damaged."""

    folder: Path
    samples: int
    """The number of samples; 0 if unknown."""
    digest: str = ""
    """The digest of the shard's own manifest; empty in checkpoints of earlier versions."""


class Checkpoint(NamedTuple):
    """A complete state of a run."""

    step: int
    folder: Path
    counters: Mapping[str, float]
    ladder: Mapping[str, Any]
    shards: Sequence[SavedShard]
    """The contents of each replay shard, here or in an older checkpoint; empty before replay was ever saved."""
    replay_step: int = -1
    """The step of the checkpoint in which the shards are; -1 before replay was ever saved."""
    digest: str = ""
    """The digest of the learner's own manifest; empty in checkpoints of earlier versions."""
    fault: RunFileDamaged | StorageError | None = None
    """Why `run.json` could not be read. Counters, ladder and shards are then empty, and no run may start from here."""
    before: tuple[Checkpoint, ...] = ()
    """The older checkpoints, newest first."""

    def shard(self, index: int) -> list[SavedShard]:
        """The contents of a replay shard in this checkpoint and in the older ones, newest first."""
        found: dict[Path, SavedShard] = {}
        for checkpoint in (self, *self.before):
            # What a damaged run.json said of its shards is unknown; they may be whole.
            own = [SavedShard(shard_folder(checkpoint.folder, index), 0)] if checkpoint.fault else []
            for shard in [*own, *checkpoint.shards[index : index + 1]]:
                found.setdefault(shard.folder, shard)
        return sorted(found.values(), key=lambda shard: storage.checkpoint_of(shard.folder).name, reverse=True)

    @property
    def whole(self) -> bool:
        """Whether replay was saved with the learner, or the run has none."""
        return self.fault is None and self.replay_step == self.step

    def check(self) -> None:
        """Raises why no run may start from here, as far as `run.json` tells: it is damaged, or of another learner."""
        if self.fault is not None:
            raise self.fault
        manifest = self.folder / LEARNER_FOLDER / storage.LEARNER_MANIFEST
        store_of(manifest).get(manifest)
        if not storage.belongs(manifest, self.digest):
            raise RunFileDamaged(
                f"{manifest} is not the one that {self.folder / _RUN_FILE} names by its digest: the learner's state "
                "was changed, or copied from another checkpoint"
            )


def checkpoints(workdir: Workdir) -> list[Checkpoint]:
    """The checkpoints of a working directory, newest first; raises `StorageError` if it cannot be read."""
    with storage.reading(workdir.checkpoints):
        found: list[Checkpoint] = []
        for step in step_folders(workdir.checkpoints):
            found.insert(0, _read(step, step_folder(workdir.checkpoints, step))._replace(before=tuple(found)))
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


def write_learner(
    workdir: Workdir,
    save_learner: Callable[[Path], int],
    counters: Mapping[str, float],
    ladder: Mapping[str, Any],
    has_replay: bool = True,
    confirm: Callable[[], None] = lambda: None,
) -> int:
    """Writes a checkpoint of the learner, which names the newest saved contents of replay; returns its step.

    `save_learner` writes the learner's state below a folder and returns its step; `confirm` raises if this process may
    no longer write here. If there is a checkpoint of this
    step, it holds the same state, and stays. After any error the earlier checkpoints are untouched.
    """
    store = store_of(workdir.checkpoints)
    with _unfinished(workdir, "learner") as unfinished:
        step = save_learner(unfinished)
        manifest = unfinished / LEARNER_FOLDER / storage.LEARNER_MANIFEST
        _check_visible([("the learner", manifest)])
        folder = step_folder(workdir.checkpoints, step)
        if folder.name in store.list(folder.parent) and _read(step, folder).fault is None:
            return step
        store.delete(folder)
        saved = next((found for found in checkpoints(workdir) if found.whole and has_replay), None)
        replay = (saved.shards, saved.step) if saved else ((), -1 if has_replay else step)
        _write_run(Checkpoint(step, unfinished, counters, ladder, *replay, storage.digest_of(manifest)))
        store.put(unfinished)
        confirm()
        store.commit(unfinished, folder)
    return step


def add_replay(
    workdir: Workdir,
    step: int,
    shards: Sequence[RemoteActor],
    counters: Mapping[str, float],
    ladder: Mapping[str, Any],
    confirm: Callable[[], None] = lambda: None,
) -> None:
    """Adds the contents of the replay shards to the checkpoint of a step, in place of earlier ones there."""
    store, folder = store_of(workdir.checkpoints), step_folder(workdir.checkpoints, step)
    with _unfinished(workdir, "replay") as unfinished:
        deadline = time.monotonic() + SHARD_TIMEOUT_S
        saves = [shard.begin("checkpoint", shard_folder(unfinished, i)) for i, shard in enumerate(shards)]
        samples = [int(save.result(max(0.0, deadline - time.monotonic()))) for save in saves]
        manifests = [shard_folder(unfinished, i) / storage.SHARD_MANIFEST for i in range(len(shards))]
        _check_visible([(f"{one.name} on node {one.node}", file) for one, file in zip(shards, manifests, strict=True)])
        saved = [*zip(samples, map(storage.digest_of, manifests), strict=True)]
        store.put(unfinished)
        # The earlier contents stay until run.json names these.
        place = unused(folder / REPLAY_FOLDER)
        store.commit(unfinished / REPLAY_FOLDER, place)
    if (found := _read(step, folder)).fault is not None:
        raise found.fault
    # Those are the learner's, which may have trained on, and been lost, since its part was written.
    kept = {name: count for name, count in found.counters.items() if name == "training_s"}
    confirm()
    named = [SavedShard(shard_folder(folder, index, place.name), *part) for index, part in enumerate(saved)]
    _write_run(found._replace(counters={**counters, **kept}, ladder=ladder, shards=named, replay_step=step))
    for name in store.list(folder):
        if name.startswith(REPLAY_FOLDER) and name != place.name:
            store.delete(folder / name)


def delete_old(workdir: Workdir, keep: int, spared: int = -1) -> None:
    """Deletes all checkpoints but the newest `keep`, the newest `keep` with replay, those whose replay these name, and
    that of step `spared`. What cannot be deleted stays until the next time.
    """
    with suppress(OSError, StorageError):
        delete_unfinished(workdir, "[0-9]")  # deletions that were interrupted
        found = checkpoints(workdir)
        kept = [*found[:keep], *[checkpoint for checkpoint in found if checkpoint.whole][:keep]]
        steps = {spared, *(step for checkpoint in kept for step in (checkpoint.step, checkpoint.replay_step))}
        for checkpoint in found:
            if checkpoint.step not in steps:
                store_of(checkpoint.folder).delete(checkpoint.folder)


def amend(checkpoint: Checkpoint, counters: Mapping[str, float], ladder: Mapping[str, Any]) -> None:
    """Replaces the counters and the rating ladder of a checkpoint."""
    _write_run(checkpoint._replace(counters=counters, ladder=ladder))


def age_s(checkpoint: Checkpoint) -> float:
    """Seconds since a checkpoint was written, by the storage's clock and this machine's."""
    with suppress(OSError):
        return max(0.0, time.time() - (checkpoint.folder / _RUN_FILE).stat().st_mtime)
    return 0.0


def delete_unfinished(workdir: Workdir, part: str = "") -> None:
    """Deletes the remains of interrupted writes, by default of all, and deletions. Only one process may save."""
    store = store_of(workdir.checkpoints)
    for name in store.list(workdir.checkpoints):
        if fnmatch(name, f"{UNFINISHED}{part}*"):
            store.delete(workdir.checkpoints / name)


def set_aside(checkpoint: Checkpoint, reason: Exception) -> None:
    """Renames a damaged checkpoint, so that it is kept but not used; keeps the newest `KEEP_DAMAGED` of these."""
    aside = checkpoint.folder.with_name(f"{_DAMAGED}{checkpoint.folder.stem}")
    store = store_of(aside)
    store.commit(checkpoint.folder, aside)
    log.warning("the checkpoint of step %d cannot be used and is kept as %s", checkpoint.step, aside, exc_info=reason)
    damaged = [aside.with_name(name) for name in store.list(aside.parent) if fnmatch(name, f"{_DAMAGED}[0-9]*")]
    for old in damaged[:-KEEP_DAMAGED]:
        store.delete(old)
        log.warning("the damaged checkpoint %s was deleted: %d newer ones are kept", old, KEEP_DAMAGED)


def newest_checkpoint(workdir: Workdir) -> Checkpoint | None:
    """The newest checkpoint whose counters can be read."""
    return next((found for found in checkpoints(workdir) if found.fault is None), None)


@contextmanager
def _unfinished(workdir: Workdir, part: str) -> Iterator[Path]:
    """A hidden folder for a part, which is moved from there once complete; deletes the remains of earlier attempts."""
    delete_unfinished(workdir, part)
    # A new name each time, so that a late write of an abandoned attempt cannot end up in this one.
    folder = workdir.checkpoints / f"{UNFINISHED}{part}-{time.time_ns()}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        # Unless it has been committed after all, which a bucket tells. What a worker still writes there is deleted by
        # the next attempt.
        with suppress(OSError, StorageError):
            if folder.name in store_of(folder).list(folder.parent):
                store_of(folder).delete(folder)


def _check_visible(parts: Sequence[tuple[str, Path]]) -> None:
    """Checks that the driver sees the manifests of parts, each with who wrote it, perhaps on another node."""
    deadline = time.monotonic() + VISIBLE_TIMEOUT_S
    while missing := [each for each in parts if each[1].name not in store_of(each[1]).list(each[1].parent)]:
        if time.monotonic() >= deadline:
            writer, file = missing[0]
            raise StorageError(
                f"{writer} wrote {file}, but the driver on {socket.gethostname()} does not see it: the working "
                "directory must be on storage that all nodes share, mounted at the same path. Until then no checkpoint "
                "is complete"
            )
        time.sleep(_POLL_S)
    for _, file in parts:
        store_of(file).get(file)


def _read(step: int, folder: Path) -> Checkpoint:
    file, fault = folder / _RUN_FILE, None
    try:
        store_of(file).get(file)
        text = storage.read_saved(file, folder)
        if text is None:
            raise RunFileDamaged(f"{folder} has no {_RUN_FILE}: the checkpoint was not finished")
        run = storage.unsealed(text)
        counters = {name: float(value) for name, value in run["counters"].items()}
        if "samples" in run:  # earlier versions saved all parts together
            run["replay"] = {"step": step, "folder": REPLAY_FOLDER, "shards": [[held, ""] for held in run["samples"]]}
        replay_step, place = int(run["replay"]["step"]), Path(run["replay"]["folder"]).name
        holder = step_folder(folder.parent, replay_step)
        shards = [
            SavedShard(shard_folder(holder, index, place), int(samples), str(digest))
            for index, (samples, digest) in enumerate(run["replay"]["shards"])
        ]
        return Checkpoint(step, folder, counters, dict(run["ladder"]), shards, replay_step, str(run.get("learner", "")))
    except (RunFileDamaged, StorageError) as found:
        fault = found
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        fault = RunFileDamaged(f"{file} is damaged: {error}")
    return Checkpoint(step, folder, {}, {}, [], fault=fault)


def _write_run(checkpoint: Checkpoint) -> None:
    place = checkpoint.shards[0].folder.parent.name if checkpoint.shards else REPLAY_FOLDER
    shards = [[shard.samples, shard.digest] for shard in checkpoint.shards]
    run = {
        "counters": dict(checkpoint.counters),
        "ladder": dict(checkpoint.ladder),
        "learner": checkpoint.digest,
        "replay": {"step": checkpoint.replay_step, "folder": place, "shards": shards},
    }
    file = checkpoint.folder / _RUN_FILE
    write_atomically(file, storage.sealed(run))
    store_of(file).put(file)


def delete_old_snapshots(folder: Path, newest: int, ladder: Mapping[str, Any], best: int = -1) -> None:
    """Deletes the snapshots in `folder` that `kept_snapshots` leaves out, given the run's rating ladder, but not that
    of step `best`.
    """
    steps = step_folders(folder)
    for step in set(steps) - kept_snapshots(steps, newest, rated_steps(ladder)) - {best}:
        store_of(folder).delete(step_folder(folder, step))


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
