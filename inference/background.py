"""Published parameters that are prepared for searches in the background, while the games go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from podzero.protocols import ParamSource
from podzero.types import Params, Versioned

SHARE = 0.05
"""Largest share of the time that preparations take, so that versions that come often do not slow the games down."""


class BackgroundSource:
    """A `ParamSource` whose parameters have gone through `prepare`, in a thread.

    `poll` returns a version once it is prepared, so the version and the parameters that are searched with always belong
    together. Versions that are published during a preparation, and until preparations have taken no more than `share`
    of the time since it began, are skipped, except for the newest.

    Args:
      source: of the published parameters.
      prepare: turns them into those that the search takes; called for one version at a time.
      share: of the time, in (0, 1].
    """

    def __init__(self, source: ParamSource, prepare: Callable[[Params], Params], share: float = SHARE) -> None:
        self._source = source
        self._prepare = prepare
        self._share = share
        self._next = 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prepare-params")
        self._pending: Future[Versioned] | None = None
        self._awaited: tuple[int, Future[Versioned]] | None = None
        """The step of the version that `wait` waits for, and its preparation."""

    def wait(self, timeout_s: float) -> Versioned:
        """The newest parameters; waits until there are any, and until they are prepared.

        Raises:
          TimeoutError: nothing was published within `timeout_s`, or it was not prepared within that time; the next call
            goes on waiting for it.
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
        """Parameters newer than those returned last, if they are prepared, or None; never waits."""
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
