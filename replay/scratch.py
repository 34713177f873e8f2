"""The folder into which a replay server writes before a checkpoint is moved to its place."""

from __future__ import annotations

import fcntl
import logging
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)

_PREFIX = "podzero-replay-"
_LOCK = "lock"


class ScratchFolder:
    """A folder for temporary files, which exists until `remove`; it is made beside those of other processes.

    A process that is killed leaves its folder behind. Each one therefore holds a lock on a file in its folder, which
    ends with it, and deletes the folders whose locks nobody holds. Process ids would not do: containers may share the
    folder and number their processes anew.
    """

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX)
        self._lock = _lock(Path(self._folder.name))
        self.path = Path(self._folder.name) / "data"
        """Where to write; empty at first."""
        self.path.mkdir()

    def remove(self) -> None:
        """Deletes the folder; may be called twice."""
        self._folder.cleanup()
        self._lock.close()


def remove_abandoned(parent: Path) -> None:
    """Deletes the scratch folders below `parent` of processes that are gone; those of other users stay."""
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
            shutil.rmtree(lock.parent)
            log.info("deleted %s, the scratch folder of a replay server that was killed", lock.parent)


def _lock(folder: Path) -> IO[bytes]:
    """Locks a new scratch folder; ends with the returned file."""
    new = folder / f"{_LOCK}.new"
    file = new.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    new.rename(folder / _LOCK)  # so that no other process finds it before it is locked
    return file
