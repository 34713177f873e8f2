"""The road of batches from replay to the loop: read by a thread, bounded, and never in the way of a stop."""

from __future__ import annotations

import queue
import threading
from typing import Self

from podzero.protocols import ReplayReader
from podzero.types import Batch

_POLL_S = 0.2
"""How soon the thread notices that nobody wants another batch."""


class Prefetcher:
    """Reads host batches one ahead of the loop, and no more: what is read early is older when it is learned from.

    The reader may wait for replay as long as it likes; the loop meanwhile looks in with short timeouts, so that it
    can publish, report, checkpoint and stop. The transfer to the device hides behind the step without any thread:
    the loop dispatches asynchronously, so a batch travels while the steps before it still run.
    """

    def __init__(self, reader: ReplayReader) -> None:
        self._reader = reader
        self._iterator = iter(reader)
        self._batches: queue.SimpleQueue[Batch | BaseException] = queue.SimpleQueue()
        self._room = threading.Semaphore(1)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="learner-feed", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops reading; closes the reader, which ends a read that still waits for replay."""
        self._closed.set()
        self._reader.close()
        self._thread.join(timeout=5.0)

    def poll(self, timeout_s: float) -> Batch | None:
        """The next batch, or None when there is none within `timeout_s`; raises what the reader raised."""
        try:
            item = self._batches.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(item, BaseException):
            raise item
        self._room.release()
        return item

    def _read(self) -> None:
        item: Batch | BaseException | None = None
        while not self._closed.is_set() and not isinstance(item, BaseException):
            if self._room.acquire(timeout=_POLL_S):
                item = self._next()
                self._batches.put(item)

    def _next(self) -> Batch | BaseException:
        """The reader's next batch, or what it raised, for the loop to raise."""
        try:
            return next(self._iterator)
        except StopIteration:
            return EOFError("the replay reader ended although its contract says that it never does")
        except BaseException as error:
            return error
