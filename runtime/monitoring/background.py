"""A thread for reading and writing files, so that storage that is slow or hangs delays nobody else."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from podzero.core.waiting import Wait

log = logging.getLogger(__name__)


class Background:
    """Runs jobs one after the other in a thread; `check` is called before each. An error of theirs ends all work."""

    def __init__(self, check: Callable[[], None]) -> None:
        self.checked_at = -math.inf
        """Monotonic time of the newest check that raised nothing."""
        self._check = check
        self._jobs: dict[str, Callable[[], object]] = {}
        self._busy: Wait | None = None
        """The wait for the current job."""
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        # A daemon: storage that hangs must not keep the process from ending.
        threading.Thread(target=self._run, name="files", daemon=True).start()

    def put(self, key: str, job: Callable[[], object]) -> None:
        """Lets the thread run a job, in place of one with this key that waits; raises the error that ended all work."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._busy is not None and self._busy.message_due():
                log.warning("storage has not answered for %s and the run goes on without writing its files", self._busy)
            self._jobs[key] = job
            self._changed.notify_all()

    def wait(self, limit_s: float) -> bool:
        """Waits until all work has ended; returns whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self._failure is not None or not (self._busy or self._jobs), limit_s)

    def _run(self) -> None:
        while self._failure is None:
            with self._changed:
                self._busy = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._jobs)
                self._busy, job = Wait(), self._jobs.pop(next(iter(self._jobs)))
            try:
                self._check()
                self.checked_at = time.monotonic()
                job()
            except BaseException as failure:
                with self._changed:
                    self._failure = failure
                    self._changed.notify_all()
