"""The learner's background threads: one publishes parameters, one reads batches."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from podzero.core.protocols import ParamSink, ReplayReader
from podzero.core.types import PackedBatch, Params, Versioned
from podzero.core.waiting import Wait
from podzero.learner.sharding import replicated

log = logging.getLogger(__name__)

PUBLISH_WAIT_S = 10.0
"""Longest time for which the training loop waits for a publication."""


class Publisher:
    """Publishes one version at a time in a thread. A version that cannot be published, or is not finite, is skipped,
    which is harmless: actors keep the parameters that they have until the next one.
    """

    def __init__(self, sink: ParamSink | None, mesh: Mesh, local: ParamSink | None = None) -> None:
        """`sink` is None on hosts that only help to gather parameters; `local` receives device arrays on every host."""
        self._sink, self._local = sink, local
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="learner-publish")
        self._in_progress: Future[None] | None = None
        self._late = False
        """Whether the publication in progress has already exceeded `PUBLISH_WAIT_S`."""
        self._skipped = 0
        self._trouble: Wait | None = None
        """Time since the first of the versions skipped in a row; None if the last one was published."""
        self._gather = jax.jit(_copied, out_shardings=replicated(mesh))
        self.newest: Versioned | None = None
        """The newest finite parameters on the host, published or about to be."""

    def publish(self, version: int, params: Params) -> None:
        """Starts to publish device arrays, which may be donated as soon as this returns.

        Waits up to `PUBLISH_WAIT_S` for a publication in progress; if that is not enough, versions are skipped until it
        ends.
        """
        free = self.finish()
        # All hosts take part, even if this version is skipped: only host 0 knows that.
        gathered, finite = self._gather(params)
        if free:
            self._in_progress = self._thread.submit(self._publish, version, gathered, finite)
        else:
            self._skip(f"an earlier publication has not ended within {PUBLISH_WAIT_S:g} s")

    def finish(self) -> bool:
        """Waits up to `PUBLISH_WAIT_S` for the publication in progress; returns whether none is left."""
        if self._in_progress is None:
            return True
        # A publication that was late once is not waited for again, since training would slow down at each version.
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
        """The versions skipped since the last call, and the newest one that was published."""
        skipped, self._skipped = self._skipped, 0
        newest = {} if self.newest is None else {"learner/published": float(self.newest.version)}
        return {"count/skipped_publications": float(skipped)} | newest

    def close(self) -> None:
        """Ends the thread; does not wait for a sink that hangs."""
        self._thread.shutdown(wait=False)

    def _skip(self, reason: str) -> None:
        """Counts a version that was not published; logs the first in a row, then more and more rarely."""
        self._skipped += 1
        if self._trouble is None:
            self._trouble = Wait()
            log.warning("parameters were not published, so actors keep the previous ones: %s", reason)
        elif self._trouble.message_due():
            log.warning("no parameters were published for %s so actors keep the last ones: %s", self._trouble, reason)

    def _publish(self, version: int, params: Params, finite: jax.Array) -> None:
        if not finite:
            raise ValueError(f"those of step {version} are not finite")
        if self._local is not None:
            self._local.publish(version, params)
        if self._sink is not None:
            host = jax.device_get(params)
            self.newest = Versioned(version, host)
            self._sink.publish(version, host)


def _copied(params: Params) -> tuple[Params, jax.Array]:
    """A copy of the parameters, and whether all of them are finite."""
    numbers = [leaf for leaf in jax.tree.leaves(params) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jax.tree.map(jnp.copy, params), jnp.array([jnp.isfinite(leaf).all() for leaf in numbers], bool).all()


class Prefetcher:
    """Reads host batches in a thread, so that the loop can publish, report, checkpoint and stop while replay blocks.

    At most one batch is read ahead, since samples age while they wait. The transfer to the device needs no thread: it
    is asynchronous, like the steps before it.
    """

    def __init__(self, reader: ReplayReader) -> None:
        self._reader = reader
        self._iterator = iter(reader)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="learner-prefetch")

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the reader, which ends a blocked read."""
        self._reader.close()
        wait([self._next], 5.0)
        self._thread.shutdown(wait=False)

    def poll(self, timeout_s: float) -> PackedBatch | None:
        """The next batch, or None if none arrives within `timeout_s`; raises the reader's error."""
        if wait([self._next], timeout_s).not_done:
            return None
        batch = self._next.result()
        if batch is None:
            raise EOFError("the replay reader ended, although a `ReplayReader` is endless until closed")
        # The thread reads the next batch when the loop has taken the last one.
        self._begin()
        return batch

    def _begin(self) -> None:
        self._next: Future[PackedBatch | None] = self._thread.submit(next, self._iterator, None)
