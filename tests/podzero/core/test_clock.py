import pytest

from podzero.core.clock import StageClock, whole


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
    assert clock.flush() == pytest.approx({"time/search": 0.8, "time/write": 0.1, "time/other": 0.1})
    ticks[0] += 4.0
    with clock("write"):
        ticks[0] += 4.0
    assert clock.flush() == pytest.approx({"time/write": 0.5, "time/other": 0.5})


def test_shares_add_up_to_one_also_of_stages_within_stages_and_of_a_stage_that_has_not_ended(ticks):
    clock = StageClock()
    with clock("step"):
        ticks[0] += 1.0
        with clock("update_priorities"):
            ticks[0] += 2.0
        ticks[0] += 1.0
        first = clock.flush()
        ticks[0] += 3.0
    ticks[0] += 1.0
    assert first == pytest.approx({"time/step": 0.5, "time/update_priorities": 0.5, "time/other": 0.0})
    assert clock.flush() == pytest.approx({"time/step": 0.75, "time/other": 0.25})


@pytest.mark.parametrize("shares", [{}, {"play": 0.5}, {"play": 0.9, "train": 0.6}])
def test_shares_and_their_rest_add_up_to_one_although_they_overlap(shares):
    found = whole(shares, "idle")
    assert sum(found.values()) == pytest.approx(1.0)
    assert min(found.values()) >= 0.0
    assert [found[name] / found["play"] for name in shares] == pytest.approx(
        [s / shares["play"] for s in shares.values()]
    )


def test_a_stage_that_fails_is_counted_too(ticks):
    clock = StageClock()

    def fail():
        with clock("step"):
            ticks[0] += 3.0
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fail()
    assert clock.flush() == pytest.approx({"time/step": 1.0, "time/other": 0.0})
