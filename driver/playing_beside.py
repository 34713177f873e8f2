"""An actor in the learner's process: it plays on the learner's devices, in turns with training."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from podzero.actors import DeviceActor

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 10.0
"""Longest wait for the end of the actor's last program, or of a write to replay."""


@contextmanager
def playing_beside(actor: DeviceActor, stop_learning: Callable[[], None]) -> Iterator[None]:
    """Runs the actor in a thread until the end of the block.

    Args:
      actor: the actor.
      stop_learning: is called if the actor fails; returns at once.

    Raises:
      Exception: the actor failed.
    """
    failures: list[Exception] = []

    def play() -> None:
        try:
            actor.run()
        except Exception as failure:
            failures.append(failure)
            stop_learning()

    thread = threading.Thread(target=play, name="self-play", daemon=True)
    thread.start()
    try:
        yield
    finally:
        actor.stop()
        thread.join(STOP_TIMEOUT_S)
        if thread.is_alive():
            log.info("self-play beside the learner did not end within %g s: its games are lost", STOP_TIMEOUT_S)
    if failures:
        raise failures[0]
