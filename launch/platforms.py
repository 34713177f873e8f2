"""Which platforms JAX looks for, decided before JAX is imported."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

_TPU = ("accel*", "vfio")
_GPU = ("nvidia*", "kfd", "dxg")
"""Device files of NVIDIA, AMD, and GPUs in the Windows Subsystem for Linux."""


def choose_platform(devices: Path, environment: MutableMapping[str, str]) -> None:
    """Sets JAX_PLATFORMS=cpu on a machine without TPUs and GPUs, unless the user has set it.

    If libtpu is installed, as it is for `podzero compile`, JAX would otherwise search for TPUs on every machine. libtpu
    would then print errors, and query Google's metadata server, for minutes where that cannot be reached.

    Args:
      devices: the directory of the device files, `/dev`.
      environment: the environment variables to change.
    """
    if any(_found(devices, _TPU)):
        return
    environment.setdefault("TPU_SKIP_MDS_QUERY", "1")
    if not any(_found(devices, _GPU)):
        environment.setdefault("JAX_PLATFORMS", "cpu")


def _found(devices: Path, patterns: tuple[str, ...]) -> list[Path]:
    return [path for pattern in patterns for path in devices.glob(pattern)]
