"""Signals that arrive while Ray starts."""

from __future__ import annotations

import signal
import threading

import pytest

from podzero.runtime.cluster.ray_start import deferred_signals


@pytest.fixture
def received():
    """The signals that the process has handled."""
    found = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: found.append(number)) for number in numbers}
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_handled_once_when_the_context_ends(received, number):
    with deferred_signals():
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert received == []
    assert received == [number]
    signal.raise_signal(number)
    assert received == [number, number]


def test_an_exception_of_the_handler_leaves_the_context_and_not_its_body(received):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    steps = []

    def connect():
        with deferred_signals():
            signal.raise_signal(signal.SIGINT)
            steps.append("the body goes on")

    with pytest.raises(KeyboardInterrupt):
        connect()
    assert steps


def test_the_default_action_is_kept(received):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with deferred_signals():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_other_threads_may_connect(received):
    def connect():
        with deferred_signals():
            handlers.append(signal.getsignal(signal.SIGINT))

    handlers, before = [], signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=connect)
    thread.start()
    thread.join(timeout=10)
    assert handlers == [before]
