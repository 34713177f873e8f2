import pytest

from podzero.core.clock import StageClock


@pytest.fixture
def ticks(monkeypatch):
    """A clock that only the test advances."""
    present = [100.0]
    monkeypatch.setattr("podzero.core.clock.time.perf_counter", lambda: present[0])
    return present


def test_shares_are_relative_to_the_wall_clock_time_since_the_last_flush(ticks):
    clock = StageClock()
    with clock("search"):
        ticks[0] += 6.0
    with clock("write"):
        ticks[0] += 1.0
    with clock("search"):
        ticks[0] += 2.0
    ticks[0] += 1.0
    assert clock.elapsed_s == pytest.approx(10.0)
    assert clock.flush() == pytest.approx({"time/search": 0.8, "time/write": 0.1})
    ticks[0] += 4.0
    with clock("write"):
        ticks[0] += 4.0
    assert clock.flush() == pytest.approx({"time/write": 0.5})


def test_a_stage_that_fails_is_counted_too(ticks):
    clock = StageClock()

    def fail():
        with clock("step"):
            ticks[0] += 3.0
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fail()
    assert clock.flush() == pytest.approx({"time/step": 1.0})
