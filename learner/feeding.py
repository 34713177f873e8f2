"""The road of batches from replay to the loop: read by a thread, bounded, and never in the way of a stop."""

from __future__ import annotations

import queue
import threading
from typing import Self

from podzero.protocols import ReplayReader
from podzero.types import Sample

_POLL_S = 0.2
"""How soon the thread notices that nobody wants its batch any more."""


class Feed:
    """Reads host batches one ahead of the loop.

    The reader may wait for replay as long as it likes; the loop meanwhile looks in with short timeouts, so that it
    can publish, report, checkpoint and stop. The transfer to the device hides behind the step without any thread:
    the loop dispatches asynchronously, so a batch travels while the steps before it still run.
    """

    def __init__(self, reader: ReplayReader) -> None:
        self._reader = reader
        self._batches: queue.Queue[Sample | BaseException] = queue.Queue(maxsize=1)
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

    def poll(self, timeout_s: float) -> Sample | None:
        """The next batch, or None when there is none within `timeout_s`; raises what the reader raised."""
        try:
            item = self._batches.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(item, BaseException):
            raise item
        return item

    def _read(self) -> None:
        try:
            for batch in self._reader:
                if not self._hand_over(batch):
                    return
            self._hand_over(EOFError("the replay reader ended although its contract says that it never does"))
        except BaseException as error:
            self._hand_over(error)

    def _hand_over(self, item: Sample | BaseException) -> bool:
        """Whether the loop had room for `item` before it closed."""
        while not self._closed.is_set():
            try:
                self._batches.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return True
        return False
