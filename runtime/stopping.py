"""What ends a run from outside: signals, requests of another process, and notices of the end of a node.

The notices come from Google Cloud's metadata server. `instance/preempted` becomes TRUE about half a minute before a
spot node is shut down; `instance/maintenance-event` announces maintenance of the host
(https://cloud.google.com/compute/docs/metadata). The server holds each request until the value changes, so one request
a minute is enough to learn of a change at once. On GKE a file changes instead (`notice` in launch/targets/run.sh).
"""

from __future__ import annotations

import logging
import math
import os
import shlex
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import FrameType
from typing import Self
from urllib.parse import urlencode

from podzero.core.errors import PodzeroError
from podzero.core.waiting import Wait
from podzero.files.directory_lock import LockHolder
from podzero.files.workdir import Workdir, WorkdirError
from podzero.runtime.monitoring.status import PHASE_WORDS, read_status

log = logging.getLogger(__name__)

REPEATED_AFTER_S = 1.0
"""Time after which another Ctrl-C counts as a second one; earlier ones may be copies that a parent passed on."""
HOST_VARIABLE = "GCE_METADATA_HOST"
"""Environment variable with the address of the metadata server, `host` or `host:port`, as in Google's libraries."""
ANNOUNCEMENTS = {
    "instance/preempted": {"TRUE": "this node is about to be preempted"},
    "instance/maintenance-event": {
        "TERMINATE_ON_HOST_MAINTENANCE": "this node is about to be stopped for maintenance of its host",
    },
}
"""Metadata keys, with the values that announce the end of the node. A live migration (MIGRATE_...) is not one."""
HOLD_S = 60
"""Longest time that the server holds a request while the value stays the same."""
ANSWER_TIMEOUT_S = HOLD_S + 15.0
"""Longest time until the server answers."""
PAUSE_S = 1.0
"""Shortest pause between two requests, in case the server does not hold them."""
LONGEST_PAUSE_S = 30.0
"""Pauses double up to this value while the server fails."""
MOST_BYTES = 4096
"""Most bytes of an answer that are read."""
NOT_FOUND = 404
NOTICE_FILE = Path("/tmp/podzero.notice")
"""A file whose change announces the end of this container."""
GOOGLE = Path("/sys/class/dmi/id/product_name")
"""The maker of the machine; on Google Cloud it begins with its name."""
POLL_S = 0.2
"""How often a wait looks: for a request to stop, or for the end of a run."""


class StopRequest:
    """Whether a run must end, as a `threading.Event` without its lock, which a signal handler must not wait for.

    The handler may interrupt the thread that holds the lock: another call of itself, for instance.
    """

    def __init__(self) -> None:
        self.made = False
        self.due_at = math.inf
        """Monotonic time from which on the run must end without a request: its hours are over."""

    def set(self) -> None:
        """Makes the request."""
        self.made = True

    def is_set(self) -> bool:
        """Whether it was made, or the run must end without it."""
        return self.made or time.monotonic() >= self.due_at

    def wait(self, timeout_s: float) -> bool:
        """Waits until it is made, at most `timeout_s` seconds; returns whether it was."""
        until = time.monotonic() + timeout_s
        while not self.is_set() and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left_s))
        return self.is_set()


class StopSignals:
    """A context manager that handles SIGINT, SIGTERM and SIGHUP (sent when the terminal closes).

    The first signal sets `event`; a second SIGINT interrupts. SIGHUP stays ignored if it was, for example by `nohup`.
    """

    def __init__(self, event: StopRequest | None = None) -> None:
        self.event = event or StopRequest()
        self.number = 0
        """The number of the first signal received; 0 if none was."""
        self._interrupts = False
        self._received_at = 0.0

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        if self._before[signal.SIGHUP] is signal.SIG_IGN:
            del self._before[signal.SIGHUP]
        for number in self._before:
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        # SIGINT last: if its handler interrupts, the others are back.
        for number, handler in reversed(self._before.items()):
            signal.signal(number, handler)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """In this context a signal raises KeyboardInterrupt: for steps that can be interrupted anywhere."""
        self._interrupts = True
        try:
            if self.event.is_set():
                raise KeyboardInterrupt
            yield
        finally:
            self._interrupts = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Records the signal: whatever takes a lock, logs or waits would wait for what it has interrupted."""
        first, now = not self.event.made, time.monotonic()
        second = not first and number == signal.SIGINT and now - self._received_at >= REPEATED_AFTER_S
        if first:
            self.number = number
        if first or second:
            self._received_at = now
        self.event.set()
        if second or (first and self._interrupts):
            raise KeyboardInterrupt


class NotStopped(PodzeroError, RuntimeError):
    """A run that cannot be asked to end from here, or that has not ended in time."""


def stop_run(workdir: Workdir, limit_s: float, say: Callable[[str], None]) -> bool:
    """Ends the run in `workdir` with a last checkpoint, as the first Ctrl-C does, and waits until it has ended.

    Waits at most `limit_s`; afterwards the run still goes on ending. Calls `say` with what the run is doing, whenever
    that changes. Returns whether a process trained there; `NotStopped` says why its driver has not ended.
    """
    holder = workdir.holder()
    if holder is None:
        return False
    _ask_to_end(workdir, holder)
    wait, said = Wait(limit_s=limit_s), ""
    while workdir.holder() == holder:
        doing = _doing(workdir)
        if wait.over:
            root = shlex.quote(str(workdir.root))
            raise NotStopped(
                f"{holder} has been asked to end, but has not ended within {limit_s:.0f} s; it was last {doing}. "
                f"`podzero logs {root}` shows what it waits for, and `podzero stop {root}` waits on. Without a last "
                f"checkpoint it ends by: kill -9 {holder.pid}"
            )
        if doing != said:
            say(f"waiting for {holder}: {doing}")
            said = doing
        time.sleep(POLL_S)
    return True


def _ask_to_end(workdir: Workdir, holder: LockHolder) -> None:
    """Sends SIGTERM, which may be repeated; a second SIGINT would end the run without a checkpoint."""
    here = socket.gethostname()
    if holder.pid is None or holder.host != here:
        why = f"and only a process of this machine ({here}) can be asked to end. Type there, or in that container"
    else:
        try:
            os.kill(holder.pid, signal.SIGTERM)
            return
        except ProcessLookupError:
            why = "which is not among the processes seen from here: it may run in a container. Type there"
        except PermissionError:
            why = "which belongs to another user. Type as that user"
    again = f"podzero stop {shlex.quote(str(workdir.root))}"
    raise NotStopped(f"the run in {workdir.root} is driven by {holder}, {why}: {again}")


def _doing(workdir: Workdir) -> str:
    """The run's phase in words."""
    try:
        return PHASE_WORDS[read_status(workdir).status.phase]
    except WorkdirError:
        return PHASE_WORDS["starting"]


def metadata_host(product: Path = GOOGLE) -> str | None:
    """The address of the metadata server on machines of Google Cloud, or `GCE_METADATA_HOST`; None elsewhere."""
    with suppress(OSError):
        if product.read_text(encoding="utf-8").startswith("Google"):
            return os.environ.get(HOST_VARIABLE, "metadata.google.internal")
    return os.environ.get(HOST_VARIABLE)


def watch_for_notices(give: Callable[[str], None]) -> list[threading.Thread]:
    """Calls `give`, in other threads, with a message whenever the end of this node is announced; returns the threads.

    Errors of the metadata server are ignored; without one, only `NOTICE_FILE` is watched.
    """
    host = metadata_host()
    watches = [partial(watch_file, NOTICE_FILE, give)]
    watches += [partial(watch_key, host, key, give) for key in ANNOUNCEMENTS] if host else []
    watchers = [threading.Thread(target=watch, name="notices", daemon=True) for watch in watches]
    for watcher in watchers:
        watcher.start()
    return watchers


def watch_file(file: Path, give: Callable[[str], None]) -> None:
    """Calls `give` whenever a file appears or is touched, until the process ends."""
    known: int | None = -1  # nothing yet
    while True:
        found = file.stat().st_mtime_ns if file.exists() else None
        if known not in (-1, found):
            give("this container is about to end")
        known = found
        time.sleep(PAUSE_S)


def watch_key(host: str, key: str, give: Callable[[str], None]) -> None:
    """Watches one key until the process ends, or until the server answers that it does not know it, as on GKE."""
    state, value, pause = "0", "", PAUSE_S  # not the state of any value, so the server answers at once
    while True:
        try:
            answer = ask_metadata(host, key, state)
        except (OSError, HTTPException, ValueError):
            pause = min(2 * pause, LONGEST_PAUSE_S)
        else:
            if answer is None:
                log.info("the metadata server does not know %s; such an end of this node will not be announced", key)
                return
            before, (value, state), pause = value, answer, PAUSE_S
            if value != before and value in ANNOUNCEMENTS[key]:
                give(ANNOUNCEMENTS[key][value])
        time.sleep(pause)


def ask_metadata(host: str, key: str, state: str) -> tuple[str, str] | None:
    """The value of a key and its state once the state has changed, or after `HOLD_S`; None for an unknown key."""
    query = urlencode({"wait_for_change": "true", "last_etag": state, "timeout_sec": HOLD_S})
    with closing(HTTPConnection(host, timeout=ANSWER_TIMEOUT_S)) as connection:
        connection.request("GET", f"/computeMetadata/v1/{key}?{query}", headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        if answer.status == NOT_FOUND:
            return None
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        return answer.read(MOST_BYTES).decode("ascii").strip(), answer.headers.get("ETag", "0")
