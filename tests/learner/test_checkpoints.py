import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import MeshConfig, OptimizerConfig
from podzero.learner.checkpoints import CheckpointDamaged, CheckpointMismatch, LearnerCheckpoints
from podzero.learner.optimizers import make_optimizer
from podzero.learner.sharding import make_mesh, placed, state_shardings
from podzero.learner.state import init_state
from podzero.types import Network


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


def test_what_is_saved_comes_back_to_the_bit(checkpoints, state, tmp_path):
    save(checkpoints, tmp_path / "7", state)
    back = checkpoints.restore(tmp_path / "7", like(state))
    assert jax.tree.structure(back) == jax.tree.structure(state)
    for saved, restored in zip(words(state), words(back), strict=True):
        np.testing.assert_array_equal(saved, restored)
    assert jax.random.key_impl(back.key) == jax.random.key_impl(state.key)


def test_restored_leaves_lie_where_the_mesh_wants_them(checkpoints, state, tmp_path):
    save(checkpoints, tmp_path / "7", state)
    back = checkpoints.restore(tmp_path / "7", like(state))
    assert back.params["heads"]["kernel"].sharding.mesh.axis_names == ("data", "model")


def test_a_state_may_be_donated_as_soon_as_save_returns(checkpoints, state, tmp_path):
    expected = words(state)
    future = checkpoints.save(tmp_path / "7", state)
    double = jax.jit(lambda params: jax.tree.map(lambda leaf: 2 * leaf + 1, params), donate_argnums=0)
    jax.block_until_ready(double(state.params))
    assert state.params["heads"]["kernel"].is_deleted()
    future.result(60)
    back = checkpoints.restore(tmp_path / "7", like(make_state_like(state)))
    for saved, restored in zip(expected, words(back), strict=True):
        np.testing.assert_array_equal(saved, restored)


def make_state_like(state):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)


def test_a_flipped_byte_in_any_file_is_damage_or_changes_nothing(checkpoints, state, tmp_path):
    """Some files hold what a restore does not need; none may change what it gives back."""
    save(checkpoints, tmp_path / "7", state)
    expected, found = words(state), []
    for file in [path for path in (tmp_path / "7").rglob("*") if path.is_file()]:
        sound = file.read_bytes()
        for part in (0.2, 0.5, 0.8):
            content = bytearray(sound)
            content[int(part * len(content))] ^= 0x10
            file.write_bytes(bytes(content))
            try:
                back = checkpoints.restore(tmp_path / "7", like(state))
            except CheckpointDamaged as damage:
                found.append(str(damage))
            else:
                for saved, restored in zip(expected, words(back), strict=True):
                    np.testing.assert_array_equal(saved, restored)
        file.write_bytes(sound)
    # Orbax restores flipped array data without complaint: only the fingerprints of the leaves can have found these.
    assert any("is not what was saved" in damage for damage in found)


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"leaves": {}}', '{"leaves": {}, "sha256": "0"}'])
def test_an_unfinished_or_damaged_manifest_is_damage(checkpoints, state, tmp_path, content):
    save(checkpoints, tmp_path / "7", state)
    manifest = tmp_path / "7" / "learner" / "manifest.json"
    manifest.unlink()
    if content is not None:
        manifest.write_text(content)
    with pytest.raises(CheckpointDamaged, match=r"manifest\.json"):
        checkpoints.restore(tmp_path / "7", like(state))


def test_missing_arrays_are_damage(checkpoints, state, tmp_path):
    save(checkpoints, tmp_path / "7", state)
    (tmp_path / "7" / "learner" / "arrays").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointDamaged):
        checkpoints.restore(tmp_path / "7", like(state))


def test_a_folder_that_does_not_exist_is_damage(checkpoints, state, tmp_path):
    with pytest.raises(CheckpointDamaged):
        checkpoints.restore(tmp_path / "8", like(state))


def test_another_network_is_a_mismatch_that_names_the_first_differing_leaf(checkpoints, state, network, tmp_path):
    save(checkpoints, tmp_path / "7", state)

    def wider(key):
        params = network.init(key)
        return params | {"heads": {"kernel": jnp.zeros((32, 11)), "bias": jnp.zeros(11)}}

    other = make_state(Network(wider, network.apply))
    with pytest.raises(CheckpointMismatch, match=r"'params\.heads\.bias' is float32\[10\] there and float32\[11\] in"):
        checkpoints.restore(tmp_path / "7", like(other))


def test_another_optimizer_is_a_mismatch(checkpoints, state, network, tmp_path):
    save(checkpoints, tmp_path / "7", state)
    with pytest.raises(CheckpointMismatch, match=r"opt_state.*absent"):
        checkpoints.restore(tmp_path / "7", like(make_state(network, name="sgd")))


def test_a_save_that_fails_is_heard_by_whoever_waits(checkpoints, state, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        checkpoints.save(tmp_path / "file" / "7", state)


def test_saving_again_replaces_what_lay_there(checkpoints, network, tmp_path):
    for seed in (1, 2):
        state = make_state(network, seed)
        save(checkpoints, tmp_path / "7", state)
    checkpoints.wait(60)
    back = checkpoints.restore(tmp_path / "7", like(state))
    np.testing.assert_array_equal(back.params["heads"]["kernel"], state.params["heads"]["kernel"])
