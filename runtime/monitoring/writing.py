"""Writes to the files of a run that may fail for a while: a full disk or unreachable storage must not end training."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

WARN_EVERY_S = 60.0
"""Shortest time between two warnings about failed writes."""
WAITING_BYTES = 4 * 2**20
"""Records of one file that wait in memory. When there are more, the oldest are dropped."""


class WriteAttempts:
    """Makes writes that the caller repeats later if they fail, and warns about failures."""

    def __init__(self) -> None:
        self._warned = -WARN_EVERY_S
        self._failing: set[Path] = set()

    def __call__(self, path: Path, write: Callable[[], object]) -> None:
        """Calls `write`; an `OSError` becomes a warning, at most one in `WARN_EVERY_S` for all files together.

        Args:
          path: what `write` writes, for the warning.
          write: must leave its file usable when it fails.
        """
        try:
            write()
        except OSError as error:
            self._failing.add(path)
            if time.monotonic() - self._warned >= WARN_EVERY_S:
                self._warned = time.monotonic()
                log.warning("cannot write %s, will try again; training goes on: %s", path, error)
        else:
            if path in self._failing:
                self._failing.remove(path)
                log.info("%s can be written again", path)


class AppendFile:
    """A file of records that only grows. Not thread-safe.

    Records wait in memory until `flush` writes them. After a failed flush, the next one first truncates the file to its
    complete records. The file is open only during a flush, so a thousand of them need no file descriptors.

    Args:
      path: the file; it may exist, and then holds complete records.
      header: written first if the file is new.
    """

    def __init__(self, path: Path, header: bytes = b"") -> None:
        self.path = path
        self._header = header
        self._size: int | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0

    def add(self, record: bytes) -> None:
        """Adds a record for the next flush."""
        self._waiting.append(record)
        self._waiting_bytes += len(record)
        while self._waiting_bytes > WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft())

    def flush(self) -> None:
        """Writes all records that wait.

        Raises:
          OSError: they could not be written; they wait for the next flush.
        """
        if not self._waiting:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            if self._size is None:
                self._size = file.tell()
            file.truncate(self._size)
            content = b"".join(self._waiting)
            if self._size == 0:
                content = self._header + content
            file.write(content)
        self._size += len(content)
        self._waiting.clear()
        self._waiting_bytes = 0
