"""Ctrl-C, SIGTERM and SIGHUP end a run in order, or break off its start."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

REPEATED_AFTER_S = 1.0
"""Time from which another Ctrl-C counts as a second one: some parent processes pass the first one on as well."""


class StopSignals:
    """A context manager that handles SIGINT, SIGTERM and SIGHUP (sent when the terminal closes): the first one sets
    `event`; a second SIGINT interrupts. SIGHUP stays ignored where it was, for example by `nohup`.
    """

    def __init__(self, event: threading.Event | None = None) -> None:
        self.event = event or threading.Event()
        self.number = 0
        """The first signal that was received; 0 before."""
        self._interrupts = False
        self._received_at = 0.0

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        if self._before[signal.SIGHUP] is signal.SIG_IGN:
            del self._before[signal.SIGHUP]
        self.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Installs the handlers, again if a library has replaced them."""
        for number in self._before:
            signal.signal(number, self._handle)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """In this context a signal raises KeyboardInterrupt. For steps that may be broken off anywhere."""
        self._interrupts = True
        try:
            if self.event.is_set():
                raise KeyboardInterrupt
            yield
        finally:
            self._interrupts = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first, now = not self.event.is_set(), time.monotonic()
        if first:
            self.number, self._received_at = number, now
        self.event.set()
        second = number == signal.SIGINT and now - self._received_at >= REPEATED_AFTER_S
        if second or (first and self._interrupts):
            raise KeyboardInterrupt
