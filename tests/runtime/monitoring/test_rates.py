"""Rates over a sliding window, with numbers made by hand."""

import pytest

from podzero.runtime.monitoring.rates import WINDOW_S, RateWindow


def test_the_rate_covers_the_window_only():
    window = RateWindow()
    for second in range(0, 301, 10):
        window.add(float(second), 5.0 * min(second, 200) + 50.0 * max(second - 200, 0))
    assert window.per_s(200.0 + WINDOW_S) == pytest.approx(5000.0 / 60, rel=0.7)
    assert window.per_s(300.0) == pytest.approx(50.0)
    assert window.per_s(300.0 + 2 * WINDOW_S) == 0.0


def test_the_rate_falls_during_a_silence():
    window = RateWindow()
    window.add(0.0, 0.0)
    window.add(30.0, 300.0)
    assert window.per_s(30.0) == pytest.approx(10.0)
    assert window.per_s(59.0) == pytest.approx(300 / 59)
    assert window.per_s(1000.0) == 0.0


def test_many_reporters_take_bounded_memory():
    window = RateWindow()
    for tick in range(100_000):
        window.add(tick / 1000, float(tick))
    assert len(window._points) <= 102
    assert window.per_s(100.0) == pytest.approx(1000.0, rel=0.05)
