"""A shard's checkpoint on disk: Reverb's files, a manifest, and the link through which Reverb writes them.

The manifest holds the server's identity, the tables' settings and a digest of every file.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from podzero.files.storage import SHARD_MANIFEST, altered, checkpoint_of, digests, read_saved, sealed, unsealed
from podzero.files.workdir import write_atomically
from podzero.replay.errors import ReplayMismatch, ReplayRestoreError
from podzero.replay.tables import Table, TableSettings

_DATA = "reverb"
_ADVICE = "resume with the version of podzero that wrote it, or train in another working directory"


def seal(folder: Path, written: str, identity: str, tables: Mapping[str, Table]) -> Path:
    """Renames Reverb's files, in the subfolder `written` of `folder`, and adds the manifest; returns `folder`."""
    data = (folder / written).rename(folder / _DATA)
    manifest = {
        "identity": identity,
        "tables": {
            name: {"layout": table.signature.layout, "settings": table.settings._asdict()}
            for name, table in tables.items()
        },
        "files": digests(data),
    }
    write_atomically(folder / SHARD_MANIFEST, sealed(manifest))
    return folder


def unseal(folder: Path, tables: Mapping[str, Table]) -> tuple[Path, str]:
    """Checks a checkpoint; returns the folder for Reverb to restore and the identity of the server that wrote it.

    Raises:
      ReplayRestoreError: the checkpoint is incomplete or damaged.
      ReplayMismatch: the checkpoint has other tables, for example those of another version of podzero.
      StorageError: this machine cannot read the files, which may be intact.
    """
    # Reverb alone would accept bad checkpoints. It refuses a corrupt record, but without a DONE file it restores an
    # empty table, and saved settings replace the experiment's, both silently.
    try:
        text = read_saved(folder / SHARD_MANIFEST, checkpoint_of(folder))
        if text is None:
            raise ReplayRestoreError(f"replay checkpoint {folder}: {SHARD_MANIFEST} is missing")
        manifest = unsealed(text)
        found = {
            name: _SavedTable(table["layout"], TableSettings(**table["settings"]))
            for name, table in manifest["tables"].items()
        }
        identity, files = str(manifest["identity"]), dict(manifest["files"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReplayRestoreError(f"replay checkpoint {folder}: {SHARD_MANIFEST} is damaged ({error})") from None
    if found.keys() != tables.keys():
        raise ReplayMismatch(
            f"replay checkpoint {folder} holds the tables {', '.join(found)}; this experiment needs "
            f"{', '.join(tables)} (reanalyse.share); {_ADVICE}"
        )
    for name, table in tables.items():
        _compare(f"replay checkpoint {folder}, table {name},", found[name], table)
    if (changed := altered(folder / _DATA, files)) is not None:
        raise ReplayRestoreError(f"replay checkpoint {folder}: {_DATA}/{changed} is missing, cut short or altered")
    return folder / _DATA, identity


class _SavedTable(NamedTuple):
    """A table as described in a manifest."""

    layout: str
    settings: TableSettings


def _compare(where: str, found: _SavedTable, table: Table) -> None:
    if found.layout != table.signature.layout:
        raise ReplayMismatch(
            f"{where} holds '{found.layout}'; this experiment needs '{table.signature.layout}'; {_ADVICE}"
        )
    if found.settings != table.settings:
        changed = ", ".join(
            f"{name} {old} (now {new})"
            for name, old, new in zip(TableSettings._fields, found.settings, table.settings, strict=True)
            if old != new
        )
        raise ReplayMismatch(
            f"{where} was written with other settings, which Reverb would restore: {changed}; {_ADVICE}"
        )


log = logging.getLogger(__name__)

_PREFIX = "podzero-replay-"
_LOCK = "lock"


class CheckpointLink:
    """The folder to which Reverb writes checkpoints: a symbolic link in a temporary folder, until `remove`.

    Reverb takes this folder once, when it starts, but each checkpoint is written to another one: the link is changed.
    Nothing is written into the temporary folder itself, which may be in memory.
    """

    def __init__(self) -> None:
        # Processes that were killed have left their temporary folders behind.
        remove_abandoned(Path(tempfile.gettempdir()))
        self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX)
        self._lock = _lock(Path(self._folder.name))
        self._nowhere = Path(self._folder.name) / "nowhere"
        self._nowhere.mkdir()
        self.path = Path(self._folder.name) / "data"
        """The link."""
        self.lead_nowhere()

    def lead_to(self, folder: Path) -> None:
        """Points the link at `folder`."""
        # A rename replaces the link atomically.
        new = self.path.with_name("new")
        new.symlink_to(folder.absolute())
        os.replace(new, self.path)

    def lead_nowhere(self) -> None:
        """Points the link at an empty folder."""
        self.lead_to(self._nowhere)

    def remove(self) -> None:
        """Deletes the link and its folder; may be called twice."""
        self._folder.cleanup()
        self._lock.close()


def remove_abandoned(parent: Path) -> None:
    """Deletes this user's temporary folders below `parent` whose processes are gone."""
    # A lock ends with its process. Process ids would not do: containers that share the folder reuse them.
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the process lives
            shutil.rmtree(lock.parent)
            log.info("deleted %s, the temporary folder of a replay server that was killed", lock.parent)


def _lock(folder: Path) -> IO[bytes]:
    """Locks a new temporary folder until the returned file is closed."""
    new = folder / f"{_LOCK}.new"
    file = new.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    # Renamed only now, so that no other process finds the file before it is locked.
    new.rename(folder / _LOCK)
    return file
