"""Processes of a benchmark's own, spoken to through pipes, and the Reverb servers among them.

Reverb takes a short cut past the network when client and server share a process, which no run has.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

from podzero.config import Experiment
from podzero.types import EnvSpec

START_S = 180.0
"""Longest wait for a process to start: it may import TensorFlow, or compile."""
STOP_S = 30.0


class Helper:
    """A process that runs for this one."""

    def __init__(self, name: str, pipe: Connection) -> None:
        self._name = name
        self._pipe = pipe

    def receive(self, timeout_s: float = START_S) -> Any:
        """The next thing that it sends.

        Raises:
          TimeoutError: it sent nothing within `timeout_s`.
          EOFError: it is dead, and has said why on standard error.
        """
        if not self._pipe.poll(timeout_s):
            raise TimeoutError(f"{self._name} has not answered for {timeout_s:g} s")
        return self._pipe.recv()

    def send(self, *request: Any) -> None:
        """Sends the arguments of a question; see `answer`."""
        self._pipe.send(request)

    def ask(self, *request: Any, timeout_s: float = START_S) -> Any:
        """Sends a question and returns the answer; raises what `receive` does."""
        self.send(*request)
        return self.receive(timeout_s)


def answer(parent: Connection, handle: Callable[..., Any]) -> None:
    """In the helper: answers each request with `handle(*request)`, until the parent closes its end or dies."""
    while True:
        try:
            request = parent.recv()
        except EOFError:
            return
        parent.send(handle(*request))


@contextmanager
def helper(
    serve: Callable[..., None], *arguments: Any, environment: Mapping[str, str] | None = None
) -> Iterator[Helper]:
    """Runs `serve(*arguments, parent)` in a process of its own for as long as the context lasts.

    Args:
      serve: a function of a module; it must return when `parent`, its pipe to this process, is closed.
      arguments: what it is called with.
      environment: environment variables that differ from those of this process.
    """
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(*arguments, there), name=f"bench-{serve.__name__.strip('_')}")
    with mock.patch.dict(os.environ, environment or {}):
        process.start()
    there.close()
    try:
        yield Helper(process.name, here)
    finally:
        here.close()  # tells it to stop
        process.join(STOP_S)
        if process.is_alive():
            process.kill()
            process.join(STOP_S)


@contextmanager
def hosted(serve: Callable[..., None], *arguments: Any) -> Iterator[Any]:
    """Runs `serve` as `helper` does; yields the first thing that it sends."""
    with helper(serve, *arguments) as process:
        yield process.receive()


@contextmanager
def served(experiment: Experiment, spec: EnvSpec) -> Iterator[Any]:
    """Runs a replay shard of `experiment` beside this process; yields its address.

    Raises:
      TimeoutError: it did not start within `START_S`.
    """
    with hosted(serve_replay, experiment, spec, 0) as address:
        yield address


def serve_replay(experiment: Experiment, spec: EnvSpec, shard: int, parent: Connection) -> None:
    """Runs a replay shard and sends its address.

    It answers every (empty) request with the samples ever inserted and its CPU seconds.
    """
    from podzero.replay import ReplayServer  # imports TensorFlow

    server = ReplayServer(experiment, spec, shard)
    parent.send(server.address())
    answer(parent, lambda: (server.limits().inserted, time.process_time()))
    server.stop()
