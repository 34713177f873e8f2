"""Published parameters that are prepared for searches in the background, while the games go on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from podzero.protocols import ParamSource
from podzero.types import Params, Versioned


class BackgroundSource:
    """A `ParamSource` whose parameters have gone through `prepare`, in a thread.

    `poll` returns a version once it is prepared, so the version and the parameters that are searched with always belong
    together. Versions that are published during a preparation are skipped, except for the newest.

    Args:
      source: of the published parameters.
      prepare: turns them into those that the search takes; called for one version at a time.
    """

    def __init__(self, source: ParamSource, prepare: Callable[[Params], Params]) -> None:
        self._source = source
        self._prepare = prepare
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prepare-params")
        self._pending: Future[Versioned] | None = None

    def wait(self, timeout_s: float) -> Versioned:
        """The newest parameters; waits until there are any, and until they are prepared.

        Raises:
          TimeoutError: nothing was published within `timeout_s`, or preparing it took longer than that.
        """
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        newest = self._source.wait(timeout_s)
        try:
            return self._pool.submit(self._prepared, newest).result(timeout_s)
        except TimeoutError:
            message = f"the parameters of step {newest.version} were not prepared within {timeout_s:g} s"
            raise TimeoutError(message) from None

    def poll(self) -> Versioned | None:
        """Parameters newer than those returned last, if they are prepared, or None; never waits."""
        if self._pending is None:
            newer = self._source.poll()
            self._pending = None if newer is None else self._pool.submit(self._prepared, newer)
            return None
        if not self._pending.done():
            return None
        ready, self._pending = self._pending.result(), None
        return ready

    def _prepared(self, versioned: Versioned) -> Versioned:
        return versioned._replace(params=self._prepare(versioned.params))
