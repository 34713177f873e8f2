"""The accelerators of a process of self-play."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from podzero.errors import PodzeroError

if TYPE_CHECKING:
    import jax


class NoAccelerator(PodzeroError, RuntimeError):
    """A process has reserved accelerators that JAX does not find."""


def own_devices(name: str, section: str, resources: Mapping[str, float]) -> list[jax.Device]:
    """All devices of this process.

    Args:
      name: of the process.
      section: of the config that says what it has reserved.
      resources: that it has reserved.

    Raises:
      NoAccelerator: GPUs or TPUs are among them, and JAX found only CPUs.
    """
    import jax

    reserved = [resource for resource in resources if resource in ("GPU", "TPU")]
    if reserved and jax.default_backend() == "cpu":
        raise NoAccelerator(
            f"{name} has reserved a {reserved[0]} ({section}.resources), but JAX found only CPUs: the extra for it is "
            "missing there (`uv sync --inexact --extra cuda` or `--extra tpu`), or another process holds the chips"
        )
    return list(jax.local_devices())
