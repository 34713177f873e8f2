"""Snapshots are loaded as they were saved, or refused."""

import json
import logging
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fsyncs import check_before_renames
from random_parameters import random_parameters

from podzero.config import Experiment, GameConfig, ResNetConfig, TransformerConfig, parse
from podzero.core.types import EnvSpec
from podzero.files.store import UNFINISHED
from podzero.files.workdir import step_folder
from podzero.networks import make_network
from podzero.networks.snapshots import (
    MANIFEST_FILE,
    PARAMS_FILE,
    SnapshotError,
    check_matches,
    load_snapshot,
    save_snapshot,
    snapshot_steps,
)

EXPERIMENT = Experiment(name="test", env=GameConfig(name="connect_four"))
PARAMS = {
    "tower": {"kernel": np.arange(12, dtype=np.float32).reshape(3, 4), "bias": np.zeros(4, np.float32)},
    "scale": np.asarray(2.5, np.float32),
    "half": np.asarray(jnp.arange(3, dtype=jnp.bfloat16)),
}


def params_of(step):
    return jax.tree.map(lambda leaf: leaf + step, PARAMS)


def save(folder, *steps):
    for step in steps:
        save_snapshot(folder, step, params_of(step), EXPERIMENT)


def flip_a_bit(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_snapshot_is_loaded_as_it_was_saved_without_a_template(tmp_path):
    save_snapshot(tmp_path, 7, jax.tree.map(jnp.asarray, PARAMS), EXPERIMENT)
    step, params = load_snapshot(tmp_path)
    assert step == 7
    assert jax.tree.structure(params) == jax.tree.structure(PARAMS)
    for one, two in zip(jax.tree.leaves(PARAMS), jax.tree.leaves(params), strict=True):
        assert type(two) is np.ndarray
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
    manifest = json.loads((step_folder(tmp_path, 7) / MANIFEST_FILE).read_text())
    assert parse(manifest["experiment"], MANIFEST_FILE) == EXPERIMENT


def test_a_snapshot_does_not_hold_the_address_of_a_webhook(tmp_path):
    secret = EXPERIMENT.changed(metrics={"alert": "https://hooks.example/T0/secret"})
    folder = save_snapshot(tmp_path, 7, PARAMS, secret)
    assert not any(b"secret" in file.read_bytes() for file in folder.iterdir())


def test_the_newest_or_a_given_step_is_loaded(tmp_path):
    save(tmp_path, 2, 10, 9)
    assert snapshot_steps(tmp_path) == [2, 9, 10]
    assert load_snapshot(tmp_path).version == 10
    assert load_snapshot(tmp_path, 2).params["scale"] == 4.5


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, 1)
    save_snapshot(tmp_path, 1, {"other": np.ones(2, np.float32)}, EXPERIMENT)
    assert list(load_snapshot(tmp_path, 1).params) == ["other"]
    assert [path.name for path in tmp_path.iterdir()] == [step_folder(tmp_path, 1).name]


def test_every_flipped_bit_in_the_arrays_is_detected(tmp_path):
    save(tmp_path, 1)
    path = step_folder(tmp_path, 1) / PARAMS_FILE
    intact = path.read_bytes()
    for position in range(len(intact)):
        flip_a_bit(path, position)
        with pytest.raises(SnapshotError, match="damaged"):
            load_snapshot(tmp_path, 1)
        path.write_bytes(intact)
    assert load_snapshot(tmp_path, 1).version == 1


def test_the_damaged_leaf_is_named(tmp_path):
    save(tmp_path, 1)
    path = step_folder(tmp_path, 1) / PARAMS_FILE
    flip_a_bit(path, path.read_bytes().index(np.float32(12.0).tobytes()))
    with pytest.raises(SnapshotError, match=r"000000001 is damaged: tower/kernel"):
        load_snapshot(tmp_path, 1)


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty_manifest", "edit_manifest", "no_arrays", "no_manifest"])
def test_loading_falls_back_from_a_damaged_newest_snapshot_with_a_warning(tmp_path, caplog, damage):
    save(tmp_path, 1, 2)
    newest = step_folder(tmp_path, 2)
    match damage:
        case "flip":
            flip_a_bit(newest / PARAMS_FILE, -3)
        case "truncate":
            (newest / PARAMS_FILE).write_bytes((newest / PARAMS_FILE).read_bytes()[:-5])
        case "empty_manifest":
            (newest / MANIFEST_FILE).write_text("")
        case "edit_manifest":
            manifest = json.loads((newest / MANIFEST_FILE).read_text())
            manifest["experiment"]["seed"] = 5
            (newest / MANIFEST_FILE).write_text(json.dumps(manifest))
        case "no_arrays":
            (newest / PARAMS_FILE).unlink()
        case "no_manifest":
            (newest / MANIFEST_FILE).unlink()
    with caplog.at_level(logging.WARNING):
        assert load_snapshot(tmp_path).version == 1
    assert "000000002 is damaged" in caplog.text
    with pytest.raises(SnapshotError, match="000000002 is damaged"):
        load_snapshot(tmp_path, 2)


def test_storage_that_cannot_be_read_is_not_called_damage(tmp_path):
    save(tmp_path, 1)
    path = step_folder(tmp_path, 1) / PARAMS_FILE
    path.unlink()
    path.mkdir()
    with pytest.raises(SnapshotError, match=r"000000001 .*Is a directory"):
        load_snapshot(tmp_path, 1)


def test_the_error_for_a_missing_step_lists_the_others(tmp_path):
    save(tmp_path, 3, 5)
    with pytest.raises(SnapshotError, match=r"step 4; .*: 3, 5$"):
        load_snapshot(tmp_path, 4)


def test_a_folder_without_an_intact_snapshot_is_refused(tmp_path):
    with pytest.raises(SnapshotError, match="no intact snapshot"):
        load_snapshot(tmp_path / "absent")


def test_an_incomplete_snapshot_is_ignored_and_removed(tmp_path):
    save(tmp_path, 1)
    abandoned = tmp_path / f"{UNFINISHED}2"
    abandoned.mkdir()
    (abandoned / PARAMS_FILE).write_bytes(b"half")
    assert snapshot_steps(tmp_path) == [1]
    save(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000001", "000000002"]


def test_everything_is_on_disk_before_the_snapshot_gets_its_name(tmp_path, monkeypatch):
    synced = check_before_renames(monkeypatch)
    save(tmp_path, 1)
    assert os.stat(tmp_path).st_ino in synced


def test_a_renamed_folder_is_refused(tmp_path):
    save(tmp_path, 1)
    step_folder(tmp_path, 1).rename(step_folder(tmp_path, 9))
    with pytest.raises(SnapshotError, match="saved as step 1"):
        load_snapshot(tmp_path, 9)


BOARD = EnvSpec("connect_four", (6, 7, 2), "bool", 7)
TINY = ResNetConfig(channels=4, blocks=1, value_hidden=4)


def test_parameters_of_the_same_network_match_after_a_round_trip(tmp_path):
    network = make_network(TINY, BOARD)
    save_snapshot(tmp_path, 1, random_parameters(network), EXPERIMENT)
    check_matches(load_snapshot(tmp_path).params, network, "snapshot")


@pytest.mark.parametrize(
    ("config", "spec", "difference"),
    [
        (TINY.model_copy(update={"channels": 5}), BOARD, r"block_0/conv_0/bias .* float32\[5\], found float32\[4\]"),
        (TINY, BOARD._replace(num_actions=9), r"policy_logits/bias .* float32\[9\], found float32\[7\]"),
        (TINY, BOARD._replace(observation_shape=(6, 7, 3)), r"stem/kernel .*3, 3, 3, 4.*, found .*3, 3, 2, 4"),
        (TINY.model_copy(update={"blocks": 2}), BOARD, r"block_1/conv_0/bias .* float32\[4\], found nothing"),
        (TransformerConfig(name="transformer", width=8, heads=2), BOARD, r"block_0/conv_0/bias .*has nothing"),
    ],
)
def test_parameters_of_another_network_are_refused(config, spec, difference):
    params = jax.eval_shape(make_network(TINY, BOARD).init, jax.random.key(0))
    with pytest.raises(SnapshotError, match=f"RUN@5 .*another network.*{difference}"):
        check_matches(params, make_network(config, spec), "RUN@5")


def test_reading_snapshots_needs_no_ray():
    code = "import sys, podzero.networks.snapshots; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
