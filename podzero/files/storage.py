"""The files of a checkpoint, and errors that tell damaged files from unreadable storage."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from podzero.core.errors import TRY_AGAIN, PodzeroError
from podzero.core.reading import parse_json

LEARNER_FOLDER = "learner"
"""The learner's folder in a checkpoint."""
LEARNER_MANIFEST = "manifest.json"
"""The last file that the learner writes into its folder."""
REPLAY_FOLDER = "replay"
"""The folder of the shards in a checkpoint."""
SHARD_MANIFEST = "shard.json"
"""The last file that a replay shard writes into its folder."""
_DIGEST = "sha256"


class StorageError(PodzeroError, RuntimeError):
    """This machine cannot read files that may be intact; the message names the files, the machine and the remedy."""

    exit_code = TRY_AGAIN


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns an `OSError` raised while reading `path` into a `StorageError`, except for a missing file."""
    try:
        yield
    # What is missing is missing on every machine; all other errors may be of this machine.
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> StorageError:
    """The error for a file that may be intact but cannot be read on this machine."""
    return StorageError(
        f"{path} cannot be read on {socket.gethostname()}: {error}. This is not counted as damage: check that the "
        "storage works and that this user may read it there, then give the same command again. If the file is lost, "
        "move its checkpoint elsewhere: the run then resumes from an older one"
    )


def shard_folder(checkpoint: Path, index: int, replay: str = REPLAY_FOLDER) -> Path:
    """The folder of a replay shard in a checkpoint, whose contents of replay are in the folder `replay`."""
    return checkpoint / replay / f"shard-{index}"


def checkpoint_of(shard: Path) -> Path:
    """The checkpoint that contains the folder of a replay shard; the inverse of `shard_folder`."""
    return shard.parents[1]


def read_saved(file: Path, checkpoint: Path) -> str | None:
    """The text of a file of a checkpoint; None if the file is missing.

    Raises:
      StorageError: the file cannot be read, or `checkpoint` does not exist, for example because storage is not mounted.
      ValueError: the file is not text.
    """
    with reading(file):
        try:
            return file.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            if checkpoint.exists():
                return None
    raise StorageError(
        f"{checkpoint} is not found on {socket.gethostname()}: the run's working directory must be on storage that all "
        "nodes share, at the same path; mount it there, then give the same command again"
    )


def sealed(content: Mapping[str, Any]) -> str:
    """The JSON object `content` as text with its own SHA-256, by which `unsealed` detects every change."""
    # In the form in which it will be read: keys are text, tuples are lists.
    plain = json.loads(json.dumps(content))
    return json.dumps(plain | {_DIGEST: _digest(plain)}, indent=1)


def unsealed(text: str) -> dict[str, Any]:
    """The JSON object from which `sealed` made `text`, or a `ValueError` if it was changed since."""
    content = parse_json(text)
    if not isinstance(content, dict) or _DIGEST not in content:
        raise ValueError("it holds no SHA-256 of itself: it was changed, or another version of podzero wrote it")
    if content.pop(_DIGEST) != _digest(content):
        raise ValueError("it was changed after it was written: its SHA-256 differs")
    return content


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 digest of every file below `folder`, in hexadecimal, by the file's path from there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {file.relative_to(folder).as_posix(): digest_of(file) for file in files}


def altered(folder: Path, expected: Mapping[str, str]) -> str | None:
    """The first file below `folder` that is missing or has another digest than in `expected`; None if there is none."""
    for name, digest in expected.items():
        file = folder / name
        with reading(file):
            if not file.is_file() or digest_of(file) != digest:
                return name
    return None


def belongs(manifest: Path, digest: str) -> bool:
    """Whether a part of a checkpoint is the one with this digest of its own manifest; also if either is missing."""
    with reading(manifest):
        return not digest or not manifest.is_file() or digest_of(manifest) == digest


def digest_of(file: Path) -> str:
    """The SHA-256 digest of a file, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
