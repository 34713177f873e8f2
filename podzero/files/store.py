"""Where the files of a run are kept: in a folder that all nodes share, or in a bucket.

A run in a bucket works in a folder of each machine, where the path of a file names its object: the copy of
`gs://BUCKET/KEY` is `~/.cache/podzero/run/gs:/BUCKET/KEY`. What a process writes there it puts into the bucket, and
gets from there what others have written. Nothing is renamed in a bucket: the folder `checkpoints/STEP` is what is
below `checkpoints/PARTS`, once the object `checkpoints/STEP@PARTS.complete` is there, which is written last.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, override

from podzero.core.errors import ConfigError
from podzero.core.machine import user_cache
from podzero.files.storage import StorageError

UNFINISHED = ".unfinished-"
"""How the names of folders begin that are not complete yet, or are being deleted."""
COMMITTED = ("checkpoints", "snapshots", "published")
"""The folders whose folders are complete only once they are committed."""
_REPLACED = ".replaced"
_OPTIONS: dict[str, dict[str, Any]] = {
    "gs": {"requests_timeout": 60.0},
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 60}},
}
"""The kinds of buckets, with the time limits of their requests."""
_PLACE = re.compile(rf"(?:.*/)?({'|'.join(_OPTIONS)}):/+([^/].*?)/*", re.DOTALL)
_POINTER = re.compile(r"(?P<target>[^@]+)@(?P<parts>.+)\.complete")


class Store:
    """A folder that all nodes share. A verb that has failed may be repeated."""

    remote = False
    """Whether what this machine has are copies."""

    def put(self, path: Path) -> None:
        """Keeps a file, or all files of a folder, that this process has written."""
        for part in (*path.rglob("*"), path):
            sync(part)

    def get(self, path: Path) -> None:
        """Brings a file or a folder to this machine; if there is none, `path` is missing afterwards."""

    def list(self, folder: Path) -> Sequence[str]:
        """The sorted names of the files and folders in `folder`; empty if it does not exist."""
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def delete(self, path: Path) -> None:
        """Deletes a file or a folder, of which half is never taken for a whole one."""
        with suppress(OSError):  # the next deletion tries again
            if not path.is_dir():
                path.unlink()
            elif not path.name.startswith(UNFINISHED):
                hidden = path.with_name(UNFINISHED + path.name)
                shutil.rmtree(hidden, ignore_errors=True)  # what a deletion of its name before has left
                path = path.rename(hidden)
            shutil.rmtree(path, ignore_errors=True)

    def commit(self, source: Path, target: Path) -> None:
        """Gives the complete folder `source` the name `target`, and deletes what had it: one of them always has it."""
        replaced = target.with_name(target.name + _REPLACED)
        if target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            target.rename(replaced)
        source.rename(target)
        sync(target.parent)
        for old in target.parent.glob(f"*{_REPLACED}"):
            shutil.rmtree(old, ignore_errors=True)

    def read(self, path: Path) -> str:
        """The text of a file; raises `FileNotFoundError` if there is none."""
        return path.read_text(encoding="utf-8")

    def write(self, path: Path, text: str, create: bool = False) -> None:
        """Replaces a file in place; with `create`, where the store sees to it, a `FileExistsError` if there is one."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_EXCL if create else 0), 0o666)
        try:
            os.pwrite(descriptor, text.encode(), 0)
            os.ftruncate(descriptor, len(text.encode()))
        finally:
            os.close(descriptor)

    def changed_ns(self, path: Path) -> int:
        """When a file was written, by the store's clock, in nanoseconds since the epoch."""
        return path.stat().st_mtime_ns


class Bucket(Store):
    """Buckets of one kind. Of a folder, which may be large, `put` deletes the copy on this machine."""

    remote = True

    def __init__(self, scheme: str) -> None:
        # Else gcsfs first asks by gRPC for the kind of each bucket, a minute long where that is not let through.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        import fsspec  # slow, and only needed for buckets

        self._scheme = scheme
        try:
            self._files = fsspec.filesystem(scheme, use_listings_cache=False, **_OPTIONS[scheme])
        except ImportError as missing:
            install = "`uv sync --inexact --extra buckets`, on each node"
            raise ConfigError(f"{scheme}:// needs a library that is not installed: {missing}. Type {install}") from None

    @override
    def put(self, path: Path) -> None:
        kept = self._where(path)
        for file in (file for file in (path, *path.rglob("*")) if file.is_file()):
            self._try(partial(self._files.put_file, str(file)), kept / file.relative_to(path))
        if path.is_dir():
            _forget(path)
            for folder in path.parents:
                if folder.name in COMMITTED:
                    self.list(folder)

    @override
    def get(self, path: Path) -> None:
        parts, target = self._parts_of(path)
        if target is not None:
            _link(target, parts[-1])
        kept = self._where(path)
        files = self._sizes(kept)
        for name, size in files.items():
            self._fetch(kept, name, size)
        if not files:
            _forget(path)

    @override
    def list(self, folder: Path) -> Sequence[str]:
        names = self._names(self._where(folder))
        pointers = [found for found in map(_POINTER.fullmatch, names) if found]
        used = {name for found in pointers for name in (found[0], found["parts"])}
        present = {found["target"] for found in pointers} | {name for name in names if name not in used}
        for copy in folder.iterdir() if folder.is_dir() else ():
            if copy.is_symlink() and copy.name not in present:
                _forget(copy)
        return sorted(present)

    @override
    def delete(self, path: Path) -> None:
        with suppress(StorageError):  # the next deletion tries again
            parts, target = self._parts_of(path)
            if target == path:
                self._delete_parts(path, parts)
            self._remove(self._where(path))
            _forget(path)

    @override
    def commit(self, source: Path, target: Path) -> None:
        (before, folder), (moved, _) = self._parts_of(target), self._parts_of(source)
        if folder not in (None, target):  # which is complete already
            for name in self._sizes(source):
                self._try(partial(self._files.cp_file, _key(source / name)), self._where(target) / name)
            self._remove(source)
            return
        parts = moved[-1] if moved else source.name
        self.write(_pointer(target, parts), "")
        for old in moved:  # only the name of a committed folder has changed
            self._remove(_pointer(source, old))
        with suppress(StorageError):  # the newest is taken, and the next deletion tries again
            self._delete_parts(target, [old for old in before if old != parts])
        if source.is_symlink():
            source.unlink()

    @override
    def read(self, path: Path) -> str:
        return str(self._try(self._files.cat_file, path), "utf-8")

    @override
    def write(self, path: Path, text: str, create: bool = False) -> None:
        mode = "create" if create else "overwrite"
        self._try(lambda key: self._files.pipe_file(key, text.encode(), mode=mode), path)

    @override
    def changed_ns(self, path: Path) -> int:
        return int(1e9 * self._try(self._files.modified, path).timestamp())

    def _parts_of(self, path: Path) -> tuple[Sequence[str], Path | None]:
        """The folders of which the committed folder with `path` was made, newest last, and that folder.

        These are `PARTS` and `STEP` of the module's description; no folders and None where nothing was committed.
        """
        target = next((one for one in (path, *path.parents) if one.parent.name in COMMITTED), None)
        if target is None or target.name.startswith(UNFINISHED):
            return [], None
        pointers = filter(None, map(_POINTER.fullmatch, self._names(target.parent)))
        parts = sorted(found["parts"] for found in pointers if found["target"] == target.name)
        return parts, target if parts else None

    def _where(self, path: Path) -> Path:
        """The path itself, or in the place of the committed folder with it the one of which that was made."""
        parts, target = self._parts_of(path)
        return path if target is None else target.with_name(parts[-1]) / path.relative_to(target)

    def _delete_parts(self, target: Path, several: Sequence[str]) -> None:
        for parts in several:
            self._remove(_pointer(target, parts))
            self._remove(target.with_name(parts))
            shutil.rmtree(target.with_name(parts), ignore_errors=True)

    def _fetch(self, folder: Path, name: str, size: int) -> None:
        """Reads an object into the file `name` of `folder`, unless that has its size and, if alone, its time."""
        file = folder / name
        if ".." in file.parts or name.startswith("/"):  # an object may have any name
            raise StorageError(f"{self._scheme}://{_key(folder)}/{name} is not read: its name leads out of {folder}")
        with suppress(FileNotFoundError):  # its digest, if it has one, tells that it is missing
            changed, found = None if name else self.changed_ns(file), file.stat() if file.is_file() else None
            if found and found.st_size == size and changed in (None, found.st_mtime_ns):
                return
            copy = _unnamed(file)
            self._try(partial(self._files.get_file, lpath=str(copy)), file)
            if changed is not None:
                os.utime(copy, ns=(changed, changed))
            os.replace(copy, file)

    def _names(self, folder: Path) -> Sequence[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            found = self._try(partial(self._files.ls, detail=False, refresh=True), folder)
            # Some stores have an object for the folder itself.
            return [entry.rstrip("/").rpartition("/")[2] for entry in found if entry.strip("/") != _key(folder)]
        return []

    def _sizes(self, path: Path) -> dict[str, int]:
        """The sizes in bytes of all objects at or below a path, by their paths from there."""
        with suppress(FileNotFoundError):
            found = self._try(partial(self._files.find, detail=True, refresh=True), path)
            return {name.removeprefix(_key(path)).strip("/"): info["size"] for name, info in found.items()}
        return {}

    def _remove(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            self._try(partial(self._files.rm, recursive=True), path)

    def _try(self, request: Callable[[str], Any], path: Path) -> Any:
        """Makes a request for an object, which the libraries repeat a few times; a `StorageError` if it fails."""
        try:
            return request(_key(path))
        except (FileNotFoundError, FileExistsError, NotADirectoryError):
            raise
        except Exception as error:  # the libraries also raise what their transports raise
            raise StorageError(
                f"{self._scheme}://{_key(path)} cannot be used from {socket.gethostname()}: {type(error).__name__}: "
                f"{error}. Are the credentials of this machine valid, and may they read and write there (`gcloud auth "
                "application-default login`, or those of AWS)?"
            ) from error


_FOLDER = Store()
_bucket = cache(Bucket)


def store_of(path: Path) -> Store:
    """The store that keeps a file or a folder of a run."""
    found = _PLACE.fullmatch(str(path))
    return _bucket(found[1]) if found else _FOLDER


def copy_of(address: str | Path, folder: str) -> Path | None:
    """Where this machine keeps its copy, in the folder `run` or `read` of the user's cache; None if it is no address.

    The processes of a run write in `run`, all others in `read`. The path of a copy is an address too.
    """
    found = _PLACE.fullmatch(str(address))
    return user_cache() / folder / f"{found[1]}:" / found[2] if found else None


def _key(path: Path) -> str:
    """BUCKET/KEY of the object that a path names."""
    found = _PLACE.fullmatch(str(path))
    assert found is not None
    return found[2]


def _pointer(target: Path, parts: str) -> Path:
    return target.with_name(f"{target.name}@{parts}.complete")


def _unnamed(path: Path) -> Path:
    """A new path beside another one, for what replaces it; makes their folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")


def _link(target: Path, parts: str) -> None:
    """Makes the copy of a committed folder lead to that of its parts."""
    if target.is_symlink() and os.readlink(target) == parts:
        return
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    link = _unnamed(target)
    link.symlink_to(parts)
    os.replace(link, target)


def _forget(path: Path) -> None:
    """Deletes the copy of a file or a folder."""
    if path.is_symlink():
        shutil.rmtree(path.with_name(os.readlink(path)), ignore_errors=True)
    with suppress(OSError):
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def sync(path: Path) -> None:
    """Waits until a file's contents, or a folder's entries, are on disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems have no fsync for folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
