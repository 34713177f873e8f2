"""A learner whose devices hang ends with an error that names it, and no other wait counts as hanging."""

import threading

import pytest

from podzero.learner import devices
from podzero.learner.devices import DeviceClock, DevicesHang, run_watched
from podzero.learner.step import StepOutput


@pytest.fixture(autouse=True)
def short_polls(monkeypatch):
    monkeypatch.setattr(devices, "_POLL_S", 0.01)


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
