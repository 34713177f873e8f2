"""A program that is spoken to by lines: nothing it does or leaves undone holds up the caller for longer than asked."""

from __future__ import annotations

import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, Full, Queue
from threading import Thread
from typing import IO

from podzero.errors import PodzeroError

LONGEST_LINE = 2**16
"""Bytes; a longer line is read in parts."""
_WAITING_LINES = 1000
"""Lines that were read and not yet asked for; the program waits while there are more."""
_STDERR_LINES = 5
"""Last lines of standard error that an error message quotes."""
_EXIT_S = 2.0
"""Seconds between asking a program to end and killing it."""


class EngineFailed(PodzeroError, RuntimeError):
    """An engine ended, did not answer in time, or answered what its protocol does not allow."""


class LineProcess:
    """A running program; one thread at a time may use it."""

    def __init__(self, command: Sequence[str]) -> None:
        """Starts the program, in a session of its own so that Ctrl-C does not reach it.

        Raises:
          EngineFailed: it cannot be started.
        """
        self.name = command[0].rpartition("/")[2]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineFailed(f"{self.name} cannot be started: {error}") from None
        self._lines: Queue[str | None] = Queue(_WAITING_LINES)
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._closed = False
        for read, stream in ((self._read, self._process.stdout), (self._drain, self._process.stderr)):
            Thread(target=read, args=(stream,), name=f"{self.name}-output", daemon=True).start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def send(self, line: str) -> None:
        """Sends one line.

        Raises:
          EngineFailed: the program has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except OSError:
            raise EngineFailed(self._ended(line)) from None

    def receive(self, deadline: float, waiting_for: str) -> str:
        """The next line, without its end and surrounding spaces.

        Args:
          deadline: on the clock of `time.monotonic`.
          waiting_for: what the line should answer, for error messages.

        Raises:
          EngineFailed: the program has ended, or wrote no line before the deadline.
        """
        try:
            line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.001))
        except Empty:
            raise EngineFailed(f"{self.name} has not answered '{waiting_for}' in time") from None
        if line is None:
            self._lines.put(None)
            raise EngineFailed(self._ended(waiting_for))
        return line

    def close(self, farewell: str = "") -> None:
        """Ends the program: by the line `farewell` and the end of its input, and by a signal if it stays."""
        self._closed = True
        with suppress(EngineFailed):
            if farewell:
                self.send(farewell)
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=_EXIT_S if farewell else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self, stream: IO[bytes]) -> None:
        for line in iter(lambda: stream.readline(LONGEST_LINE), b""):
            self._put(line.decode(errors="replace").strip())
        self._put(None)

    def _put(self, line: str | None) -> None:
        while not self._closed:
            with suppress(Full):
                self._lines.put(line, timeout=0.2)
                return

    def _drain(self, stream: IO[bytes]) -> None:
        for line in iter(lambda: stream.readline(LONGEST_LINE), b""):
            self._stderr.append(line.decode(errors="replace").strip())

    def _ended(self, waiting_for: str) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_EXIT_S)
        said = " / ".join(self._stderr)
        return f"{self.name} ended ({self._process.poll()}) at '{waiting_for}'" + (f"; it said: {said}" if said else "")
