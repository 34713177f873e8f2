"""Guards against other runs: a lock on the working directory, and an end to processes that earlier runs left behind.

Only one process can use the TPU chips of a host. A process that outlived its run (its driver or its Ray node was
killed) keeps the next run from starting until the host is restarted. It is found by the device files it has open.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from podzero.core.errors import ClusterError
from podzero.runtime.cluster.remote import START_TIMEOUT_S, current_node_id
from podzero.runtime.cluster.scheduling import node_affinity

log = logging.getLogger(__name__)

LOCK_NAME = "run"
"""Name of the actor that is the lock."""
RUN_VARIABLE = "PODZERO_RUN"
"""The environment variable with the run's id, set for all of its processes."""
CHIP_FILES = ("accel*", "vfio/[0-9]*")
"""Device files of TPU chips, below /dev."""
END_TIMEOUT_S = 10.0
"""Longest wait for a process to release its chips, first after it is asked to end, then after it is killed."""


class _RunLock:
    """The actor that is the lock. Ray ends it with the driver that started it."""

    def __init__(self, owner: str) -> None:
        self._owner = owner

    def owner(self) -> str:
        """Describes the run that holds the lock."""
        return self._owner


def lock_run(owner: str) -> Any:
    """Locks the namespace of this driver for as long as the returned handle lives.

    Args:
      owner: describes the run to others that find the namespace locked.
    """
    import ray
    from ray.exceptions import ActorAlreadyExistsError, GetTimeoutError, RayError

    try:
        strategy = node_affinity(current_node_id())
        lock = ray.remote(_RunLock).options(name=LOCK_NAME, num_cpus=0, scheduling_strategy=strategy).remote(owner)
        ray.get(lock.owner.remote(), timeout=START_TIMEOUT_S)
    except ActorAlreadyExistsError:
        raise ClusterError(
            f"another run holds the lock of this working directory in the Ray cluster: {_other_owner()}; stop that "
            "run, or choose another --workdir"
        ) from None
    except GetTimeoutError:
        raise ClusterError(
            f"waited {START_TIMEOUT_S:.0f} s for the lock of this working directory in the Ray cluster: its process on "
            "this node did not start; is the node overloaded?"
        ) from None
    except RayError as error:
        raise ClusterError(
            f"the lock of this working directory in the Ray cluster could not be started on this node: {error}"
        ) from error
    return lock


def _other_owner() -> str:
    """The run that holds the lock."""
    import ray
    from ray.exceptions import RayError

    try:
        return str(ray.get(ray.get_actor(LOCK_NAME).owner.remote(), timeout=START_TIMEOUT_S))
    except (ValueError, RayError):
        return "a run that is ending"


def end_stale_processes(run: str, devices: Path = Path("/dev")) -> list[str]:
    """Ends stale processes of podzero that hold this host's chips; returns descriptions of them.

    A process is stale if it belongs to another run and its parent is gone. Any other process that holds a chip gets
    some time to end by itself, since it may already be ending.

    Args:
      run: the id of this run.
      devices: the folder of the device files.
    """
    chips = {str(file.resolve()) for pattern in CHIP_FILES for file in devices.glob(pattern)}
    ended = []
    for process in _holders(chips):
        description = _describe(process)
        if not _is_stale(process, run):
            if _releases(process, chips):
                continue
            raise ClusterError(f"{description} holds the TPU chips of its host; stop it, or wait for it to end")
        _end(process, chips, description)
        log.warning("ended %s, a process of an earlier run that held the TPU chips", description)
        ended.append(description)
    return ended


def _holders(chips: AbstractSet[str]) -> Iterator[psutil.Process]:
    """Other processes that have one of the device files `chips` open."""
    if not chips:
        return
    for process in psutil.process_iter():
        if process.pid != os.getpid() and chips & open_files(process.pid):
            yield process


def open_files(pid: int) -> set[str]:
    """A process's open files, including device files, which psutil omits; none if they cannot be read."""
    found = set()
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(str(link.readlink()))
    return found


def _is_stale(process: psutil.Process, run: str) -> bool:
    """Whether a process belongs to another run of podzero and is an orphan."""
    try:
        its_run = process.environ().get(RUN_VARIABLE)
        return its_run is not None and its_run != run and is_orphan(process)
    except (psutil.Error, OSError):
        return False


def is_orphan(process: psutil.Process) -> bool:
    """Whether a process's original parent is gone: init, or a service manager outside its session, then adopts it."""
    parent = process.parent()
    if parent is None or parent.pid == 1:
        return True
    # The children of a living raylet have sessions of their own.
    return "raylet" not in parent.name() and os.getsid(parent.pid) != os.getsid(process.pid)


def _end(process: psutil.Process, chips: AbstractSet[str], description: str) -> None:
    for end in (process.terminate, process.kill):
        with suppress(psutil.NoSuchProcess):
            end()
        if _releases(process, chips):
            return
    raise ClusterError(f"{description} holds the TPU chips of its host and cannot be ended; restart the host")


def _releases(process: psutil.Process, chips: AbstractSet[str]) -> bool:
    """Whether a process closes the files `chips` in time; a zombie has closed them."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while process.is_running() and chips & open_files(process.pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _describe(process: psutil.Process) -> str:
    """Describes a process and its host."""
    host = f"on {socket.gethostname()}"
    with suppress(psutil.Error):
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(process.create_time()))
        return f"process {process.pid} {host} ({process.name()}, since {since})"
    return f"process {process.pid} {host}"
