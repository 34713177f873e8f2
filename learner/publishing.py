"""The learner's threads: parameters are published, and batches read, in the background of the training loop.

A publication may be skipped: actors go on with the parameters that they have, and the next one replaces them.
"""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from podzero.learner.sharding import replicated
from podzero.protocols import ParamSink, ReplayReader
from podzero.types import Batch, Params, Versioned
from podzero.waiting import Wait

log = logging.getLogger(__name__)

PUBLISH_WAIT_S = 10.0
"""Longest time that the training loop waits for the end of one publication."""


class Publisher:
    """Publishes in order, one version at a time, in a separate thread. A version is skipped if it cannot be published.

    Args:
      sink: receives the parameters. None on all hosts but host 0: they only take part in gathering sharded parameters.
      mesh: the devices that hold the parameters.
      local: receives the same as device arrays, on every host, before they leave the devices; None if nobody there
        needs them.
    """

    def __init__(self, sink: ParamSink | None, mesh: Mesh, local: ParamSink | None = None) -> None:
        self._sink = sink
        self._local = local
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="learner-publish")
        self._in_progress: Future[None] | None = None
        self._late = False
        """Whether the publication in progress was waited for in vain."""
        self._skipped = 0
        self._trouble: Wait | None = None
        """Began with the first of the last skipped versions; None after one that was published."""
        self._gather = jax.jit(lambda params: jax.tree.map(jnp.copy, params), out_shardings=replicated(mesh))
        self.newest: Versioned | None = None
        """The newest parameters that were on the host, published or about to be."""

    def publish(self, version: int, params: Params) -> None:
        """Starts to publish device arrays, which may be donated as soon as this returns.

        Waits first for a previous publication in progress, so that no queue builds up. If that takes more than
        `PUBLISH_WAIT_S`, this version and those that follow are skipped until it has ended.
        """
        free = self.finish()
        gathered = self._gather(params)
        if self._local is not None:
            self._local.publish(version, gathered)
        if self._sink is None:
            return
        if free:
            self._in_progress = self._thread.submit(self._publish, self._sink, version, gathered)
        else:
            self._skip(f"an earlier publication has not ended within {PUBLISH_WAIT_S:g} s")

    def finish(self) -> bool:
        """Waits up to `PUBLISH_WAIT_S`, at most once, for the publication in progress; whether none is left."""
        if self._in_progress is None:
            return True
        self._late = bool(wait([self._in_progress], 0.0 if self._late else PUBLISH_WAIT_S).not_done)
        if self._late:
            return False
        failure, self._in_progress = self._in_progress.exception(), None
        if failure is not None:
            self._skip(str(failure) or repr(failure))
        elif self._trouble is not None:
            log.info("parameters are published again")
            self._trouble = None
        return True

    def flush(self) -> dict[str, float]:
        """The metric `count/skipped_publications`, since the last call."""
        skipped, self._skipped = self._skipped, 0
        return {"count/skipped_publications": float(skipped)}

    def close(self) -> None:
        """Ends the thread; does not wait for a sink that hangs."""
        self._thread.shutdown(wait=False)

    def _skip(self, reason: str) -> None:
        """Counts a version that was not published; logs the first in a row, and then ever more rarely."""
        self._skipped += 1
        if self._trouble is None:
            self._trouble = Wait()
            log.warning("parameters were not published, so actors keep those before: %s", reason)
        elif self._trouble.message_due():
            log.warning("no parameters were published for %s so actors keep those before: %s", self._trouble, reason)

    def _publish(self, sink: ParamSink, version: int, params: Params) -> None:
        host = jax.device_get(params)
        self.newest = Versioned(version, host)
        sink.publish(version, host)


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
