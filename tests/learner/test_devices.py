"""Chips that JAX must find, memory that must suffice, and devices that hang: the learner ends with an error."""

import threading
from types import SimpleNamespace

import jax
import pytest

from podzero.core.chips import find_slice
from podzero.core.errors import ConfigError
from podzero.learner import check_chips, explained
from podzero.learner.devices import DeviceClock, DevicesHang, DoesNotFit, run_watched
from podzero.learner.step import StepOutput


@pytest.fixture
def devices(monkeypatch):
    """Replaces the devices that JAX finds on this host."""

    def find(platform, count, jax_platforms=""):
        monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(platform=platform)] * count)
        monkeypatch.setenv("JAX_PLATFORMS", jax_platforms)

    return find


def test_a_host_with_missing_chips_is_refused(devices):
    devices("tpu", 4)
    check_chips(find_slice("v5e-16"))
    devices("tpu", 2)
    with pytest.raises(ConfigError, match=r"v5e-16 with 4 devices.* 2 .*another process"):
        check_chips(find_slice("v5e-16"))


def test_a_host_without_libtpu_is_refused(devices):
    devices("cpu", 1)
    with pytest.raises(ConfigError, match=r"only cpu devices.*install libtpu"):
        check_chips(find_slice("v5e-16"))


def test_other_devices_are_accepted_if_jax_platforms_names_them(devices):
    devices("cpu", 2, jax_platforms="cpu")
    check_chips(find_slice("v4-16"))


def test_out_of_memory_errors_name_config_fields_and_other_errors_are_unchanged():
    full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9876 bytes")
    found = explained(full)
    assert isinstance(found, DoesNotFit)
    for words in ("learner.mesh.fsdp=true", "network.remat=true", "learner.microbatches", "9876 bytes"):
        assert words in str(found)
    other = jax.errors.JaxRuntimeError("INTERNAL: something else")
    assert explained(other) is other


@pytest.fixture(autouse=True)
def short_polls(monkeypatch):
    monkeypatch.setattr("podzero.learner.devices._POLL_S", 0.01)


def test_what_run_returns_or_raises_is_passed_on():
    calls = []
    run_watched(lambda: calls.append(1), lambda: 0.0, "learner")
    assert calls == [1]

    def fail():
        raise FloatingPointError("the loss is NaN")

    with pytest.raises(FloatingPointError, match="the loss is NaN"):
        run_watched(fail, lambda: 0.0, "learner")


def test_a_dispatch_that_lasts_too_long_ends_the_run_though_it_still_waits():
    release = threading.Event()
    lasted = iter([0.0, 5.0, 1900.0])
    try:
        with pytest.raises(DevicesHang, match=r"learner-1 .*one dispatch .*1900 s"):
            run_watched(lambda: release.wait(60), lambda: next(lasted), "learner-1", limit_s=1800.0)
    finally:
        release.set()


def test_only_a_dispatch_after_the_first_is_measured(monkeypatch):
    """The first compiles. Between dispatches the learner waits for replay."""
    waiting, release = threading.Semaphore(0), threading.Semaphore(0)

    def block(_):
        waiting.release()
        release.acquire(timeout=60)

    monkeypatch.setattr("podzero.learner.devices.jax.block_until_ready", block)
    clock = DeviceClock(lambda state, batch: StepOutput(state, batch, ()))
    now = [0.0]
    monkeypatch.setattr("podzero.learner.devices.time.perf_counter", lambda: now[0])

    def lasting(seconds):
        waiting.acquire(timeout=60)
        now[0] += seconds
        return clock.dispatch_s

    clock("state", "first")
    assert lasting(9.0) == 0.0
    clock("state", "second")
    release.release()
    assert lasting(7.0) == 7.0
    clock("state", "third")
    release.release()
    assert lasting(5.0) == 5.0
    release.release()
    clock.close()
    clock._thread.join(60)
    assert clock.dispatch_s == 0.0
