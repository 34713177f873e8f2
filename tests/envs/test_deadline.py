import threading
import time
from functools import partial

import pytest

from podzero.envs.faults import DeadlineThread


def loop(started):
    started.append(threading.current_thread())
    while True:
        pass


@pytest.fixture
def thread():
    thread = DeadlineThread("deadline")
    yield thread
    thread.stop()


def test_results_are_returned_and_errors_raised(thread):
    assert thread.call(partial(abs, -3), 10) == 3
    with pytest.raises(ValueError, match="invalid literal"):
        thread.call(partial(int, "three"), 10)
    assert thread.call(partial(int, "3"), 10) == 3


def test_a_call_that_takes_too_long_is_abandoned_and_ended_if_it_executes_python_code(thread):
    started = []
    with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s"):
        thread.call(partial(loop, started), 0.2)
    started[0].join(5)
    assert not started[0].is_alive()
    with pytest.raises(TimeoutError):
        thread.call(partial(time.sleep, 1), 0.05)
    assert thread.call(partial(abs, -3), 10) == 3
    assert thread.call(partial(abs, -4), 10) == 4
