"""Checkpoints of the learner: Orbax files, written by all hosts, and a manifest.

The manifest holds the digest of every file and the fingerprint of every leaf, which the devices compute.

All hosts must save and restore in the same order, in a folder on shared storage.
"""

from __future__ import annotations

import ast
import errno
import math
import re
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from podzero.core.errors import PodzeroError
from podzero.envs.packing import is_key
from podzero.files import storage
from podzero.files.store import store_of
from podzero.files.workdir import write_atomically
from podzero.learner.devices import explained
from podzero.learner.sharding import map_named, named_leaves, placed, replicated
from podzero.learner.step import TrainState

SAVE_TIMEOUT_S = 600.0
"""Longest time for which a save waits for the previous one."""
_ARRAYS = "arrays"
_OS_ERROR = re.compile(r"OS error (\d+)")
"""The operating system's error number in messages of TensorStore."""
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""Error numbers of a missing file; the checkpoint is then damaged."""


class CheckpointMismatch(PodzeroError, ValueError):
    """The checkpoint is intact, but of another network or optimizer."""


class CheckpointDamaged(PodzeroError, RuntimeError):
    """The checkpoint is incomplete or was changed after it was written; an older one may be intact."""


class LearnerCheckpoints:
    """Saves train states in the background, and restores them onto any mesh."""

    def __init__(self, mesh: Mesh) -> None:
        # Orbax takes half a second to import; of all processes only learners need it.
        import orbax.checkpoint as ocp

        _mend_tensorstore()
        self._orbax, self._args = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()), ocp.args
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="learner-checkpoint")
        self._last: Future[None] | None = None
        self._copy = jax.jit(lambda leaves: jax.tree.map(jnp.copy, leaves))
        self._fingerprints = jax.jit(partial(jax.tree.map, fingerprint), out_shardings=replicated(mesh))

    def save(self, step_dir: Path, state: TrainState) -> Future[None]:
        """Starts to write `state`, without its teacher, into `step_dir/learner`; the future resolves when that is done.

        Waits for a save in progress first. The state may be donated as soon as this returns.
        """
        if self._last is not None:
            wait([self._last], SAVE_TIMEOUT_S)
        leaves = self._copy(_stored(replace(state, teacher=None)))
        # A program that spans hosts must run on all of them, so it comes before anything that may fail on one.
        fingerprints = self._fingerprints(leaves)
        folder = step_dir.absolute() / storage.LEARNER_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        # Orbax synchronizes the hosts by a transfer to the devices.
        with jax.transfer_guard_host_to_device("allow"):
            # `force`: a save that did not end may have left files there.
            self._orbax.save(folder / _ARRAYS, args=self._args.StandardSave(leaves), force=True)
        self._last = self._writer.submit(self._finish, folder, leaves, fingerprints)
        return self._last

    def restore(self, step_dir: Path, like: TrainState) -> TrainState:
        """The saved state without a teacher, of the shapes and shardings of `like` (arrays or `jax.ShapeDtypeStruct`).

        Raises:
          CheckpointMismatch: the leaves differ from those of `like`; the message names the first one.
          CheckpointDamaged: the checkpoint is incomplete or was changed after it was written.
          StorageError: this host cannot read the files, which may be intact.
          DoesNotFit: a device has too little memory for the state.
        """
        like = replace(like, teacher=None)
        folder = step_dir.absolute() / storage.LEARNER_FOLDER
        store_of(folder).get(folder)
        manifest, files = _read_manifest(folder)
        shapes = jax.eval_shape(_stored, like)
        targets = {name: placed(shapes[name], leaf.sharding) for name, leaf in named_leaves(like).items()}
        _check_match(folder, manifest, targets)
        # One host reads everything; if it raises, the driver ends the others.
        if jax.process_index() == 0 and (name := storage.altered(folder / _ARRAYS, files)) is not None:
            raise CheckpointDamaged(f"{folder}: {_ARRAYS}/{name} is missing, cut short or altered")
        try:
            leaves = self._orbax.restore(folder / _ARRAYS, args=self._args.StandardRestore(targets))
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            # Memory, a device or another host failed, not the checkpoint.
            raise explained(error) from error
        except Exception as error:
            # Orbax and TensorStore raise many types for damaged files.
            if _is_storage_error(error):
                raise storage.unreadable(folder, error) from error
            raise CheckpointDamaged(f"{folder} cannot be read: {error}") from error
        # The digests say nothing of what was altered on the way from the devices into the files.
        for name, found in jax.device_get(self._fingerprints(leaves)).items():
            if as_text(found) != manifest[name]["fingerprint"]:
                raise CheckpointDamaged(f"{folder}: '{name}' was changed after it was saved (its fingerprint differs)")

        def restored(name: str, leaf: Any) -> jax.Array:
            found: jax.Array = leaves[name]
            return jax.random.wrap_key_data(found) if is_key(leaf) else found

        state: TrainState = map_named(restored, like)
        return state

    def close(self) -> None:
        """Waits for the last save, then ends the threads."""
        self._writer.shutdown()
        self._orbax.close()

    def _finish(self, folder: Path, leaves: dict[str, jax.Array], fingerprints: dict[str, jax.Array]) -> None:
        found = jax.device_get(fingerprints)
        manifest = {
            name: {"shape": list(leaf.shape), "dtype": str(leaf.dtype), "fingerprint": as_text(found[name])}
            for name, leaf in leaves.items()
        }
        self._orbax.wait_until_finished()
        if jax.process_index() == 0:
            text = storage.sealed({"leaves": manifest, "files": storage.digests(folder / _ARRAYS)})
            write_atomically(folder / storage.LEARNER_MANIFEST, text)


@cache
def _mend_tensorstore() -> None:
    """Replaces two functions of TensorStore (0.1.75 to 0.1.86) which never free the values of the dicts they return.

    Orbax calls the first for each leaf, the second twice in a save: for tic_tac_toe 6 MiB an hour.
    """
    import tensorstore

    specs: Any = tensorstore.KvStore.Spec
    leaking = specs.to_json

    def to_json(spec: Any, **options: bool) -> Any:
        return leaking(spec, **options) if options else ast.literal_eval(repr(spec).partition("(")[2][:-1])

    specs.to_json = to_json
    tensorstore.experimental_collect_matching_metrics = lambda *_: []


def _stored(state: TrainState) -> dict[str, Any]:
    """The leaves by name, with PRNG keys as raw arrays."""
    return {name: jax.random.key_data(leaf) if is_key(leaf) else leaf for name, leaf in named_leaves(state).items()}


def _read_manifest(folder: Path) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The leaves by name, and the digests of the files; checkpoints of older versions have none."""
    file = folder / storage.LEARNER_MANIFEST
    try:
        text = storage.read_saved(file, folder.parent)
        if text is None:
            raise CheckpointDamaged(f"{folder} has no {storage.LEARNER_MANIFEST}: the checkpoint was not finished")
        manifest = storage.unsealed(text)
        known = ("shape", "dtype", "fingerprint")
        leaves = {name: {key: leaf[key] for key in known} for name, leaf in manifest["leaves"].items()}
        return leaves, dict(manifest.get("files", {}))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointDamaged(f"{file} is damaged: {error}") from error


def _is_storage_error(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, comes from the storage and not from the content of the files."""
    while error is not None:
        named = _OS_ERROR.search(str(error))
        number = error.errno if isinstance(error, OSError) else int(named[1]) if named else None
        if number is not None and number not in _MISSING:
            return True
        error = error.__cause__ or error.__context__
    return False


def _check_match(folder: Path, manifest: dict[str, dict[str, Any]], targets: dict[str, jax.ShapeDtypeStruct]) -> None:
    stored = {name: f"{leaf['dtype']}{leaf['shape']}" for name, leaf in manifest.items()}
    expected = {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in targets.items()}
    for name in [*expected, *stored]:
        if stored.get(name) != expected.get(name):
            raise CheckpointMismatch(
                f"{folder} belongs to another network or optimizer: '{name}' is {stored.get(name, 'absent')} there and "
                f"{expected.get(name, 'absent')} in this experiment; choose another working directory, or the network "
                "and optimizer of the checkpoint"
            )


_SALTS = (0x9E3779B9, 0x85EBCA6B)
"""One salt for each of the two sums: the golden ratio's fraction, and a constant of MurmurHash3."""


def fingerprint(leaf: jax.Array) -> jax.Array:
    """The fingerprint, `[2]` uint32, of an array of any shape with elements of at most 32 bits.

    A change of one word always changes it, because the hash is a bijection of the word. Other changes leave it equal
    with a probability of about 2**-64. It detects damage, not forgery.
    """
    words, position = _words(leaf), _positions(leaf.shape)
    return jnp.stack([jnp.sum(_mix(words ^ _mix(position + np.uint32(salt))), dtype=jnp.uint32) for salt in _SALTS])


def as_text(value: Any) -> str:
    """A fingerprint as 16 hexadecimal digits."""
    return "".join(f"{int(word):08x}" for word in np.asarray(value))


def _words(leaf: jax.Array) -> jax.Array:
    """The bits of each element as one uint32."""
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint32)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
    return jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32)


def _positions(shape: tuple[int, ...]) -> jax.Array:
    """The index of each element in row-major order, modulo 2**32."""
    position = jnp.zeros(shape, jnp.uint32)
    for dimension in range(len(shape)):
        stride = np.uint32(math.prod(shape[dimension + 1 :]) % 2**32)
        position += jax.lax.broadcasted_iota(jnp.uint32, shape, dimension) * stride
    return position


def _mix(word: jax.Array) -> jax.Array:
    """The finalizer of MurmurHash3 (Appleby 2011, public domain): a bijection in which each bit affects all 32."""
    word = (word ^ (word >> 16)) * np.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * np.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
