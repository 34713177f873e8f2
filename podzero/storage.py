"""The files of a checkpoint, and the errors that say whether one is damaged or this machine cannot read it now."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from podzero.errors import PodzeroError

LEARNER_FOLDER = "learner"
"""The folder of the learner's files in the folder of a checkpoint."""
LEARNER_MANIFEST = "manifest.json"
"""The file that the learner writes last into its folder."""
SHARD_MANIFEST = "shard.json"
"""The file that a replay shard writes last into its folder."""


class StorageError(PodzeroError, RuntimeError):
    """This machine cannot read files that may be whole; the message names them, the machine, and what to do."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns an `OSError` of the block into `StorageError`, but for a missing file, which is the block's to judge.

    Args:
      path: that the block reads.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> StorageError:
    """The error for a file that may be whole and cannot be read here."""
    return StorageError(
        f"{path} cannot be read on {socket.gethostname()}: {error}. This is not counted as damage: check that the "
        "storage works and that this user may read it there, then give the same command again. If the file is lost, "
        "move its checkpoint elsewhere: the run then resumes from an older one"
    )


def read_saved(folder: Path, name: str) -> str | None:
    """The text of the file `name` of a checkpoint, in `folder`; None if the file is missing.

    Raises:
      StorageError: it cannot be read, or not even the folder above `folder` is there, as where storage is not mounted.
      ValueError: it is no text.
    """
    with reading(folder / name):
        try:
            return (folder / name).read_text()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            if folder.parent.exists():
                return None
    raise StorageError(
        f"{folder} is not found on {socket.gethostname()}, nor is the folder above it: the run's working directory "
        "must be on storage that all nodes share, at the same path; mount it there, then give the same command again"
    )
