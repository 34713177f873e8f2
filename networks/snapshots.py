"""Snapshots: acting parameters on disk, one folder per learner step, written atomically.

`STEP/params.msgpack` is the nested dict of arrays, and `STEP/manifest.json` holds the experiment and a SHA-256 of every
leaf. Reading needs no template, no Ray and no device.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import serialization

from podzero.config import Experiment
from podzero.core.errors import PodzeroError
from podzero.core.types import ModelNetwork, Network, Params, Versioned
from podzero.files.storage import sealed, unsealed
from podzero.files.store import UNFINISHED, store_of
from podzero.files.workdir import step_folder, step_folders

log = logging.getLogger(__name__)

PARAMS_FILE = "params.msgpack"
MANIFEST_FILE = "manifest.json"
_FORMAT = 1


class SnapshotError(PodzeroError, RuntimeError):
    """A snapshot is missing, damaged, unreadable, or belongs to another network; the message says which and where."""


def save_snapshot(folder: Path, step: int, params: Params, experiment: Experiment) -> Path:
    """Writes the snapshot of a step into `folder` (`Workdir.snapshots`), and returns its path.

    An existing one is replaced. Parameters are nested mappings with string keys; the snapshot records the experiment.
    Only one process at a time may write to `folder`; any number may read.
    """
    tree = serialization.to_state_dict(jax.device_get(params))
    content = {
        "format": _FORMAT,
        "step": step,
        # Snapshots are shared, and the address of a webhook is a secret.
        "experiment": experiment.changed(metrics={"alert": None}).model_dump(mode="json"),
        "leaves": {path: _digest(leaf) for path, leaf in _leaves(tree).items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    store = store_of(folder)
    for abandoned in store.list(folder):
        if abandoned.startswith(UNFINISHED):
            store.delete(folder / abandoned)
    # Written elsewhere and renamed: if the machine dies, the step's folder is complete or missing.
    partial, final = folder / f"{UNFINISHED}{time.time_ns()}", step_folder(folder, step)
    partial.mkdir()
    (partial / PARAMS_FILE).write_bytes(serialization.msgpack_serialize(tree))
    (partial / MANIFEST_FILE).write_text(sealed(content), encoding="utf-8")
    store.put(partial)
    store.commit(partial, final)
    return final


def load_snapshot(folder: Path, step: int | None = None) -> Versioned:
    """Reads the parameters of a step, or the newest intact ones with a warning for each damaged snapshot.

    Raises:
      SnapshotError: the requested step is missing or damaged, or no snapshot is intact.
    """
    if step is not None:
        return _read(folder, step)
    for newest in reversed(snapshot_steps(folder)):
        try:
            return _read(folder, newest)
        except SnapshotError as error:
            log.warning("%s; falling back to the one before", error)
    raise SnapshotError(f"{folder} holds no intact snapshot; has the run trained long enough to write one?")


def snapshot_steps(folder: Path) -> list[int]:
    """The steps of the snapshots in `folder`, ascending; they are checked only when they are loaded."""
    return step_folders(folder)


def _read(folder: Path, step: int) -> Versioned:
    where = step_folder(folder, step)
    store_of(where).get(where)
    expected = _manifest(folder, step)["leaves"]
    content = _bytes(where / PARAMS_FILE)
    try:
        tree = serialization.msgpack_restore(content)
        found = {path: _digest(leaf) for path, leaf in _leaves(tree).items()}
    # The unpacker may raise anything for flipped bytes.
    except Exception as error:
        raise SnapshotError(f"snapshot {where} is damaged: {PARAMS_FILE} cannot be unpacked ({error})") from error
    for path in sorted({*expected, *found}):
        if expected.get(path) != found.get(path):
            raise SnapshotError(f"snapshot {where} is damaged: {path} does not have the SHA-256 it was saved with")
    return Versioned(step, tree)


def _manifest(folder: Path, step: int) -> dict[str, Any]:
    """The verified manifest of a step."""
    where = step_folder(folder, step)
    if not where.is_dir():
        known = ", ".join(map(str, snapshot_steps(folder))) or "none"
        raise SnapshotError(f"{folder} holds no snapshot of step {step}; there are: {known}")
    read = _bytes(where / MANIFEST_FILE)
    try:
        content = {"format": None, "step": None} | unsealed(read.decode())
        content["leaves"] = dict(content["leaves"])
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"snapshot {where} is damaged: {MANIFEST_FILE} cannot be used ({error})") from None
    if content["format"] != _FORMAT:
        raise SnapshotError(f"snapshot {where} has format {content['format']}, this podzero reads format {_FORMAT}")
    if content["step"] != step:
        raise SnapshotError(f"snapshot {where} is misplaced: it was saved as step {content['step']}")
    return content


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise SnapshotError(f"snapshot {file.parent} is damaged: {file.name} is missing") from None
    except OSError as error:
        raise SnapshotError(f"snapshot {file.parent} cannot be read on {platform.node()}: {error}") from None


def _digest(leaf: np.ndarray[Any, Any]) -> str:
    """SHA-256 of dtype, shape and contents."""
    head = f"{leaf.dtype.name}{leaf.shape}".encode()
    return hashlib.sha256(head + leaf.tobytes()).hexdigest()


def _leaves(tree: Params) -> dict[str, Any]:
    """Every leaf of nested dicts by its path, such as `heads/value/kernel`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def check_matches(params: Params, network: Network | ModelNetwork, origin: str) -> None:
    """Raises `SnapshotError` unless names, shapes and dtypes of all leaves are those of `network`.

    The message calls the parameters `origin`, and names the first leaf that differs.
    """
    # Shapes depend on observations and actions, so this refuses the parameters of most other games too.
    expected, found = _leaves(jax.eval_shape(network.init, jax.random.key(0))), _leaves(params)
    for path in sorted({*expected, *found}):
        wanted, given = (_form(leaves.get(path)) for leaves in (expected, found))
        if wanted != given:
            raise SnapshotError(
                f"{origin} holds parameters of another network: at {path} the network of this experiment has "
                f"{wanted}, found {given}; use the experiment (network and env sections) that they were trained with"
            )


def _form(leaf: Any) -> str:
    """Dtype and shape, such as `float32[3, 3, 2, 64]`."""
    return "nothing" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"
