"""Prepares published parameters in a background thread, while games continue."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from podzero.core.protocols import ParamSource
from podzero.core.types import Params, Versioned

SHARE = 0.05
"""Largest share of time spent on preparations, so that frequent versions do not slow the games down."""


class BackgroundSource:
    """A `ParamSource` that passes another source's parameters through `prepare`, in a thread.

    `poll` returns a version once it is prepared. If a preparation takes t seconds, the next one, of the newest version,
    begins at least t / `share` seconds after it began.

    Args:
      source: provides the published parameters.
      prepare: converts them into the search's parameters; called for one version at a time.
      share: largest share of time spent in `prepare`, in (0, 1].
    """

    def __init__(self, source: ParamSource, prepare: Callable[[Params], Params], share: float = SHARE) -> None:
        self._source = source
        self._prepare = prepare
        self._share = share
        self._next = 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prepare-params")
        self._pending: Future[Versioned] | None = None
        self._awaited: tuple[int, Future[Versioned]] | None = None
        """The version that `wait` waits for, and its preparation."""

    def wait(self, timeout_s: float) -> Versioned:
        """Waits until the newest parameters are published and prepared.

        Raises:
          TimeoutError: that took longer than `timeout_s`; the next call continues to wait for the same preparation.
        """
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        if self._awaited is None:
            newest = self._source.wait(timeout_s)
            self._awaited = newest.version, self._pool.submit(self._prepared, newest)
        step, preparation = self._awaited
        if wait([preparation], timeout_s).not_done:
            raise TimeoutError(f"the parameters of step {step} were not prepared within {timeout_s:g} s")
        self._awaited = None
        return preparation.result()

    def poll(self) -> Versioned | None:
        """Newer parameters if they are prepared, else None; never waits."""
        if self._pending is None:
            newer = self._source.poll() if time.monotonic() >= self._next else None
            self._pending = None if newer is None else self._pool.submit(self._paced, newer)
            return None
        if not self._pending.done():
            return None
        ready, self._pending = self._pending.result(), None
        return ready

    def _paced(self, versioned: Versioned) -> Versioned:
        began = time.monotonic()
        prepared = self._prepared(versioned)
        self._next = began + (time.monotonic() - began) / self._share
        return prepared

    def _prepared(self, versioned: Versioned) -> Versioned:
        return versioned._replace(params=self._prepare(versioned.params))
