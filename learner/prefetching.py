"""Prefetching of batches from replay in a thread."""

from __future__ import annotations

import queue
import threading
from typing import Self

from podzero.protocols import ReplayReader
from podzero.types import Batch

_POLL_S = 0.2
"""How often the thread checks whether it is closed."""


class Prefetcher:
    """Reads host batches, at most one ahead of the loop: a batch that waits longer has older samples.

    The reader may block on replay, while the loop polls with short timeouts, so that it can publish, report, checkpoint
    and stop. The transfer to the device needs no thread: dispatch is asynchronous, so a batch is transferred while the
    previous steps still execute.
    """

    def __init__(self, reader: ReplayReader) -> None:
        self._reader = reader
        self._iterator = iter(reader)
        self._batches: queue.SimpleQueue[Batch | BaseException] = queue.SimpleQueue()
        self._free = threading.Semaphore(1)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="learner-prefetch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops reading and closes the reader, which ends a blocked read."""
        self._closed.set()
        self._reader.close()
        self._thread.join(timeout=5.0)

    def poll(self, timeout_s: float) -> Batch | None:
        """The next batch, or None if none arrives within `timeout_s`; raises the error of the reader."""
        try:
            item = self._batches.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(item, BaseException):
            raise item
        self._free.release()
        return item

    def _read(self) -> None:
        item: Batch | BaseException | None = None
        while not self._closed.is_set() and not isinstance(item, BaseException):
            if self._free.acquire(timeout=_POLL_S):
                item = self._next()
                self._batches.put(item)

    def _next(self) -> Batch | BaseException:
        """The reader's next batch, or its error for the loop to raise."""
        try:
            return next(self._iterator)
        except StopIteration:
            return EOFError("the replay reader ended, although `ReplayReader` is endless until it is closed")
        except BaseException as error:
            return error
