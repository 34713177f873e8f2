import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from podzero.config import ConfigError, MeshConfig
from podzero.learner import sharding
from podzero.learner.sharding import check_batch, leaf_names, make_mesh, state_shardings


def start_training(devices, model, out):
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    script = Path(__file__).with_name("train_on_devices.py")
    command = [sys.executable, script, str(devices), str(model), out]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def test_eight_devices_end_at_the_parameters_of_one(tmp_path):
    outs = [tmp_path / "one.npz", tmp_path / "eight.npz"]
    runs = [start_training(1, 1, outs[0]), start_training(8, 2, outs[1])]
    try:
        for run in runs:
            _, errors = run.communicate(timeout=240)
            assert run.returncode == 0, errors
    finally:
        for run in runs:
            run.kill()
    one, eight = ([file[name] for name in file.files] for file in map(np.load, outs))
    # The same sums in another order: float32 rounding, fed through 16 steps of AdamW.
    for a, b in zip(one, eight, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_mesh_takes_all_devices_for_data_by_default():
    mesh = make_mesh(MeshConfig())
    assert dict(mesh.shape) == {"data": len(jax.devices()), "model": 1}


@pytest.mark.parametrize("config", [MeshConfig(data=3), MeshConfig(model=5), MeshConfig(data=2, model=2)])
def test_a_mesh_that_does_not_fit_says_the_numbers_and_what_to_change(config):
    with pytest.raises(ConfigError) as refused:
        make_mesh(config, jax.devices()[:1])
    message = str(refused.value)
    assert f"x {config.model} (model)" in message
    assert "the 1 cpu device(s) found" in message
    assert "learner.mesh.data=-1" in message


class EightWide:
    shape = {"data": 8, "model": 1}  # noqa: RUF012


def test_a_batch_that_the_mesh_does_not_divide_is_refused_with_sizes_that_would_do():
    with pytest.raises(ConfigError, match=r"learner.batch_size 100 .* 8 devices .*learner.batch_size=96 or 104"):
        check_batch(100, EightWide())
    check_batch(104, EightWide())


def test_leaves_are_named_by_their_path_and_haikus_slashes_become_dots():
    assert leaf_names({"resnet/~/conv": {"w": 1}, "b": [2]}) == ["b.0", "resnet.~.conv.w"]


def test_the_first_matching_rule_places_a_leaf(monkeypatch):
    rules = ((r".*heads\.kernel", PartitionSpec("data")), (r".*", PartitionSpec()))
    monkeypatch.setattr(sharding, "PARAMETER_RULES", rules)
    tree = {"params": {"heads": {"kernel": 0.0, "bias": 0.0}}}
    placed = state_shardings(make_mesh(MeshConfig()), tree)["params"]["heads"]
    assert placed["kernel"].spec == PartitionSpec("data")
    assert placed["bias"].spec == PartitionSpec()
