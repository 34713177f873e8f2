"""Files are written in a thread, in order, however long that takes, until an error or another owner ends it."""

import threading
import time

import pytest

from podzero.runtime.monitoring.background import Background


@pytest.fixture
def gate():
    """Storage that answers once this is set."""
    gate = threading.Event()
    yield gate
    gate.set()


def test_storage_that_hangs_delays_nobody_and_of_each_key_the_newest_job_is_run_in_order(gate):
    files, done = Background(lambda: None), []
    files.put("first", lambda: gate.wait(60))
    for number in range(1000):
        files.put("metrics", lambda: done.append("metrics"))
        files.put("status", lambda number=number: done.append(number))
    assert not files.wait(0.05)
    assert done == []
    gate.set()
    assert files.wait(20.0)
    assert done == ["metrics", 999]


def test_storage_that_hangs_is_named_once_in_a_while(gate, caplog, monkeypatch):
    files, now = Background(lambda: None), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    files.put("status", lambda: gate.wait(60))
    while files._busy is None:
        time.sleep(0.001)
    for _ in range(40):
        now[0] += 1.0
        files.put("status", lambda: None)
    (message,) = caplog.messages
    assert "storage has not answered" in message


@pytest.mark.parametrize("fails", ["check", "job"])
def test_an_error_ends_all_work_and_is_raised_where_more_is_asked_for(fails):
    def fail():
        raise ValueError("a fault of the program")

    files, done = Background(fail if fails == "check" else lambda: None), []
    files.put("first", fail)
    files.put("second", lambda: done.append(2))
    assert files.wait(20.0)
    with pytest.raises(ValueError, match="a fault of the program"):
        files.put("third", lambda: done.append(3))
    assert done == []


def test_the_time_of_the_last_check_is_known(gate):
    files = Background(lambda: None)
    began = time.monotonic()
    assert files.checked_at < began
    files.put("status", lambda: None)
    assert files.wait(20.0)
    assert files.checked_at >= began
