"""A look at each machine before anything of a run goes there: it must have the same Python, packages and code."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import platform
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import podzero
from podzero.cluster.node_environment import code_files
from podzero.cluster.placement import Node
from podzero.cluster.remote import Call, ClusterError, RemoteActor, WorkerDied
from podzero.cluster.stale_processes import end_stale_processes

log = logging.getLogger(__name__)

PACKAGES = (
    "dm-haiku", "dm-reverb", "flax", "jax", "jaxlib", "mctx", "numpy", "optax", "orbax-checkpoint", "pgx",
    "pydantic", "ray", "tensorflow-cpu",
)  # fmt: skip
"""Packages whose versions must agree: they compute, or speak to one another."""
LOOK_TIMEOUT_S = 120.0
"""Longest time for a machine to answer: it may have to load its first process from a cold disk."""


class PreflightCheck:
    """A process that looks at its machine."""

    def __init__(self, name: str) -> None:
        del name

    def versions(self) -> dict[str, str]:
        """What this machine would run podzero with."""
        return versions()

    def reserve_port(self) -> int:
        """A port that is reserved until this process ends.

        Only servers of the same user that share their ports (`SO_REUSEPORT`) can listen there, as those of gRPC do:
        JAX's coordinator is one.
        """
        self._reservation = socket.socket()
        self._reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reservation.bind(("", 0))
        return int(self._reservation.getsockname()[1])

    def end_stale_processes(self, run: str) -> list[str]:
        """Ends what earlier runs left on this machine's TPU chips; returns what was ended.

        Raises:
          ClusterError: somebody else holds them.
        """
        return end_stale_processes(run)


class _PendingCheck(NamedTuple):
    """A scout that is out."""

    node: Node
    check: RemoteActor
    answer: Call
    until: float
    """When its silence becomes an answer, on the monotonic clock."""


class Preflight:
    """Remembers which nodes are fit to take part.

    Args:
      cluster: starts processes on nodes.
      environment: environment variables of the scouts.
    """

    def __init__(self, cluster: Any, environment: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._environment = environment
        self._verdicts: dict[str, str] = {}
        self._out: dict[str, _PendingCheck] = {}

    def fit(self, nodes: Sequence[Node], wait: bool) -> list[Node]:
        """Those of `nodes` that run what the driver runs; a new one is looked at, and named in the log if refused.

        Args:
          nodes: that are alive.
          wait: whether to wait for the scouts that are out, or to leave their nodes out until they are back.
        """
        for node in nodes:
            if node.id not in self._verdicts and node.id not in self._out:
                check = self.send(node)
                self._out[node.id] = _PendingCheck(
                    node, check, check.begin("versions"), time.monotonic() + LOOK_TIMEOUT_S
                )
        for pending in list(self._out.values()):
            if wait or pending.answer.done or time.monotonic() >= pending.until:
                self._judge(pending)
        return [node for node in nodes if self._verdicts.get(node.id) == ""]

    def _judge(self, pending: _PendingCheck) -> None:
        del self._out[pending.node.id]
        self._verdicts[pending.node.id] = verdict = _verdict(pending)
        if verdict:
            log.warning("%s is refused: %s", pending.node, verdict)
        pending.check.kill()

    def refusals(self, nodes: Iterable[Node]) -> list[str]:
        """Why each refused one of `nodes` was refused."""
        return [f"{node}: {self._verdicts[node.id]}" for node in nodes if self._verdicts.get(node.id)]

    def send(self, node: Node) -> RemoteActor:
        """Starts a scout on a node."""
        role: RemoteActor = self._cluster.spawn(
            PreflightCheck, f"scout on {node}", cpus=0, environment=self._environment, node=node
        )
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


def _verdict(pending: _PendingCheck) -> str:
    """Why a node cannot take part; empty when it can."""
    try:
        listed = differences(versions(), pending.answer.result(max(0.0, pending.until - time.monotonic())))
    except (ClusterError, WorkerDied) as failure:
        return f"podzero does not start there ({failure}); install it from the same lock file (`uv sync --locked`)"
    except Exception as failure:  # a process of other versions may fail in any way
        return f"podzero fails there: {failure!r}; install it from the same lock file (`uv sync --locked`)"
    return "; ".join(listed) + "; install the same lock file there (`uv sync --locked`)" if listed else ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _digest(package: Path) -> str:
    """Of all Python files of the package, by their names in it."""
    digest = hashlib.sha256()
    names = {file.relative_to(package).as_posix(): file for file in code_files(package) if file.suffix == ".py"}
    for name, file in sorted(names.items()):
        digest.update(name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
