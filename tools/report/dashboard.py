"""Keeps the report of a run up to date, without taking much from the run beside it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import NamedTuple

from podzero.runtime.monitoring.status import is_locked
from podzero.tools.report.page import Live
from podzero.tools.report.record import RunReader
from podzero.tools.report.report import make_report
from podzero.workdir import Workdir

POLL_S = 5.0
"""Seconds after which a page looks for a newer report; reports are not made more often."""
LARGEST_SHARE = 0.1
"""The most of a core that is spent on making reports."""


class Version(NamedTuple):
    """A report, and what tells it from others."""

    name: str
    html: str


class Dashboard:
    """The newest report of a run. All browsers share it."""

    def __init__(self, workdir: Workdir) -> None:
        self._workdir = workdir
        self._reader = RunReader(workdir)
        self._one_at_a_time = asyncio.Lock()
        self._newest: Version | None = None
        self._due = 0.0

    async def newest(self) -> Version:
        """The report of the files as they are, or as they were a short time ago.

        Raises:
          WorkdirError: the run cannot be read.
        """
        async with self._one_at_a_time:
            if self._newest is None or time.monotonic() >= self._due:
                name = fingerprint(self._workdir)
                if self._newest is None or name != self._newest.name:
                    self._newest = await asyncio.to_thread(self._make, name)
            return self._newest

    def _make(self, name: str) -> Version:
        began = time.monotonic()
        html = make_report(self._reader.read(), live=Live(name, POLL_S))
        took = time.monotonic() - began
        self._due = time.monotonic() + max(POLL_S, took / LARGEST_SHARE)
        return Version(name, html)


def fingerprint(workdir: Workdir) -> str:
    """Differs when a file that a report is made of has changed, or when the run began or ended."""
    files = (
        workdir.experiment_file, workdir.metrics_file, workdir.status_file, workdir.log_file, workdir.hardware_file,
        workdir.checkpoints, workdir.games,
    )  # fmt: skip
    states: list[object] = [is_locked(workdir)]
    for file in files:
        try:
            found = file.stat()
            states.append((found.st_ino, found.st_mtime_ns, found.st_size))
        except OSError:
            states.append(None)
    return hashlib.sha256(repr(states).encode()).hexdigest()[:16]
