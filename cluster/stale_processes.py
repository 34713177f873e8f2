"""Processes that an earlier run left on TPU chips: found by the device files that they hold open, and ended.

One process owns the chips of a host. One that outlived its run (its driver or its Ray node was killed) keeps the next
run from starting, for as long as the machine is up.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

import psutil

from podzero.cluster.remote import ClusterError

log = logging.getLogger(__name__)

RUN_VARIABLE = "PODZERO_RUN"
"""Environment variable of every process of a run: the id of the run."""
CHIP_FILES = ("accel*", "vfio/[0-9]*")
"""Device files of TPU chips, below /dev."""
END_TIMEOUT_S = 10.0
"""How long a process may take to give chips back before it is killed, and after that before it counts as stuck."""


def end_stale_processes(run: str, devices: Path = Path("/dev")) -> list[str]:
    """Ends the processes of other, dead runs of podzero that hold this machine's chips; returns what was ended.

    A process counts as left over when it belongs to another run and whoever started it is gone. Any other one is given
    a while to end by itself: it may be doing so already.

    Args:
      run: the id of the present run.
      devices: where the device files lie.

    Raises:
      ClusterError: chips are held by a process that is none of these, or that cannot be ended.
    """
    chips = {str(file.resolve()) for pattern in CHIP_FILES for file in devices.glob(pattern)}
    ended = []
    for process in _holders(chips):
        words = _words(process)
        if not _is_leftover(process, run):
            if _gives_back(process, chips):
                continue
            raise ClusterError(f"the TPU chips of this machine are held by {words}; stop it, or wait for it to end")
        _end(process, chips, words)
        log.warning("ended %s, which an earlier run had left on the TPU chips", words)
        ended.append(words)
    return ended


def _holders(chips: AbstractSet[str]) -> Iterator[psutil.Process]:
    """The other processes that hold one of the device files `chips` open."""
    if not chips:
        return
    for process in psutil.process_iter():
        if process.pid != os.getpid() and chips & _open_files(process.pid):
            yield process


def _open_files(pid: int) -> set[str]:
    """What a process holds open; nothing if it may not be asked or has ended. Device files too, unlike psutil's."""
    found = set()
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(str(link.readlink()))
    return found


def _is_leftover(process: psutil.Process, run: str) -> bool:
    """Whether it is of another run of podzero, and nobody waits for it any more."""
    try:
        of = process.environ().get(RUN_VARIABLE)
        return of is not None and of != run and _is_orphan(process)
    except (psutil.Error, OSError):
        return False


def _is_orphan(process: psutil.Process) -> bool:
    """Whether the process that started this one is gone. Orphans fall to init, or to a manager outside their session.

    Ray's processes count as started by the raylet, whatever their session.
    """
    parent = process.parent()
    if parent is None or parent.pid == 1:
        return True
    return "raylet" not in parent.name() and os.getsid(parent.pid) != os.getsid(process.pid)


def _end(process: psutil.Process, chips: AbstractSet[str], words: str) -> None:
    for end in (process.terminate, process.kill):
        with suppress(psutil.NoSuchProcess):
            end()
        if _gives_back(process, chips):
            return
    raise ClusterError(f"{words} holds the TPU chips and does not end; restart the machine")


def _gives_back(process: psutil.Process, chips: AbstractSet[str]) -> bool:
    """Whether a process lets go of `chips` in time. One that nobody waits for may stay in the list of processes."""
    until = time.monotonic() + END_TIMEOUT_S
    while process.is_running() and chips & _open_files(process.pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _words(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(process.create_time()))
        return f"process {process.pid} ({process.name()}, since {since})"
    return f"process {process.pid}"
