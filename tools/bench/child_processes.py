"""Child processes of the benches, which answer requests through pipes."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

from podzero.errors import PodzeroError

log = logging.getLogger(__name__)

START_S = 180.0
"""The longest wait for a process to start: it may compile."""
STOP_S = 30.0
"""The longest wait for a process to end before it is killed."""


class BenchError(PodzeroError):
    """A process of a bench ended or did not answer in time."""


class ChildProcess:
    """The parent's end of the pipe to a child process."""

    def __init__(self, name: str, pipe: Connection) -> None:
        self._name = name
        self._pipe = pipe

    def receive(self, timeout_s: float = START_S) -> Any:
        """The next object that it sends.

        Raises:
          BenchError: it sent nothing within `timeout_s`, or it has ended.
        """
        if not self._pipe.poll(timeout_s):
            raise BenchError(
                f"the process {self._name} has not answered for {timeout_s:g} s: measure a smaller experiment, or on a "
                "machine without other work"
            )
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            raise self._ended() from None

    def send(self, *request: Any) -> None:
        """Sends the arguments of a request; see `answer`.

        Raises:
          BenchError: it has ended.
        """
        try:
            self._pipe.send(request)
        except OSError:
            raise self._ended() from None

    def ask(self, *request: Any, timeout_s: float = START_S) -> Any:
        """Sends a request and returns the answer; raises the error of `receive`."""
        self.send(*request)
        return self.receive(timeout_s)

    def close(self) -> None:
        """Lets it end after its present request; returns at once."""
        self._pipe.close()

    def _ended(self) -> BenchError:
        return BenchError(f"the process {self._name} has ended; what it printed above says why")


def answer(parent: Connection, handle: Callable[..., Any]) -> None:
    """In the child: answers each request with `handle(*request)` until the parent closes its end or dies."""
    while True:
        try:
            request = parent.recv()
        except (EOFError, OSError):
            return
        found = handle(*request)
        try:
            parent.send(found)
        except OSError:
            return


@contextmanager
def child_process(
    serve: Callable[..., None], *arguments: Any, environment: Mapping[str, str] | None = None
) -> Iterator[ChildProcess]:
    """Runs `serve(*arguments, parent)` in a new process for as long as the context lasts.

    Args:
      serve: a module-level function; it must return when `parent`, its pipe to this process, is closed.
      arguments: its other arguments.
      environment: variables to set or change in the new process.
    """
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(*arguments, there), name=f"bench-{serve.__name__.strip('_')}")
    log.info("starting the process %s; it has %g s to import its libraries and to compile", process.name, START_S)
    with mock.patch.dict(os.environ, environment or {}):
        process.start()
    there.close()
    child = ChildProcess(process.name, here)
    try:
        yield child
    finally:
        child.close()
        process.join(STOP_S)
        if process.is_alive():
            process.kill()
            process.join(STOP_S)
