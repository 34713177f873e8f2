"""Settings of JAX that must be made before it is imported: its platforms, and the cache of compiled programs."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import MutableMapping
from pathlib import Path

_TPU = ("accel*", "vfio")
_GPU = ("nvidia*", "kfd", "dxg")
"""Device files of NVIDIA, AMD, and GPUs in the Windows Subsystem for Linux."""
_CACHE_BYTES = 2**30
"""The size of the cache, from which the least recently used programs are deleted."""


def choose_platform(devices: Path, environment: MutableMapping[str, str]) -> None:
    """Sets JAX_PLATFORMS=cpu on a machine without TPUs and GPUs, unless the user has set it.

    `podzero compile` needs libtpu. Where libtpu is installed, JAX would search for TPUs on every machine: libtpu would
    print errors and query Google's metadata server, for minutes if that cannot be reached.

    Args:
      devices: the directory of the device files, `/dev`.
      environment: the environment variables to change.
    """
    if any(_found(devices, _TPU)):
        return
    environment.setdefault("TPU_SKIP_MDS_QUERY", "1")
    if not any(_found(devices, _GPU)):
        environment.setdefault("JAX_PLATFORMS", "cpu")


def keep_compiled_programs(
    environment: MutableMapping[str, str] = os.environ, cpus: Path = Path("/proc/cpuinfo")
) -> None:
    """Lets JAX keep compiled programs in the user's cache between commands, unless the user has set a place.

    Args:
      environment: the environment variables to change.
      cpus: the file that describes the CPUs of this machine.
    """
    if "JAX_COMPILATION_CACHE_DIR" in environment:
        return
    try:
        flags = re.search(r"^(flags|Features)\s*:.*$", cpus.read_text(), re.MULTILINE)
    except OSError:
        return  # not Linux
    # A program compiled for one kind of CPU may fail on another, and machines may share a home directory.
    kind = hashlib.sha256(flags[0].encode() if flags else b"").hexdigest()[:12]
    cache = Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    environment["JAX_COMPILATION_CACHE_DIR"] = str(cache / "podzero" / "xla" / kind)
    environment.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(_CACHE_BYTES))
    environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


def _found(devices: Path, patterns: tuple[str, ...]) -> list[Path]:
    return [path for pattern in patterns for path in devices.glob(pattern)]
