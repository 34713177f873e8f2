import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from podzero.config import LearnerConfig, MeshConfig, ResNetConfig, TransformerConfig
from podzero.errors import ConfigError
from podzero.learner import LearnerCheckpoints
from podzero.learner.sharding import TENSOR_PARALLEL, _spec, check_batch, leaf_names, make_mesh
from podzero.networks import make_network
from podzero.types import EnvSpec

from .train_on_devices import experiment_of, training_of

LAYOUTS = {
    "one": (1, 1, {}),
    "data 8": (1, 8, {}),
    "data 4 x model 2": (1, 8, {"mesh": {"model": 2}}),
    "fsdp 8": (1, 8, {"mesh": {"fsdp": True}}),
    "fsdp 4 x model 2": (1, 8, {"mesh": {"model": 2, "fsdp": True}}),
    "microbatches": (1, 2, {"microbatches": 4}),
    "2 processes, data 8": (2, 4, {}),
    "2 processes, fsdp 4 x model 2": (2, 4, {"mesh": {"model": 2, "fsdp": True}}),
}
"""Processes, devices of each, and what differs in `learner`."""


def trained(layout, network, out):
    """What 50 steps in a layout end at: every leaf, restored onto one device, and the figures of the last dispatch."""
    hosts, devices, learner = LAYOUTS[layout]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    script, coordinator = Path(__file__).with_name("train_on_devices.py"), f"127.0.0.1:{free_port()}"
    job = {"network": network, "learner": learner, "out": str(out), "hosts": hosts, "coordinator": coordinator}
    runs = [
        subprocess.Popen(
            [sys.executable, script, json.dumps(job | {"rank": rank})],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(hosts)
    ]  # fmt: skip
    try:
        for run in runs:
            sums, errors = run.communicate(timeout=240)
            assert run.returncode == 0, errors
    finally:
        for run in runs:
            run.kill()
    alone = training_of(experiment_of(network, {}))
    checkpoints = LearnerCheckpoints(alone.mesh)
    state = checkpoints.restore(out, alone.like)
    checkpoints.close()
    learned = (state.params, state.ema)
    return dict(zip(leaf_names(learned), map(np.asarray, jax.tree.leaves(learned)), strict=True)) | {
        "sums": np.array(json.loads(sums))
    }


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("network", "layouts"),
    [
        pytest.param("transformer", list(LAYOUTS), marks=pytest.mark.slow),
        pytest.param("resnet", list(LAYOUTS), marks=pytest.mark.slow),
    ],
)
def test_the_layout_does_not_change_what_is_learned(tmp_path, network, layouts):
    """50 steps from the same batches end at the same parameters, up to the order of float32 sums.

    The transformer learns by AdamW, which divides by small gradients and so makes more of that order; the ResNet by
    SGD, to the tighter tolerance. Each state is written by all processes of its layout and restored onto one device.
    """
    rtol, atol = {"transformer": (1e-3, 2e-4), "resnet": (1e-4, 1e-5)}[network]
    results = {layout: trained(layout, network, tmp_path / layout) for layout in layouts}
    one = results.pop("one")
    for layout, found in results.items():
        assert found.keys() == one.keys()
        for name, expected in one.items():
            np.testing.assert_allclose(found[name], expected, rtol=rtol, atol=atol, err_msg=f"{layout}: {name}")


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


class OnHost:
    platform = "cpu"

    def __init__(self, number, host):
        self.id, self.process_index = number, host


def test_parts_of_a_parameter_stay_on_one_host():
    """Four hosts of four, numbered as a torus is: two of each row."""
    devices = [OnHost(number, (number // 8) * 2 + number % 4 // 2) for number in range(16)]
    mesh = make_mesh(MeshConfig(model=2), devices)
    assert all(len({device.process_index for device in row}) == 1 for row in mesh.devices)
    with pytest.raises(ConfigError, match=r"model 8 would split parameters across hosts, which have 4 devices.*fsdp"):
        make_mesh(MeshConfig(model=8), devices)


class EightWide:
    shape = {"data": 8, "model": 1}  # noqa: RUF012


def test_a_batch_that_the_mesh_does_not_divide_is_refused_with_sizes_that_would_do():
    with pytest.raises(ConfigError, match=r"learner.batch_size 100 .* 8 devices .*learner.batch_size=96 or 104"):
        check_batch(LearnerConfig(batch_size=100), EightWide())
    check_batch(LearnerConfig(batch_size=104), EightWide())
    with pytest.raises(ConfigError, match=r"times 2 microbatches; set learner.batch_size=96 or 112"):
        check_batch(LearnerConfig(batch_size=104, microbatches=2), EightWide())


def test_leaves_are_named_by_their_path_and_haikus_slashes_become_dots():
    assert leaf_names({"resnet/~/conv": {"w": 1}, "b": [2]}) == ["b.0", "resnet.~.conv.w"]


def spec_of(name, shape, data=4, model=2, **mesh):
    """How a leaf is split, as axis names."""

    class Wide:
        pass

    Wide.shape = {"data": data, "model": model}
    return _spec(Wide(), name, shape, MeshConfig(**mesh))


def test_the_first_matching_rule_splits_a_parameter_and_all_that_follows_it():
    rules = [{"match": "heads.kernel$", "dimension": 0}, {"match": "kernel$", "dimension": -1}]
    for prefix in ("params.", "ema.", "opt_state.1.0.mu."):
        assert spec_of(prefix + "heads.kernel", (6, 10), rules=rules) == ["model", None]
        assert spec_of(prefix + "hidden.kernel", (6, 10), rules=rules) == [None, "model"]
        assert spec_of(prefix + "hidden.bias", (10,), rules=rules) == [None]


def test_nothing_is_split_over_a_single_device():
    assert spec_of("params.layer_0.mlp.out.kernel", (256, 64), model=1) == [None, None]


def test_full_sharding_splits_the_largest_free_dimension_that_divides():
    assert spec_of("params.layer_0.mlp.hidden.kernel", (128, 512), fsdp=True) == ["data", "model"]
    assert spec_of("params.embed.kernel", (130, 512), fsdp=True) == [None, "data"]
    assert spec_of("params.embed.kernel", (130, 510), fsdp=True) == [None, None]
    assert spec_of("params.embed.bias", (512,), fsdp=True) == [None]


@pytest.mark.parametrize(
    ("shape", "message"),
    [((64, 5), r"learner.mesh.model 2 does not divide dimension -1 of w.kernel, \[64, 5\].*divides 5"),
     ((), r"splits dimension -1 of w.kernel, which has shape \[\]")],
)  # fmt: skip
def test_a_split_that_cannot_be_is_refused_with_the_parameter_s_name(shape, message):
    with pytest.raises(ConfigError, match=message):
        spec_of("w.kernel", shape, rules=[{"match": "kernel", "dimension": -1}])


def test_every_rule_for_podzero_s_networks_meets_a_parameter():
    """A renamed layer would silently stay whole."""
    spec = EnvSpec("tic_tac_toe", (3, 3, 2), "bool", 9)
    networks = [
        ResNetConfig(channels=4, blocks=1),
        ResNetConfig(name="haiku_resnet", channels=4, blocks=1),
        TransformerConfig(name="transformer", width=8, heads=2, layers=1),
    ]
    names = [leaf_names(jax.eval_shape(make_network(config, spec).init, jax.random.key(0))) for config in networks]
    for rule in TENSOR_PARALLEL:
        assert any(re.search(rule.match, name) for tree in names for name in tree), rule.match
    assert all(any(re.search("conv_1", name) for name in tree) for tree in names[:2])
