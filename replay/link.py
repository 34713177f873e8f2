"""The name under which a replay server writes its checkpoints, and which leads each of them to its place."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)

_PREFIX = "podzero-replay-"
_LOCK = "lock"


class CheckpointLink:
    """A symbolic link in a temporary folder, which exists until `remove`.

    Reverb takes the folder of its checkpoints once, when it starts. This name for it leads to an empty folder at first,
    and to another one for each checkpoint: nothing is written into the temporary folder, which may be in memory.

    A process that is killed leaves its folder behind. Each one therefore holds a lock on a file in its folder, which
    ends with it, and deletes the folders whose locks nobody holds. Process ids would not do: containers may share the
    folder and number their processes anew.
    """

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX)
        self._lock = _lock(Path(self._folder.name))
        self._nowhere = Path(self._folder.name) / "nowhere"
        self._nowhere.mkdir()
        self.path = Path(self._folder.name) / "data"
        """The name to write to."""
        self.lead_nowhere()

    def lead_to(self, folder: Path) -> None:
        """Lets the name lead to `folder`."""
        new = self.path.with_name("new")
        new.symlink_to(folder.absolute())
        os.replace(new, self.path)

    def lead_nowhere(self) -> None:
        """Lets the name lead to an empty folder."""
        self.lead_to(self._nowhere)

    def remove(self) -> None:
        """Deletes the name and its folder; may be called twice."""
        self._folder.cleanup()
        self._lock.close()


def remove_abandoned(parent: Path) -> None:
    """Deletes the temporary folders below `parent` of processes that are gone; those of other users stay."""
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
            shutil.rmtree(lock.parent)
            log.info("deleted %s, the temporary folder of a replay server that was killed", lock.parent)


def _lock(folder: Path) -> IO[bytes]:
    """Locks a new temporary folder; ends with the returned file."""
    new = folder / f"{_LOCK}.new"
    file = new.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    new.rename(folder / _LOCK)  # so that no other process finds it before it is locked
    return file
