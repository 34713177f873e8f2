"""Published parameters, converted for those who evaluate them: at once, or in a thread while games continue."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from podzero.core.protocols import ParamSource
from podzero.core.types import Params, Versioned
from podzero.core.waiting import behind


class FoldedSource:
    """A `ParamSource` that passes another source's parameters through `fold`, which converts them for the search."""

    def __init__(self, source: ParamSource, fold: Callable[[Params], Params]) -> None:
        self._source, self._fold = source, fold

    def wait(self, timeout_s: float) -> Versioned:
        """See `ParamSource.wait`."""
        return self._folded(self._source.wait(timeout_s))

    def poll(self) -> Versioned | None:
        """See `ParamSource.poll`."""
        newer = self._source.poll()
        return None if newer is None else self._folded(newer)

    @property
    def publications(self) -> tuple[int, int]:
        """See `ParamSource.publications`."""
        return self._source.publications

    def _folded(self, versioned: Versioned) -> Versioned:
        return versioned._replace(params=self._fold(versioned.params))


SHARE = 0.05
"""Largest share of time spent on preparations, so that frequent versions do not slow the games down."""
LONGEST_PAUSE_S = 600.0
"""Longest time between two of them: parameters do not grow old because the machine stood still during one."""


class BackgroundSource:
    """A `ParamSource` that passes another source's parameters through `prepare`, in a thread.

    `poll` returns a version once it is prepared. If a preparation takes t seconds, the next one, of the newest version,
    begins t / `SHARE` seconds after it began, at most `LONGEST_PAUSE_S`, or once the version returned last is half of
    `max_lag` publications behind. `prepare` is called for one version at a time.
    """

    def __init__(self, source: ParamSource, prepare: Callable[[Params], Params], max_lag: int | None = None) -> None:
        self._source, self._prepare = source, prepare
        self._max_lag = math.inf if max_lag is None else max_lag
        self._next = 0.0
        self._newer: Versioned | None = None
        """The newest version, before its preparation."""
        self._preparing = self._returned = 0
        """The numbers of the publications that are prepared and that was returned last."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prepare-params")
        self._pending: Future[Versioned] | None = None
        self._awaited: tuple[int, Future[Versioned]] | None = None
        """The version that `wait` waits for, and its preparation."""

    def wait(self, timeout_s: float) -> Versioned:
        """Waits until the newest parameters are prepared; after a `TimeoutError` the next call waits on for them."""
        if self._pending is not None:
            # Whoever waits gets the newest parameters, not those that a poll has begun to prepare.
            self._pending.cancel()
            self._pending = None
        if self._awaited is None:
            newest = self._source.wait(timeout_s)
            self._preparing, self._newer = self._source.publications[0], None
            self._awaited = newest.version, self._pool.submit(self._prepared, newest)
        step, preparation = self._awaited
        if wait([preparation], timeout_s).not_done:
            raise TimeoutError(f"the parameters of step {step} were not prepared within {timeout_s:g} s")
        self._awaited = None
        self._returned = self._preparing
        return preparation.result()

    def poll(self) -> Versioned | None:
        """Newer parameters if they are prepared, else None; never waits."""
        due = time.monotonic() >= self._next or 2 * behind(self) >= self._max_lag
        # With a bound at all times, so that it knows how many publications it is behind.
        if self._max_lag < math.inf or (due and self._pending is None):
            self._newer = self._source.poll() or self._newer
        if self._pending is None:
            if due and self._newer is not None:
                self._preparing = self._source.publications[0]
                self._pending, self._newer = self._pool.submit(self._paced, self._newer), None
            return None
        if not self._pending.done():
            return None
        ready, self._pending, self._returned = self._pending.result(), None, self._preparing
        return ready

    @property
    def publications(self) -> tuple[int, int]:
        """See `ParamSource.publications`."""
        return self._returned, self._source.publications[1]

    def _paced(self, versioned: Versioned) -> Versioned:
        began = time.monotonic()
        prepared = self._prepared(versioned)
        self._next = began + min((time.monotonic() - began) / SHARE, LONGEST_PAUSE_S)
        return prepared

    def _prepared(self, versioned: Versioned) -> Versioned:
        return versioned._replace(params=self._prepare(versioned.params))
