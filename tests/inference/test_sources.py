"""Parameters prepared in a thread, with a source in memory."""

import threading
import time

import pytest

from podzero.core.types import Versioned
from podzero.core.waiting import behind
from podzero.inference import BackgroundSource, FoldedSource
from podzero.inference.sources import LONGEST_PAUSE_S


class Source:
    """Publishes what is put into `newer`; its publications are numbered like its versions."""

    def __init__(self):
        self.newer, self.returned, self.heard = [], 0, 0

    def wait(self, timeout_s):
        self.returned = 1
        return Versioned(1, "one")

    def poll(self):
        if not self.newer:
            return None
        newest = self.newer.pop()
        self.returned = self.heard = newest.version
        return newest

    @property
    def publications(self):
        return self.returned, max(self.returned, self.heard)


def poll_until_there_is_one(source):
    deadline = time.monotonic() + 10
    while (found := source.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return found


def test_the_first_version_is_waited_for():
    assert BackgroundSource(Source(), str.upper).wait(10.0) == Versioned(1, "ONE")


def test_polls_do_not_wait_for_the_preparation(monkeypatch):
    monkeypatch.setattr("podzero.inference.sources.SHARE", 1.0)
    go_on, source = threading.Event(), Source()

    def prepare(params):
        assert go_on.wait(10)
        return params.upper()

    background = BackgroundSource(source, prepare)
    assert background.poll() is None
    source.newer.append(Versioned(2, "two"))
    assert background.poll() is None
    source.newer.append(Versioned(3, "three"))
    assert background.poll() is None
    go_on.set()
    assert poll_until_there_is_one(background) == Versioned(2, "TWO")
    assert poll_until_there_is_one(background) == Versioned(3, "THREE")
    assert background.poll() is None


def test_a_preparation_that_fails_raises_its_error():
    def prepare(params):
        raise ValueError("no such layer")

    source = Source()
    background = BackgroundSource(source, prepare)
    source.newer.append(Versioned(2, "two"))
    with pytest.raises(ValueError, match="no such layer"):
        poll_until_there_is_one(background)


def test_a_bounded_wait_for_a_preparation_can_be_repeated():
    go_on, prepared = threading.Event(), []

    def prepare(params):
        prepared.append(params)
        assert go_on.wait(10)
        return params.upper()

    background = BackgroundSource(Source(), prepare)
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"parameters of step 1 .*within"):
            background.wait(0.01)
    go_on.set()
    assert background.wait(10.0) == Versioned(1, "ONE")
    assert prepared == ["one"]


def test_a_version_that_was_being_prepared_before_a_wait_is_dropped():
    source = Source()
    background = BackgroundSource(source, str.upper)
    source.newer.append(Versioned(0, "zero"))
    assert background.poll() is None
    assert background.wait(10.0) == Versioned(1, "ONE")
    assert background.poll() is None


@pytest.mark.parametrize(("took_s", "pause_s"), [(2.0, 20.0), (300.0, LONGEST_PAUSE_S)])
def test_preparations_take_a_bounded_share_of_the_time_unless_they_stand_still(monkeypatch, took_s, pause_s):
    """One of 2 s at a share of a tenth: the next begins 20 s after it began, with the newest version."""
    monkeypatch.setattr("podzero.inference.sources.SHARE", 0.1)
    clock, prepared = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[-1])

    def prepare(params):
        prepared.append(params)
        clock.append(clock[-1] + took_s)
        return params.upper()

    source = Source()
    background = BackgroundSource(source, prepare)
    source.newer = [Versioned(2, "two")]
    assert background.poll() is None
    assert poll_until_there_is_one(background) == Versioned(2, "TWO")
    for seconds, version in ((100.0 + took_s, Versioned(3, "three")), (99.9 + pause_s, Versioned(4, "four"))):
        clock.append(seconds)
        source.newer = [version]
        assert background.poll() is None
    clock.append(100.0 + pause_s)
    assert background.poll() is None
    assert poll_until_there_is_one(background) == Versioned(4, "FOUR")
    assert prepared == ["two", "four"]


def test_folded_parameters_keep_their_version():
    source = FoldedSource(Source(), str.upper)
    assert source.wait(10.0) == Versioned(1, "ONE")
    assert source.publications == (1, 1)


def test_the_pause_between_preparations_does_not_exceed_the_bound_of_the_lag(monkeypatch):
    """One of 2 s at a share of a tenth has a pause of 18 s after it; with a bound of 8 publications the next one begins
    when the version in use is 4 behind.
    """
    monkeypatch.setattr("podzero.inference.sources.SHARE", 0.1)
    clock, prepared = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[-1])

    def prepare(params):
        prepared.append(params)
        clock.append(clock[-1] + 2.0)
        return params

    source = Source()
    background = BackgroundSource(source, prepare, max_lag=8)
    source.newer = [Versioned(1, 1)]
    assert background.poll() is None
    assert poll_until_there_is_one(background).version == 1
    for version in (2, 3, 4):
        source.newer = [Versioned(version, version)]
        assert background.poll() is None
        assert behind(background) == version - 1
    source.newer = [Versioned(5, 5)]
    assert background.poll() is None  # hears of it
    assert background.poll() is None  # prepares it
    assert behind(background) == 4, "until it is prepared"
    assert poll_until_there_is_one(background).version == 5
    assert behind(background) == 0
    assert prepared == [1, 5]
