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

from podzero.config import LearnerConfig, MeshConfig, NestedConfig, ResNetConfig, TransformerConfig
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec
from podzero.learner.checkpoints import LearnerCheckpoints
from podzero.learner.sharding import TENSOR_PARALLEL, check_batch, make_mesh, named_leaves, spec_of_leaf
from podzero.networks import make_network

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
    "2 slices of 2 processes, data 4": (4, 2, {}),
    "2 slices of 2 processes, fsdp 2 x model 2": (4, 2, {"mesh": {"model": 2, "fsdp": True}}),
}
"""Number of processes, devices per process, and changes of the learner section."""


def trained(layout, network, out, **part):
    """The state after 50 steps in a layout, restored onto one device, with the sums of the last dispatch.

    `part` may say which of the ten dispatches to train, and from which state.
    """
    hosts, devices, learner = LAYOUTS[layout]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}",
    }
    script, coordinator = Path(__file__).with_name("train_on_devices.py"), f"127.0.0.1:{free_port()}"
    job = {"network": network, "learner": learner, "out": str(out), "hosts": hosts, "coordinator": coordinator}
    job |= {"slices": 2 if "slices" in layout else 1} | part
    runs = [
        subprocess.Popen(
            [sys.executable, script, json.dumps(job | {"rank": rank})],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(hosts)
    ]  # fmt: skip
    try:
        for run in runs:
            sums, errors = run.communicate(timeout=600)
            assert run.returncode == 0, errors
    finally:
        for run in runs:
            run.kill()
    training = training_of(experiment_of(network, {}))
    checkpoints = LearnerCheckpoints(training.mesh)
    state = checkpoints.restore(out, training.like)
    checkpoints.close()
    weights = (state.params, state.ema)
    return {name: np.asarray(leaf) for name, leaf in named_leaves(weights).items()} | {
        "sums": np.array(json.loads(sums.splitlines()[-1]))  # Gloo writes lines before it
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
        pytest.param("muon", ["one", "fsdp 4 x model 2"], marks=pytest.mark.slow),
        pytest.param("nested", ["one", "fsdp 4 x model 2"], marks=pytest.mark.slow),
        pytest.param("taught", ["one", "fsdp 4 x model 2", "microbatches"], marks=pytest.mark.slow),
    ],
)
def test_the_layout_does_not_change_what_is_learned(tmp_path, network, layouts):
    """50 steps on the same batches give the same parameters, up to the order of float32 sums.

    The transformer trains with AdamW, which amplifies differences of small gradients, as Muon does; the ResNet trains
    with SGD and has a tighter tolerance. All processes of a layout write its state, which is restored onto one device.
    """
    rtol, atol = {"transformer": (1e-3, 2e-4), "muon": (1e-3, 2e-4)}.get(network, (1e-4, 1e-5))
    results = {layout: trained(layout, network, tmp_path / layout) for layout in layouts}
    one = results.pop("one")
    for layout, found in results.items():
        assert found.keys() == one.keys()
        for name, expected in one.items():
            np.testing.assert_allclose(found[name], expected, rtol=rtol, atol=atol, err_msg=f"{layout}: {name}")


@pytest.mark.slow
def test_a_learner_that_loses_a_slice_and_gets_it_back_learns_what_it_would_have_learned(tmp_path):
    """Two slices save, one of them goes on at the same batch size, then both again, with the state sharded anew."""
    one, two = "2 processes, data 8", "2 slices of 2 processes, fsdp 2 x model 2"
    expected = trained(one, "resnet", tmp_path / "straight")
    trained(two, "resnet", tmp_path / "a", dispatches=[0, 3])
    trained(one, "resnet", tmp_path / "b", dispatches=[3, 6], restore_from=str(tmp_path / "a"))
    found = trained(two, "resnet", tmp_path / "c", dispatches=[6, 10], restore_from=str(tmp_path / "b"))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_by_default_the_data_axis_has_all_devices():
    mesh = make_mesh(MeshConfig())
    assert dict(mesh.shape) == {"slice": 1, "data": len(jax.devices()), "model": 1}


@pytest.mark.parametrize("config", [MeshConfig(model=2), MeshConfig(model=5)])
def test_a_mesh_that_does_not_fit_is_refused_with_advice(config):
    with pytest.raises(ConfigError) as refused:
        make_mesh(config, jax.devices()[:1])
    message = str(refused.value)
    assert f"learner.mesh.model {config.model}" in message
    assert "the 1 cpu device(s) found; set one" in message


class OnHost:
    platform = "cpu"

    def __init__(self, number, host):
        self.id, self.process_index = number, host


def test_the_shards_of_a_parameter_are_on_one_host():
    """Four hosts with four devices each, numbered as in a torus: two per row."""
    devices = [OnHost(number, (number // 8) * 2 + number % 4 // 2) for number in range(16)]
    mesh = make_mesh(MeshConfig(model=2), devices)
    assert all(len({device.process_index for device in row}) == 1 for row in mesh.devices[0])
    with pytest.raises(ConfigError, match=r"model 8 .* hosts.* 4 devices.*fsdp"):
        make_mesh(MeshConfig(model=8), devices)


@pytest.mark.parametrize("model", [1, 2])
def test_only_the_axis_of_slices_leads_from_one_slice_to_another(model):
    """Two slices of two hosts with four devices each, in any order."""
    devices = [OnHost(number, number // 4) for number in range(16)]
    mesh = make_mesh(MeshConfig(model=model), devices[::-1], slices=2)
    assert dict(mesh.shape) == {"slice": 2, "data": 8 // model, "model": model}
    assert [{device.process_index for device in part.flat} for part in mesh.devices] == [{0, 1}, {2, 3}]
    for name, shape in (("params.mlp.hidden.kernel", (128, 512)), ("params.embed.kernel", (512, 130))):
        assert "slice" not in spec_of_leaf(mesh, name, shape, MeshConfig(model=model, fsdp=True))


class EightWide:
    shape = {"slice": 2, "data": 4, "model": 1}  # noqa: RUF012


def test_a_batch_that_the_mesh_does_not_divide_is_refused_with_the_nearest_sizes():
    with pytest.raises(ConfigError, match=r"batch_size 100 .* 8 devices .*learner\.batch_size=96 or 104"):
        check_batch(LearnerConfig(batch_size=100), EightWide())
    check_batch(LearnerConfig(batch_size=104), EightWide())
    with pytest.raises(ConfigError, match=r"2 microbatches.*learner\.batch_size=96 or 112"):
        check_batch(LearnerConfig(batch_size=104, microbatches=2), EightWide())


def test_leaves_are_named_by_their_path_with_dots_for_haikus_slashes():
    assert list(named_leaves({"resnet/~/conv": {"w": 1}, "b": [2]})) == ["b.0", "resnet.~.conv.w"]


def spec_of(name, shape, data=4, model=2, **mesh):
    """How a leaf is split, as axis names."""

    class Wide:
        pass

    Wide.shape = {"slice": 1, "data": data, "model": model}
    return spec_of_leaf(Wide(), name, shape, MeshConfig(**mesh))


def test_the_first_matching_rule_shards_a_parameter_its_average_and_its_moments():
    rules = [{"match": "heads.kernel$", "dimension": 0}, {"match": "kernel$", "dimension": -1}]
    for prefix in ("params.", "ema.", "opt_state.1.0.mu."):
        assert spec_of(prefix + "heads.kernel", (6, 10), rules=rules) == ["model", None]
        assert spec_of(prefix + "hidden.kernel", (6, 10), rules=rules) == [None, "model"]
        assert spec_of(prefix + "hidden.bias", (10,), rules=rules) == [None]


def test_a_model_axis_of_one_device_shards_nothing():
    assert spec_of("params.layer_0.mlp.out.kernel", (256, 64), model=1) == [None, None]


def test_fsdp_shards_the_largest_free_dimension_that_the_data_axis_divides():
    assert spec_of("params.layer_0.mlp.hidden.kernel", (128, 512), fsdp=True) == ["data", "model"]
    assert spec_of("params.embed.kernel", (130, 512), fsdp=True) == [None, "data"]
    assert spec_of("params.embed.kernel", (130, 510), fsdp=True) == [None, None]
    assert spec_of("params.embed.bias", (512,), fsdp=True) == [None]


@pytest.mark.parametrize(
    ("shape", "message"),
    [((64, 5), r"learner.mesh.model 2 does not divide dimension -1 of w.kernel, \[64, 5\].*divides 5"),
     ((), r"splits dimension -1 of w.kernel, which has shape \[\]")],
)  # fmt: skip
def test_an_impossible_rule_is_refused_with_the_name_of_the_parameter(shape, message):
    with pytest.raises(ConfigError, match=message):
        spec_of("w.kernel", shape, rules=[{"match": "kernel", "dimension": -1}])


def test_every_tensor_parallel_rule_matches_a_parameter():
    """Otherwise a renamed layer would silently not be sharded."""
    spec = EnvSpec("tic_tac_toe", (3, 3, 2), "bool", 9)
    networks = [
        ResNetConfig(channels=4, blocks=1),
        NestedConfig(name="nested", channels=4, blocks=1),
        TransformerConfig(name="transformer", width=8, heads=2, layers=1),
    ]
    shapes = [jax.eval_shape(make_network(config, spec).init, jax.random.key(0)) for config in networks]
    names = [list(named_leaves(tree)) for tree in shapes]
    for rule in TENSOR_PARALLEL:
        assert any(re.search(rule.match, name) for tree in names for name in tree), rule.match
    assert any(re.search("conv_1", name) for name in names[0])
    assert sum(any(re.search(rule.match, name) for rule in TENSOR_PARALLEL) for name in names[1]) == 2 * 4
