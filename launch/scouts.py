"""A look at each machine before anything of a run goes there: it must have the same Python, packages and code."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import platform
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import podzero
from podzero.launch.calls import ClusterError, Role, RoleDied
from podzero.launch.leftovers import end_leftovers
from podzero.launch.nodes import Node

log = logging.getLogger(__name__)

PACKAGES = (
    "chex", "dm-haiku", "dm-reverb", "flax", "jax", "jaxlib", "mctx", "numpy", "optax", "orbax-checkpoint", "pgx",
    "pydantic", "ray", "tensorflow-cpu",
)  # fmt: skip
"""Packages whose versions must agree: they compute, or speak to one another."""
LOOK_TIMEOUT_S = 120.0
"""Longest time for a machine to answer: it may have to load its first process from a cold disk."""


class Scout:
    """A process that looks at its machine."""

    def __init__(self, name: str) -> None:
        del name

    def versions(self) -> dict[str, str]:
        """What this machine would run podzero with."""
        return versions()

    def free_port(self) -> int:
        """A port that nobody holds at this moment."""
        with closing(socket.socket()) as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    def clear_chips(self, run: str) -> list[str]:
        """Ends what earlier runs left on this machine's TPU chips; returns what was ended.

        Raises:
          ClusterError: somebody else holds them.
        """
        return end_leftovers(run)


class Scouts:
    """Remembers which nodes are fit to take part.

    Args:
      cluster: starts processes on nodes.
      environment: environment variables of the scouts.
    """

    def __init__(self, cluster: Any, environment: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._environment = environment
        self._verdicts: dict[str, str] = {}

    def fit(self, nodes: Sequence[Node]) -> list[Node]:
        """Those of `nodes` that run what the driver runs; a new one is looked at, and named in the log if refused."""
        new = [node for node in nodes if node.id not in self._verdicts]
        if new:
            scouts = [(node, self.send(node)) for node in new]
            mine = versions()
            for node, scout in scouts:
                self._verdicts[node.id] = verdict = _verdict(scout, mine)
                if verdict:
                    log.warning("%s is refused: %s", node, verdict)
                scout.kill()
        return [node for node in nodes if not self._verdicts[node.id]]

    def refusals(self, nodes: Iterable[Node]) -> list[str]:
        """Why each refused one of `nodes` was refused."""
        return [f"{node}: {self._verdicts[node.id]}" for node in nodes if self._verdicts.get(node.id)]

    def send(self, node: Node) -> Role:
        """Starts a scout on a node."""
        role: Role = self._cluster.spawn(Scout, f"scout on {node}", cpus=0, environment=self._environment, node=node)
        return role


def versions() -> dict[str, str]:
    """Python, the packages that must agree, and a digest of podzero's own code."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "podzero's code": _digest(Path(podzero.__file__).parent),
    }


def differences(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """`jax 0.7.0, the driver has 0.7.1` for each thing that is not the same."""
    return [
        f"{name} {theirs.get(name, 'missing')}, the driver has {version}"
        for name, version in mine.items()
        if theirs.get(name) != version
    ]


def _verdict(scout: Role, mine: Mapping[str, str]) -> str:
    """Why a node cannot take part; empty when it can."""
    try:
        listed = differences(mine, scout.ask("versions", timeout_s=LOOK_TIMEOUT_S))
    except (ClusterError, RoleDied) as failure:
        return f"podzero does not start there ({failure}); install it from the same lock file (`uv sync --locked`)"
    except Exception as failure:  # a process of other versions may fail in any way
        return f"podzero fails there: {failure!r}; install it from the same lock file (`uv sync --locked`)"
    return "; ".join(listed) + "; install the same lock file there (`uv sync --locked`)" if listed else ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _digest(folder: Path) -> str:
    """Of all Python files below a folder, by their names relative to it."""
    digest = hashlib.sha256()
    rooms = [folder, *sorted(path for path in folder.iterdir() if path.is_dir() and path.name.isidentifier())]
    for room in rooms:
        files = room.glob("*.py") if room == folder else room.resolve().rglob("*.py")
        for file in sorted(files):
            inside = file.relative_to(folder if room == folder else room.resolve())
            digest.update(f"{room.relative_to(folder)}/{inside}".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
