"""Checkpoints are restored onto other meshes, and refused if they are damaged or of another network."""

import errno
import gc
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import mutated

from podzero.config import MeshConfig, OptimizerConfig
from podzero.core.errors import PodzeroError
from podzero.core.types import Network
from podzero.files.storage import StorageError, sealed, unsealed
from podzero.learner.checkpoints import CheckpointDamaged, CheckpointMismatch, LearnerCheckpoints, as_text, fingerprint
from podzero.learner.devices import DoesNotFit
from podzero.learner.optimizers import make_optimizer
from podzero.learner.sharding import AXES, make_mesh, placed, state_shardings
from podzero.learner.step import init_state


@pytest.fixture(scope="module")
def checkpoints():
    checkpoints = LearnerCheckpoints(make_mesh(MeshConfig()))
    yield checkpoints
    checkpoints.close()


@pytest.fixture
def state(network):
    return make_state(network)


def make_state(network, seed=7, **optimizer):
    mesh = make_mesh(MeshConfig())
    state = init_state(network.init, make_optimizer(OptimizerConfig(**optimizer)), jax.random.key(seed))
    return jax.device_put(state, state_shardings(mesh, state, MeshConfig()))


def like(state):
    shapes = jax.eval_shape(lambda: state)
    return placed(shapes, state_shardings(make_mesh(MeshConfig()), shapes, MeshConfig()))


def save(checkpoints, folder, state):
    checkpoints.save(folder, state).result(60)


def words(state):
    return [
        np.array(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in jax.tree.leaves(state)
    ]


def test_restored_states_are_bitwise_equal(checkpoints, state, tmp_path):
    save(checkpoints, tmp_path / "7", state)
    found = checkpoints.restore(tmp_path / "7", like(state))
    assert jax.tree.structure(found) == jax.tree.structure(state)
    for saved, restored in zip(words(state), words(found), strict=True):
        np.testing.assert_array_equal(saved, restored)
    assert jax.random.key_impl(found.key) == jax.random.key_impl(state.key)


def test_restored_leaves_have_the_shardings_of_the_mesh(checkpoints, state, tmp_path):
    save(checkpoints, tmp_path / "7", state)
    found = checkpoints.restore(tmp_path / "7", like(state))
    assert found.params["heads"]["kernel"].sharding.mesh.axis_names == AXES


def test_saves_keep_no_memory(checkpoints, state, tmp_path):
    """Fewer than eight blocks for each leaf: TensorStore kept some eighteen."""

    def blocks(name):
        for number in range(4):
            save(checkpoints, tmp_path / f"{name}-{number}", state)
        gc.collect()
        return sys.getallocatedblocks()

    blocks("first")
    before = blocks("second")
    assert (blocks("third") - before) / 4 < 8 * len(jax.tree.leaves(state))


def test_a_state_may_be_donated_as_soon_as_save_returns(checkpoints, state, tmp_path):
    expected = words(state)
    future = checkpoints.save(tmp_path / "7", state)
    double = jax.jit(lambda params: jax.tree.map(lambda leaf: 2 * leaf + 1, params), donate_argnums=0)
    jax.block_until_ready(double(state.params))
    assert state.params["heads"]["kernel"].is_deleted()
    future.result(60)
    found = checkpoints.restore(tmp_path / "7", like(make_state_like(state)))
    for saved, restored in zip(expected, words(found), strict=True):
        np.testing.assert_array_equal(saved, restored)


def make_state_like(state):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)


def test_a_flipped_byte_in_any_file_is_damage(checkpoints, state, tmp_path):
    save(checkpoints, tmp_path / "7", state)
    files = [path for path in (tmp_path / "7").rglob("*") if path.is_file()]
    assert any("ocdbt.process_0" in str(file) for file in files)
    for file in files:
        intact = file.read_bytes()
        for part in (0.2, 0.5, 0.8):
            content = bytearray(intact)
            content[int(part * len(content))] ^= 0x10
            file.write_bytes(bytes(content))
            with pytest.raises(CheckpointDamaged, match=file.name):
                checkpoints.restore(tmp_path / "7", like(state))
        file.write_bytes(intact)
    checkpoints.restore(tmp_path / "7", like(state))


def rewrite(manifest, change):
    """Changes a manifest before its digest is taken."""
    content = unsealed(manifest.read_text())
    change(content)
    manifest.write_text(sealed(content))


def test_a_checkpoint_of_an_older_version_without_digests_is_restored(checkpoints, state, tmp_path):
    save(checkpoints, tmp_path / "7", state)
    rewrite(tmp_path / "7" / "learner" / "manifest.json", lambda manifest: manifest.pop("files"))
    found = checkpoints.restore(tmp_path / "7", like(state))
    for saved, restored in zip(words(state), words(found), strict=True):
        np.testing.assert_array_equal(saved, restored)


def test_a_leaf_that_was_altered_before_its_file_was_written_is_damage(checkpoints, state, tmp_path):
    save(checkpoints, tmp_path / "7", state)

    def alter(manifest):
        manifest["leaves"]["step"]["fingerprint"] = "0" * 16

    rewrite(tmp_path / "7" / "learner" / "manifest.json", alter)
    with pytest.raises(CheckpointDamaged, match=r"'step' .*its fingerprint differs"):
        checkpoints.restore(tmp_path / "7", like(state))


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"leaves": {}}', '{"leaves": {}, "sha256": "0"}'])
def test_an_unfinished_or_damaged_manifest_is_damage(checkpoints, state, tmp_path, content):
    save(checkpoints, tmp_path / "7", state)
    manifest = tmp_path / "7" / "learner" / "manifest.json"
    manifest.unlink()
    if content is not None:
        manifest.write_text(content)
    with pytest.raises(CheckpointDamaged, match=r"manifest\.json"):
        checkpoints.restore(tmp_path / "7", like(state))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_manifest_says_the_state_is_restored_or_refused(checkpoints, state, tmp_path, data):
    """Also one with its own digest, of somebody else's checkpoint."""
    if not (tmp_path / "7").exists():
        save(checkpoints, tmp_path / "7", state)
        shutil.copyfile(tmp_path / "7" / "learner" / "manifest.json", tmp_path / "whole.json")
    whole = unsealed((tmp_path / "whole.json").read_text())
    keys = ("../../whole.json", "/etc/passwd", "a\0")
    whole["files"] = dict(list(whole["files"].items())[:2])
    (tmp_path / "7" / "learner" / "manifest.json").write_text(sealed(data.draw(mutated(whole, keys=keys))))
    with suppress(PodzeroError):
        checkpoints.restore(tmp_path / "7", like(state))


def test_missing_arrays_are_damage(checkpoints, state, tmp_path):
    save(checkpoints, tmp_path / "7", state)
    (tmp_path / "7" / "learner" / "arrays").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointDamaged):
        checkpoints.restore(tmp_path / "7", like(state))


def test_a_folder_that_does_not_exist_is_no_damage(checkpoints, state, tmp_path):
    """As on a node where the storage is not mounted."""
    with pytest.raises(StorageError, match="storage that all nodes share"):
        checkpoints.restore(tmp_path / "8", like(state))


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_manifest_that_cannot_be_read_is_no_damage(checkpoints, state, tmp_path, monkeypatch, number):
    save(checkpoints, tmp_path / "7", state)

    def fail(path, **options):
        raise OSError(number, "cannot", str(path))

    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(StorageError, match=r"manifest\.json .*read"):
        checkpoints.restore(tmp_path / "7", like(state))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EIO, "Input/output error"), StorageError),
        (ValueError("PERMISSION_DENIED: Error opening 'd/0' [OS error 13: EACCES Permission denied]"), StorageError),
        (ValueError("NOT_FOUND: Error opening 'd/0' [OS error 2: ENOENT No such file]"), CheckpointDamaged),
        (ValueError("DATA_LOSS: the checksum differs"), CheckpointDamaged),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"), DoesNotFit),
        (jax.errors.JaxRuntimeError("UNAVAILABLE: host 1 does not answer"), jax.errors.JaxRuntimeError),
        (MemoryError("no memory"), MemoryError),
    ],
)
def test_only_what_files_hold_is_damage(checkpoints, state, tmp_path, monkeypatch, error, expected):
    """Errors of memory, devices, other hosts and storage are no damage: the files may be whole."""
    save(checkpoints, tmp_path / "7", state)

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(orbax.checkpoint.AsyncCheckpointer, "restore", fail)
    with pytest.raises(expected):
        checkpoints.restore(tmp_path / "7", like(state))


def test_another_network_is_a_mismatch_that_names_the_first_differing_leaf(checkpoints, state, network, tmp_path):
    save(checkpoints, tmp_path / "7", state)

    def wider(key):
        params = network.init(key)
        return params | {"heads": {"kernel": jnp.zeros((32, 11)), "bias": jnp.zeros(11)}}

    other = make_state(Network(wider, network.apply))
    with pytest.raises(CheckpointMismatch, match=r"params\.heads\.bias.*float32\[10\].*float32\[11\]"):
        checkpoints.restore(tmp_path / "7", like(other))


def test_another_optimizer_is_a_mismatch(checkpoints, state, network, tmp_path):
    save(checkpoints, tmp_path / "7", state)
    with pytest.raises(CheckpointMismatch, match=r"opt_state.*absent"):
        checkpoints.restore(tmp_path / "7", like(make_state(network, name="sgd")))


def test_a_failed_save_raises(checkpoints, state, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match="file"):
        checkpoints.save(tmp_path / "file" / "7", state)


def test_saving_again_replaces_the_checkpoint(checkpoints, network, tmp_path):
    for seed in (1, 2):
        state = make_state(network, seed)
        save(checkpoints, tmp_path / "7", state)
    found = checkpoints.restore(tmp_path / "7", like(state))
    np.testing.assert_array_equal(found.params["heads"]["kernel"], state.params["heads"]["kernel"])


def of(array):
    return as_text(jax.jit(fingerprint)(jnp.asarray(array)))


@settings(deadline=None)
@given(word=st.integers(0, 11), bit=st.integers(0, 31))
def test_every_bit_changes_the_fingerprint(word, bit):
    original = np.arange(12, dtype=np.float32).reshape(3, 4)
    flipped = original.copy()
    flipped.view(np.uint32).reshape(-1)[word] ^= np.uint32(1 << bit)
    assert of(flipped) != of(original)


def test_the_fingerprint_depends_on_the_order_and_not_on_the_shape():
    assert of([1.0, 2.0]) != of([2.0, 1.0])
    assert of(np.arange(6.0).reshape(2, 3)) == of(np.arange(6.0))  # the manifest contains the shape


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint32", "uint8", "bool"])
def test_all_dtypes_of_a_state_have_fingerprints(dtype):
    zeros, one = jnp.zeros((4,), dtype), jnp.zeros((4,), dtype).at[2].set(1)
    assert of(zeros) != of(one)
    assert len(of(zeros)) == 16


def test_a_scalar_has_one():
    assert of(np.int32(3)) != of(np.int32(4))


def test_zeros_of_two_sizes_differ():
    assert of(np.zeros(4)) != of(np.zeros(5))
