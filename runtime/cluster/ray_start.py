"""Starts Ray so that signals for the driver stay with the driver, and wait until Ray is connected."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def separate_signals() -> Iterator[None]:
    """In this context, Ray's processes start in sessions of their own, and Ray keeps the caller's SIGTERM handler.

    A terminal sends signals to the whole process group of the driver; processes in other sessions do not receive them.
    Ray's own SIGTERM handler would end Ray's processes, and the driver would then wait for answers in vain.
    """
    from ray._private import services, utils

    popen, set_handler = services.ConsolePopen, utils.set_sigterm_handler
    services.ConsolePopen = partial(popen, start_new_session=True)
    utils.set_sigterm_handler = partial(_set_if_default, set_handler)
    try:
        yield
    finally:
        services.ConsolePopen, utils.set_sigterm_handler = popen, set_handler


@contextmanager
def deferred_signals() -> Iterator[None]:
    """In this context of the main thread SIGINT, SIGTERM and SIGHUP wait for its end, where they have a handler.

    An exception that a handler raises while Ray constructs its core worker would leave that worker to nobody; it then
    aborts the process when it ends (exit code 134).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    stopping = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    numbers = [number for number in stopping if callable(signal.getsignal(number))]
    handlers = {number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def _set_if_default(set_handler: Callable[[Any], None], handler: Any) -> None:
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        set_handler(handler)
