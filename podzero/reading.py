"""Reading lines ahead, so that whoever answers them can see whether more have arrived."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from queue import Queue
from threading import Thread

End = Exception | None
"""The end of the input: None, or the exception raised by reading it."""


def standard_input() -> Iterable[str]:
    """The lines of standard input; bytes that are no text become U+FFFD, so that the lines after them are answered."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    return sys.stdin


def read_ahead(lines: Iterable[str], limit: int) -> Queue[str | End]:
    """Reads non-empty lines in a daemon thread, since a blocking read from a terminal cannot be interrupted.

    The queue holds at most `limit` lines; its last item is the end of the input.
    """
    waiting: Queue[str | End] = Queue(maxsize=limit)

    def read() -> None:
        end: End = None
        try:
            for line in lines:
                if line.strip():
                    waiting.put(line)
        except Exception as error:  # raised again in the thread that takes the lines
            end = error
        waiting.put(end)

    Thread(target=read, name="read-ahead", daemon=True).start()
    return waiting
