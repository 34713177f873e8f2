"""What runs in the learner's process on its devices, in turns with training: an actor, or an inference server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 10.0
"""Longest wait for the end of the last program, or of a write to replay."""


class Companion(Protocol):
    """An actor or an inference server."""

    def run(self) -> None:
        """Works until `stop` is called."""
        ...

    def stop(self) -> None:
        """Ends `run`; thread-safe, returns at once."""
        ...


@contextmanager
def running_beside(companion: Companion, fail: Callable[[Exception], None]) -> Iterator[None]:
    """Runs the companion in a thread until the end of the block.

    Args:
      companion: the actor or server.
      fail: is called with the exception if the companion fails; returns at once. It ends the block with it.
    """

    def work() -> None:
        try:
            companion.run()
        except Exception as failure:
            log.error("what runs beside the learner has failed", exc_info=failure)
            fail(failure)

    thread = threading.Thread(target=work, name="beside-learner", daemon=True)
    thread.start()
    try:
        yield
    finally:
        companion.stop()
        thread.join(STOP_TIMEOUT_S)
        if thread.is_alive():
            log.info("what ran beside the learner did not end within %g s: its games are lost", STOP_TIMEOUT_S)
