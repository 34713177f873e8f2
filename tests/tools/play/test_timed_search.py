import pytest

from podzero.tools.play.searching import OVERHEAD_S, GtpClock, share_of_clock
from podzero.tools.play.uci import GoLimits, parse_go


def test_a_clock_is_never_overdrawn():
    for remaining in (0.0, 0.01, 0.1, 1.0, 60.0):
        for increment in (0.0, 1.0, 100.0):
            for moves in (1, 2, 30):
                assert 0 <= share_of_clock(remaining, increment, moves) <= max(remaining - OVERHEAD_S, 0)


def test_arguments_of_go():
    limits, unknown = parse_go(["wtime", "60000", "btime", "-20", "winc", "1000", "movestogo", "10", "depth", "3"])
    assert limits == GoLimits(wtime=60000, btime=0, winc=1000, movestogo=10)
    assert not unknown
    assert limits.seconds(white=True) == pytest.approx((60 - OVERHEAD_S) / 10 + 0.75)
    assert limits.seconds(white=False) == 0
    assert parse_go(["searchmoves", "e2e4"])[0].searchmoves == ("e2e4",)
    limits, unknown = parse_go(["searchmoves", "e2e4", "d2d4", "infinite", "nodes", "7", "g1f3"])
    assert (limits.searchmoves, limits.infinite, limits.nodes) == (("e2e4", "d2d4"), True, 7)
    assert unknown == ["g1f3"]
    assert parse_go(["nodes", "--5"]) == (GoLimits(), ["nodes", "--5"])
    assert parse_go(["nodes", "9" * 5000])[1][0] == "nodes"
    assert parse_go(["movetime"]) == (GoLimits(), ["movetime"])
    assert GoLimits(movetime=1000, wtime=5).seconds(white=True) == pytest.approx(1 - OVERHEAD_S)


def test_a_clock_with_and_without_a_limit():
    assert GtpClock(60, 0, 0).seconds() < 60
    assert GtpClock(0, 1, 0).seconds() is None  # as the protocol says: no limit


def test_canadian_byo_yomi_divides_the_period_among_its_stones():
    clock = GtpClock(0, 10, 5)
    assert clock.seconds() == pytest.approx((10 - OVERHEAD_S) / 5)
    clock.spend(8.0)
    assert clock.seconds() == pytest.approx((2 - OVERHEAD_S) / 4)
    clock.left(10, 5)
    for _ in range(5):
        clock.spend(1.0)
    assert clock.seconds() == pytest.approx((10 - OVERHEAD_S) / 5)


def test_main_time_that_is_used_up_leaves_the_periods():
    clock = GtpClock(20, 10, 1)
    clock.spend(25)
    assert clock.seconds() == pytest.approx(10 - OVERHEAD_S)


def test_a_single_sudden_death_clock_shrinks():
    clock = GtpClock(60, 0, 0)
    first = clock.seconds()
    clock.spend(30)
    assert 0 < clock.seconds() < first
    clock.spend(100)
    assert clock.seconds() == 0
