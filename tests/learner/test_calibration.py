"""The speed of one chip alone, the reference of the scaling efficiency."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from podzero.config import LearnerConfig, MeshConfig, parse
from podzero.inference import host_resnet
from podzero.learner.calibration import chip_metrics, one_chip_config, one_chip_samples_per_s
from podzero.learner.sharding import make_mesh
from podzero.networks import make_network


@pytest.mark.parametrize(
    ("batch", "chips", "microbatches", "share"), [(512, 16, 1, 32), (512, 16, 8, 32), (96, 8, 8, 8), (32, 8, 8, 8)]
)
def test_one_chip_alone_gets_its_share_in_whole_microbatches_without_sharding(batch, chips, microbatches, share):
    config = LearnerConfig(batch_size=batch, microbatches=microbatches, mesh=MeshConfig(model=2, fsdp=True))
    found = one_chip_config(config, chips)
    assert (found.batch_size, found.microbatches, found.mesh) == (share, microbatches, MeshConfig())


def test_a_single_chip_is_not_calibrated(network, spec, make_experiment):
    experiment = make_experiment(calibrate=True)
    metrics = chip_metrics(experiment, network, spec, [], make_mesh(MeshConfig(), jax.devices()[:1]))
    assert metrics.devices.chips == 1
    assert metrics.one_chip_samples_per_s is None


def test_operations_are_counted_where_openvino_computes_them(spec):
    """Its callbacks do not say how many they are; so the same network by XLA is counted."""
    flops = []
    for convolutions in ("openvino", "xla"):
        learner = {"batch_size": 16, "steps_per_dispatch": 2, "publish_every": 4, "cpu_convolutions": convolutions}
        network = {"name": "resnet", "channels": 8, "blocks": 1}
        tree = {"name": "t", "env": {"name": "tic_tac_toe"}, "network": network, "learner": learner}
        experiment = parse(tree, "test")
        make = host_resnet if convolutions == "openvino" else make_network
        mesh = make_mesh(MeshConfig(), jax.devices()[:1])
        flops.append(chip_metrics(experiment, make(experiment.network, spec), spec, [], mesh).flops_per_sample)
    assert flops[0] == flops[1] > 2 * 9 * 9 * 8 * 8


def test_without_memory_for_the_network_on_one_chip_a_warning_replaces_the_metric(
    network, spec, make_experiment, monkeypatch, caplog
):
    def full(training, batch):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 20 of 16 GiB")

    monkeypatch.setattr("podzero.learner.calibration._seconds", full)
    assert one_chip_samples_per_s(make_experiment(), network, spec, [], chips=4) is None
    assert "RESOURCE_EXHAUSTED: 20 of 16 GiB" in caplog.text


@pytest.mark.slow
def test_several_devices_are_compared_with_one(tmp_path):
    """The learner runs in another process, because JAX fixes the number of devices at its first use."""
    script = Path(__file__).with_name("learn_on_devices.py")
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    out = tmp_path / "metrics.json"
    subprocess.run([sys.executable, str(script), str(out)], check=True, env=environment, timeout=280)
    metrics = json.loads(out.read_text())
    assert (metrics["learner/chips"], metrics["learner/hosts"]) == (4, 1)
    assert metrics["learner/one_chip_samples_per_s"] > 0
    assert metrics["learner/scaling_efficiency"] > 0
    assert metrics["learner/device_s_per_step"] > 0
    assert 0 < metrics["learner/device_busy"] <= 1
    assert "learner/share_of_peak" not in metrics
    assert "learner/hbm_bytes" not in metrics
