"""A Reverb server in a process of its own, for benchmarks.

Reverb takes a short cut past the network when client and server share a process, which no run has.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from podzero.config import Experiment
from podzero.types import EnvSpec

START_S = 180.0
"""Longest wait for the server to start: it imports TensorFlow."""
STOP_S = 30.0


@contextmanager
def served(experiment: Experiment, spec: EnvSpec) -> Iterator[Any]:
    """Runs a replay shard of `experiment` beside this process; yields its address.

    Raises:
      TimeoutError: it did not start within `START_S`.
    """
    with hosted(_serve, experiment, spec) as address:
        yield address


@contextmanager
def hosted(serve: Callable[..., None], *arguments: Any) -> Iterator[Any]:
    """Runs `serve(*arguments, parent)` in a process of its own; yields the first thing that it sends to `parent`.

    `serve` must return when `parent`, the pipe to this process, is closed.

    Raises:
      TimeoutError: it sent nothing within `START_S`.
    """
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    server = spawn.Process(target=serve, args=(*arguments, there), name="bench-reverb")
    server.start()
    there.close()
    try:
        if not here.poll(START_S):
            raise TimeoutError(f"the Reverb server did not start within {START_S:g} s")
        yield here.recv()  # EOFError when the server's process died; it has said why on stderr
    finally:
        here.close()  # tells the server to stop
        server.join(STOP_S)
        if server.is_alive():
            server.kill()
            server.join(STOP_S)


def _serve(experiment: Experiment, spec: EnvSpec, parent: Connection) -> None:
    """Runs a server until the parent closes its end of the pipe or dies."""
    from podzero.replay import ReplayServer  # imports TensorFlow

    server = ReplayServer(experiment, spec, 0)
    parent.send(server.address())
    try:
        parent.recv()
    except EOFError:
        server.stop()
