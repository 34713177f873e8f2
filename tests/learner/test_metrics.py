"""Metrics of utilization computed by hand, and the device clock with fake devices."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from podzero.learner.devices import DeviceClock, memory_metrics
from podzero.learner.metrics import LearnerMetrics, PolicyAges, chip_metrics, utilization
from podzero.learner.step import StepOutput, StepSums

IDLE = {"learner/device_busy": 0.0, "count/device_s": 0.0}


def device(kind="TPU v5 lite", host=0, **memory):
    return SimpleNamespace(device_kind=kind, process_index=host, memory_stats=lambda: memory or None)


def test_the_metrics_of_a_pod_by_hand():
    found = utilization(chips=16, hosts=4, peak=16e12, flops_per_sample=2e6, samples_per_s=800_000.0)
    assert found == {
        "learner/chips": 16,
        "learner/hosts": 4,
        "learner/samples_per_s_per_chip": 50_000,
        "learner/samples_per_s_per_host": 200_000,
        "learner/flops_per_sample": 2e6,
        "learner/flops_per_s": 1.6e12,
        "learner/peak_flops": 16e12,
        "learner/share_of_peak": 0.1,
    }


def test_unknown_metrics_are_omitted():
    assert utilization(chips=1, hosts=1, peak=None, flops_per_sample=2e6, samples_per_s=0.0).keys() == {
        "learner/chips", "learner/hosts", "learner/samples_per_s_per_chip", "learner/samples_per_s_per_host",
        "learner/flops_per_sample", "learner/flops_per_s",
    }  # fmt: skip


def test_devices_are_counted_and_their_peaks_added(network, spec, make_experiment):
    devices = np.array([device(host=index // 4) for index in range(16)])
    found = [
        chip_metrics(make_experiment(), network, spec, [], SimpleNamespace(devices=of))(1.0)
        for of in (devices, np.array(jax.devices()[:1]))
    ]
    named = ("learner/chips", "learner/hosts", "learner/peak_flops")
    assert [[one.get(name) for name in named] for one in found] == [[16, 4, 16 * 197e12], [1, 1, None]]


@pytest.mark.slow
def test_a_learner_on_several_devices_reports_them(tmp_path):
    """The learner runs in another process, because JAX fixes the number of devices at its first use."""
    script = Path(__file__).with_name("learn_on_devices.py")
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    out = tmp_path / "metrics.json"
    subprocess.run([sys.executable, str(script), str(out)], check=True, env=environment, timeout=280)
    metrics = json.loads(out.read_text())
    assert (metrics["learner/chips"], metrics["learner/hosts"]) == (4, 1)
    assert metrics["learner/device_s_per_step"] > 0
    assert 0 < metrics["learner/device_busy"] <= 1
    assert "learner/share_of_peak" not in metrics
    assert "learner/hbm_bytes" not in metrics


def test_one_warning_says_that_values_are_clipped_and_what_to_raise(caplog):
    metrics = LearnerMetrics(4)
    for clipped in (0.0, 0.5, 0.5):
        metrics.add(StepSums(*np.float32([2, 0, 0, 0]), {"clipped_values": np.float32(2 * clipped)}))
        assert metrics.flush(2)["learner/clipped_values"] == clipped
    (warning,) = caplog.messages
    assert "50% of the value targets" in warning
    assert "raise network.support" in warning


def test_memory_metrics_are_maxima_over_the_devices_that_have_statistics():
    full = device(bytes_in_use=7, peak_bytes_in_use=8, bytes_limit=16)
    peaked = device(bytes_in_use=3, peak_bytes_in_use=12, bytes_limit=16)
    assert memory_metrics([full, peaked]) == {
        "learner/hbm_bytes": 7, "learner/hbm_peak_bytes": 12, "learner/hbm_limit_bytes": 16,
    }  # fmt: skip
    assert memory_metrics([device(bytes_in_use=7)]) == {"learner/hbm_bytes": 7}
    assert memory_metrics([device(), device()]) == {}


@pytest.fixture
def controlled(monkeypatch):
    """A device clock whose time and dispatches the test controls."""
    present, ended = [0.0], threading.Semaphore(0)
    ends = {name: threading.Event() for name in ("first", "second", "third")}

    def wait(name):
        assert ends[name].wait(60)

    monkeypatch.setattr("podzero.learner.devices.time.perf_counter", lambda: present[0])
    monkeypatch.setattr("podzero.learner.devices.jax.block_until_ready", wait)
    clock = DeviceClock(lambda state, name: StepOutput(state, name, ()), steps_per_dispatch=5)

    def end(name, at):
        present[0] = at
        dispatches = clock._dispatches
        ends[name].set()
        while clock._free_at != at or clock._dispatches < dispatches:
            ended.acquire(timeout=0.001)

    yield clock, present, end
    clock.close()


def test_a_dispatch_is_timed_from_when_the_devices_can_execute_it(controlled):
    clock, present, end = controlled
    assert clock("state", "first") == ("state", "first", ())
    end("first", at=100.0)  # compiles, so it is not counted
    assert clock.flush() == IDLE
    present[0] = 110.0
    clock("state", "second")
    clock("state", "third")
    end("second", at=120.0)  # dispatched at 110, when the devices were idle
    end("third", at=140.0)  # dispatched at 110, but the devices were busy until 120
    busy = {"learner/device_busy": 0.75, "count/device_s": 30.0, "learner/device_s_per_step": 3.0}
    assert clock.flush() == busy
    present[0] = 150.0
    assert clock.flush() == IDLE


def test_devices_that_also_play_are_busy_with_one_or_the_other(controlled):
    clock, present, end = controlled
    clock("state", "first")
    end("first", at=100.0)
    clock.ended("play", start=90.0)  # compiles as well
    clock.flush()
    present[0] = 110.0
    clock("state", "second")
    end("second", at=116.0)
    present[0] = 120.0
    clock.ended("play", start=110.0)  # behind the train step, until 116
    clock("state", "third")
    end("third", at=130.0)
    found = clock.flush()
    assert (found["count/device_s"], found["count/play_s"]) == (16.0, 4.0)
    assert found["learner/device_s_per_step"] == 8.0 / 5


def test_a_failed_dispatch_ends_the_thread_and_not_the_loop(monkeypatch):
    failed = threading.Event()

    def fail(sums):
        failed.set()
        raise RuntimeError("the device is gone")

    monkeypatch.setattr("podzero.learner.devices.jax.block_until_ready", fail)
    clock = DeviceClock(lambda state, batch: StepOutput(state, batch, ()), 1)
    clock(1, 2)
    assert failed.wait(60)
    assert clock(3, 4) == (3, 4, ())
    assert clock.flush() == IDLE


def test_the_policy_age_is_step_minus_version_over_searched_samples():
    """Nothing at step 4, 2 2 1 1 at step 5, and 6 5 4 at step 6; then 1 and 101 at step 102."""
    ages = PolicyAges()
    assert ages.flush() == {}
    ages.add(4, np.array([[-1, -1, -1, -1], [3, 3, 4, 4], [-1, 0, 1, 2]], np.int32))
    assert ages.flush() == {
        "learner/policy_age": 3.0, "learner/policy_age_median": 2.0, "learner/policy_age_p99": pytest.approx(5.94),
        "learner/policy_age_max": 6.0, "learner/taken_back": 0.0,
    }  # fmt: skip
    ages.add(102, np.array([[101, 1]], np.int32))
    assert ages.flush()["learner/policy_age_max"] == 101.0


def test_samples_that_are_newer_than_the_learner_are_counted_and_have_no_age():
    """A learner that has gone back to step 40 finds samples of the steps that it has not made again."""
    ages = PolicyAges()
    ages.add(40, np.array([[-1, 40, 47, 55], [40, 41, 42, 43]], np.int32))
    found = ages.flush()
    assert found["learner/taken_back"] == 4 / 7
    assert (found["learner/policy_age"], found["learner/policy_age_max"]) == (1 / 7, 1.0)
