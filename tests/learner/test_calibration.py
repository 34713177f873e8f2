"""One chip alone, by which many are measured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from podzero.config import LearnerConfig, MeshConfig
from podzero.learner.calibration import alone, chip_figures, one_chip_samples_per_s
from podzero.learner.sharding import make_mesh


@pytest.mark.parametrize(
    ("batch", "chips", "microbatches", "share"), [(512, 16, 1, 32), (512, 16, 8, 32), (96, 8, 8, 8), (32, 8, 8, 8)]
)
def test_one_chip_alone_gets_its_share_in_whole_microbatches_and_splits_nothing(batch, chips, microbatches, share):
    config = LearnerConfig(batch_size=batch, microbatches=microbatches, mesh=MeshConfig(model=2, fsdp=True))
    found = alone(config, chips)
    assert (found.batch_size, found.microbatches, found.mesh) == (share, microbatches, MeshConfig())


def test_one_chip_has_nothing_to_be_measured_by(network, spec, make_experiment):
    experiment = make_experiment(calibrate=True)
    metrics = chip_figures(experiment, network, spec, [], make_mesh(MeshConfig(), jax.devices()[:1]))
    assert metrics.machine.chips == 1
    assert metrics.one_chip_samples_per_s is None


def test_a_chip_that_cannot_hold_the_network_is_said_and_leaves_the_figure_out(
    network, spec, make_experiment, monkeypatch, caplog
):
    def full(training, batch):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 20 of 16 GiB")

    monkeypatch.setattr("podzero.learner.calibration._seconds", full)
    assert one_chip_samples_per_s(make_experiment(), network, spec, [], chips=4) is None
    assert "RESOURCE_EXHAUSTED: 20 of 16 GiB" in caplog.text


@pytest.mark.slow
def test_several_devices_are_measured_by_one_of_them(tmp_path):
    """A learner on four devices of a process of its own: jax settles their number when it is first used."""
    script = Path(__file__).with_name("learn_on_devices.py")
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    out = tmp_path / "figures.json"
    subprocess.run([sys.executable, str(script), str(out)], check=True, env=environment, timeout=280)
    metrics = json.loads(out.read_text())
    assert (metrics["learner/chips"], metrics["learner/hosts"]) == (4, 1)
    assert metrics["learner/one_chip_samples_per_s"] > 0
    assert metrics["learner/scaling_efficiency"] > 0
    assert metrics["learner/device_s_per_step"] > 0
    assert 0 < metrics["learner/device_busy"] <= 1
    assert "learner/share_of_peak" not in metrics
    assert "learner/hbm_bytes" not in metrics
