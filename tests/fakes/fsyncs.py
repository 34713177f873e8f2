"""Checks of what is on disk when a folder gets its final name."""

from __future__ import annotations

import os
from pathlib import Path


def check_before_renames(monkeypatch):
    """From now on every folder that is renamed must be synced with all that is below it.

    Returns:
      The set of the inodes that were synced, which grows.
    """
    synced, fsync, rename = set(), os.fsync, Path.rename

    def record(descriptor):
        synced.add(os.stat(descriptor).st_ino)
        fsync(descriptor)

    def check(source, target):
        unsynced = [path for path in (source, *source.rglob("*")) if path.stat().st_ino not in synced]
        assert unsynced == []
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(Path, "rename", check)
    return synced
