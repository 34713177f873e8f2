"""Copies what a run's driver writes, such as status, log and metrics, into the run's bucket, in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from podzero.files.directory_lock import TakenOver
from podzero.files.storage import StorageError
from podzero.files.store import store_of

log = logging.getLogger(__name__)

EVERY_S = 10.0
"""Time between two looks for files that have changed."""
BYTES_PER_S = 2**20
"""Longer files are copied less often, since each is written as a whole."""
LAST_S = 60.0
"""Longest time for the last copy when a run ends."""


class Copies:
    """Copies the files at the top of a folder until `close`, or until `check_held` raises `TakenOver`."""

    def __init__(self, root: Path, check_held: Callable[[], None]) -> None:
        self._root = root
        self._check_held = check_held
        self._copied: dict[str, tuple[int, float]] = {}
        """When the version of a file that was copied last was written (ns), and when it was copied (monotonic)."""
        self._failing = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copies all that has changed a last time; waits at most `LAST_S`."""
        self._closed.set()
        self._thread.join(LAST_S)
        if self._thread.is_alive():
            log.error("the bucket did not take the last status, log and metrics, which are in %s", self._root)

    def _run(self) -> None:
        with suppress(TakenOver):
            while not self._closed.wait(EVERY_S):
                self._copy(BYTES_PER_S)
            self._copy(float("inf"))

    def _copy(self, bytes_per_s: float) -> None:
        self._check_held()
        try:
            for file in sorted(self._root.iterdir()):
                if file.name.startswith(".") or not file.is_file():
                    continue
                found, (version, at) = file.stat(), self._copied.get(file.name, (0, float("-inf")))
                if version != found.st_mtime_ns and time.monotonic() - at >= found.st_size / bytes_per_s:
                    store_of(file).put(file)
                    self._copied[file.name] = (found.st_mtime_ns, time.monotonic())
        except FileNotFoundError:  # a file is just being replaced
            return
        except (OSError, StorageError) as error:
            if not self._failing:
                log.warning("the bucket has no new status, log and metrics; training continues: %s", error)
            self._failing = True
        else:
            self._failing = False
