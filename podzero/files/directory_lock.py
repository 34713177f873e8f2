"""The lock of a directory, which one live process holds at a time, also where other machines do not see `flock`.

A file names the process and its machine, with a count that grows every `BEAT_S` while the process lives. On storage
whose `flock` other machines do not see (NFS mounted with `nolock`), a holder lives if its count grows while one looks,
whatever the clocks of the machines say. In a bucket each holder has an object of its own, `.lock@NUMBER`: of two
processes only one can create that of the next number, and it holds the lock.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from podzero.core.errors import PodzeroError
from podzero.core.waiting import Wait
from podzero.files.storage import StorageError
from podzero.files.store import store_of

log = logging.getLogger(__name__)

BEAT_S = 2.0
"""Time between two counts."""
GONE_AFTER_S = 10.0
"""A process whose count does not grow for this long is gone."""
_FORGOTTEN_S = 3600.0
"""A file of this age needs no look: no machine's clock is that wrong."""
_ATTEMPTS, _PAUSE_S = 6, 0.1
"""How often a locked file is tried, and the pause before the next attempt."""


class LockHolder(NamedTuple):
    """The process that holds a lock."""

    pid: int | None
    """None if it has not been written yet."""
    host: str
    """The name of its machine, or of its container."""

    def __str__(self) -> str:
        return f"process {'unknown' if self.pid is None else self.pid} on {self.host or 'an unknown machine'}"


class Held(Exception):
    """Another live process holds the lock."""

    def __init__(self, holder: LockHolder) -> None:
        super().__init__(holder)
        self.holder = holder


class TakenOver(PodzeroError, RuntimeError):
    """Another process has taken the lock over while this one stood still."""


class DirectoryLock(AbstractContextManager["DirectoryLock"]):
    """A lock that this process holds until `close`, or until it ends in any way; makes its file if that is missing.

    Raises:
      Held: another live process holds it.
      OSError: the file cannot be written or locked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._holder = LockHolder(os.getpid(), socket.gethostname())
        self._taken_by: LockHolder | None = None
        self._count = 0
        self._closed = threading.Event()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock_exclusively(self._descriptor, path)
            if (other := _living(path)) is not None:
                raise Held(other)
            self._own = self._take(path)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._thread = threading.Thread(target=self._beat, name="directory-lock", daemon=True)
        self._thread.start()

    def check(self, look: bool = False) -> None:
        """Raises `TakenOver` if another process has written its name into the file since; `look` reads it now."""
        # This process stood still, and its thread may come later. A bucket is not asked: it may not answer.
        if look or (time.monotonic() - self._beat_at > GONE_AFTER_S and not store_of(self._path).remote):
            self._look()
        if self._taken_by is not None:
            raise TakenOver(
                f"{self._taken_by} works in {self._path.parent} since this process stood still for more than "
                f"{GONE_AFTER_S:g} s; this one ends without writing anything"
            )

    def close(self) -> None:
        """Gives the lock back; may be called twice."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join(BEAT_S)
        with suppress(OSError, StorageError):
            if self._taken_by is None:
                store_of(self._own).write(self._own, "")
        os.close(self._descriptor)

    def __exit__(self, *error: object) -> None:
        self.close()

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_S):
            with suppress(OSError, StorageError):  # a full disk, or storage that is gone for a moment
                self._look()
                if self._taken_by is not None:
                    return
                store_of(self._own).write(self._own, self._next())

    def _look(self) -> None:
        holder, _ = _read(self._path)
        if holder not in (None, self._holder):
            self._taken_by = holder

    def _take(self, path: Path) -> Path:
        """Writes this process's name; returns the file or object with it."""
        store, text, before = store_of(path), self._next(), _record_file(path)
        if not store.remote:
            store.write(path, "")
            store.write(path, text)
            return path
        number = 1 + int(before.name.partition("@")[2] or 0)
        own = path.with_name(f"{path.name}@{number:06d}")
        try:
            store.write(own, text, create=True)
        except FileExistsError:
            if store.read(own) != text:  # else this process has created it, but the answer was lost
                raise Held(_named(path)) from None
        if before != path:
            store.delete(before)
        return own

    def _next(self) -> str:
        self._count, self._beat_at = self._count + 1, time.monotonic()
        return f"{self._holder.pid} {self._holder.host} {self._count:012d}"


def holder_of(path: Path) -> LockHolder | None:
    """The live process that holds the lock of the file `path`; None if there is none. Takes up to `GONE_AFTER_S`."""
    if store_of(path).remote:
        return _living(path)
    try:
        with path.open("rb") as file:
            # Shared, so that two readers do not take each other for the holder.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _named(path)
    except OSError:
        return None
    return _living(path)


def _record_file(path: Path) -> Path:
    """The file, or the newest object, with the name of the holder."""
    names = store_of(path).list(path.parent) if store_of(path).remote else ()
    return path.with_name(max((name for name in names if name.startswith(f"{path.name}@")), default=path.name))


def _read(path: Path) -> tuple[LockHolder | None, str]:
    """The holder that the file names, and its count, which files of older versions lack; None and "" if no process
    holds the lock, or its name is just being written.
    """
    with suppress(OSError, ValueError):
        match store_of(path).read(_record_file(path)).split(" "):
            case [pid, host, *beat] if pid.isdigit():
                return LockHolder(int(pid), host), "".join(beat)
    return None, ""


def _named(path: Path) -> LockHolder:
    return _read(path)[0] or LockHolder(None, "")


def _living(path: Path) -> LockHolder | None:
    """The process that the file names, if it lives although it holds no lock that this machine sees."""
    holder, count = found = _read(path)
    if holder is None or not count:
        return None
    try:
        # A process that holds no lock on this machine is gone for certain if it was here, or of long ago.
        is_gone = holder.host == socket.gethostname() and not psutil.pid_exists(holder.pid or 0)
        if is_gone or time.time() - store_of(path).changed_ns(_record_file(path)) / 1e9 > _FORGOTTEN_S:
            return None
    except OSError:
        return None
    wait = Wait(first_s=2 * BEAT_S, limit_s=GONE_AFTER_S)
    while not wait.over:
        time.sleep(BEAT_S / 4)
        if (now := _read(path)) != found:
            return now[0]
        if wait.message_due():
            log.warning("waiting up to %g s for a sign of %s in %s", GONE_AFTER_S, holder, path.parent)
    return None


def _lock_exclusively(descriptor: int, path: Path) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            # The kernel ends this lock with its process, however that ends; the existence of a file would outlive it.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            # A reader that asks for the holder has a lock of its own for a moment.
            if attempt == _ATTEMPTS:
                raise Held(_named(path)) from None
            time.sleep(_PAUSE_S)
