"""Reads `metrics.jsonl`, also while a run writes it: first all of it, then what has been added."""

from __future__ import annotations

import os
from pathlib import Path

from podzero.tools.report.history import History

CHUNK_BYTES = 4 * 2**20
"""Bytes read at once."""
LONGEST_LINE = 2**20
"""Bytes of a line above which it is damaged: no report is as long."""


class MetricsTail:
    """A file of metrics and what was read of it. Not thread-safe.

    The end of the file may be half a line, which is read once it is complete. A file that was replaced, as on a
    resumption, is read anew.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._restart(None)

    def read(self) -> History:
        """Everything so far; empty if there is no file.

        Raises:
          OSError: the file exists and cannot be read.
        """
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            self._restart(None)
            return self._history
        with file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._restart(found.st_ino)
            file.seek(self._offset)
            while chunk := file.read(min(CHUNK_BYTES, found.st_size - self._offset)):
                self._offset += len(chunk)
                self._add(chunk)
        return self._history

    def _restart(self, inode: int | None) -> None:
        self._inode = inode
        self._offset = 0
        self._rest = b""
        self._history = History()

    def _add(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._history.add_line(line)
        if len(self._rest) > LONGEST_LINE:
            self._rest = b"!"  # whatever follows, the line is damaged
