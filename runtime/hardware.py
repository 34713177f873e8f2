"""Records the machines of a run in its working directory, for its report."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from podzero.runtime.cluster.placement import MEMORY, Node
from podzero.workdir import Workdir, write_atomically

_CPU_INFO = Path("/proc/cpuinfo")
_ACCELERATORS = ("TPU", "GPU")
_ACCELERATOR_TYPE = "ray.io/accelerator-type"
"""The label by which Ray names the kind of a node's accelerators."""


def record_hardware(workdir: Workdir, nodes: Sequence[Node]) -> None:
    """Replaces the hardware file by the nodes of the run.

    Raises:
      OSError: it cannot be written.
    """
    write_atomically(
        workdir.hardware_file, json.dumps({"driver": _driver(), "nodes": [_node(n) for n in nodes]}) + "\n"
    )


def _driver() -> dict[str, str]:
    """The processor and the versions of the driver's node, which all nodes share (preflight check)."""
    return {
        "processor": processor(_CPU_INFO),
        "podzero": version("podzero"),
        "Python": platform.python_version(),
        "JAX": version("jax"),
    }


def processor(cpu_info: Path) -> str:
    """The name of the CPU in a file as `/proc/cpuinfo`; of its architecture if there is none."""
    try:
        lines = cpu_info.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _node(node: Node) -> dict[str, Any]:
    kind = node.labels.get(_ACCELERATOR_TYPE)
    found = {kind or name: node.resources[name] for name in _ACCELERATORS if node.resources.get(name)}
    return {
        "host": node.host,
        "cpus": node.cpus,
        "memory_gib": round(node.resources.get(MEMORY, 0.0) / 2**30, 1),
        "accelerators": {name: int(count) for name, count in found.items()},
    }
