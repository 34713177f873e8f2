"""Processes that an earlier run left on TPU chips: found by the device files that they hold open, and ended.

One process owns the chips of a host. One that outlived its run (its driver or its Ray node was killed) keeps the next
run from starting, for as long as the machine is up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from podzero.launch.calls import ClusterError

log = logging.getLogger(__name__)

RUN_VARIABLE = "PODZERO_RUN"
"""Environment variable of every process of a run: the id of the run."""
CHIP_FILES = ("accel*", "vfio/[0-9]*")
"""Device files of TPU chips, below /dev."""
END_TIMEOUT_S = 10.0
"""How long a process may take to end before it is killed, and after that before it counts as stuck."""


def end_leftovers(run: str, devices: Path = Path("/dev")) -> list[str]:
    """Ends the processes of other, dead runs of podzero that hold this machine's chips; returns what was ended.

    A process counts as left over when it belongs to another run and whoever started it is gone.

    Args:
      run: the id of the present run.
      devices: where the device files lie.

    Raises:
      ClusterError: chips are held by a process that is none of these, or that cannot be ended.
    """
    chips = [file for pattern in CHIP_FILES for file in devices.glob(pattern)]
    ended = []
    for process in _holders(chips):
        words = _words(process)
        if not _is_leftover(process, run):
            raise ClusterError(f"the TPU chips of this machine are held by {words}; stop it, or wait for it to end")
        _end(process, words)
        log.warning("ended %s, which an earlier run had left on the TPU chips", words)
        ended.append(words)
    return ended


def _holders(files: Iterable[Path]) -> Iterator[psutil.Process]:
    """The other processes that hold one of `files` open."""
    wanted = {str(file.resolve()) for file in files}
    if not wanted:
        return
    for process in psutil.process_iter():
        if process.pid != psutil.Process().pid and wanted & _open_files(process.pid):
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
        parent = process.parent()
        orphaned = parent is None or parent.pid == 1 or "raylet" not in parent.name()
    except psutil.Error:
        return False
    return of is not None and of != run and orphaned


def _end(process: psutil.Process, words: str) -> None:
    for end in (process.terminate, process.kill):
        with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            end()
            process.wait(END_TIMEOUT_S)
        if not process.is_running():
            return
    raise ClusterError(f"{words} holds the TPU chips and does not end; restart the machine")


def _words(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(process.create_time()))
        return f"process {process.pid} ({process.name()}, since {since})"
    return f"process {process.pid}"
