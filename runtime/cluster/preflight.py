"""Checks each node before a run uses it: it must have the same Python, the same packages and the same code."""

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
from podzero.core.errors import ClusterError
from podzero.runtime.cluster.node_environment import code_files
from podzero.runtime.cluster.other_runs import end_stale_processes
from podzero.runtime.cluster.placement import Node
from podzero.runtime.cluster.remote import Call, RemoteActor, WorkerDied

log = logging.getLogger(__name__)

PACKAGES = (
    "cramjam", "dm-haiku", "flax", "grpcio", "jax", "jaxlib", "mctx", "numpy", "optax", "orbax-checkpoint", "pgx",
    "protobuf", "pydantic", "pyzmq", "ray",
)  # fmt: skip
"""Packages whose versions must agree, because they compute or communicate between processes."""
OPTIONAL_PACKAGES = ("openvino",)
"""Optional packages, whose versions must agree if both sides have them."""
INSTALL_ADVICE = "; install the same lock file there (`uv sync --locked --inexact`), and restart Ray on it"
_MISSING = "missing"
CHECK_TIMEOUT_S = 120.0
"""Longest time for a check: a node may load its first process from a cold disk."""
FIRST_RETRY_S = 15.0
"""Pause after the first check of a node that failed; each further failure doubles it."""
LONGEST_RETRY_S = 300.0


class PreflightCheck:
    """A process that checks its node."""

    def __init__(self, name: str) -> None:
        del name

    def versions(self) -> dict[str, str]:
        """The versions that this node would run podzero with."""
        return versions()

    def reserve_port(self) -> int:
        """Reserves a port until this process ends."""
        # Servers of this user that also set SO_REUSEPORT, as gRPC's do, can listen there: JAX's coordinator is one.
        self._reservation = socket.socket()
        self._reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reservation.bind(("", 0))
        return int(self._reservation.getsockname()[1])

    def end_stale_processes(self, run: str) -> list[str]:
        """Ends the processes of earlier runs that hold this node's TPU chips; returns descriptions of them."""
        return end_stale_processes(run)


class _PendingCheck(NamedTuple):
    """A check that has not answered yet."""

    node: Node
    check: RemoteActor
    answer: Call
    deadline: float
    """On the monotonic clock."""


class _Failures(NamedTuple):
    """A node's failed checks in a row."""

    error: str
    """The last error."""
    retry_s: float
    """The pause after the last failure."""
    retry_at: float
    """Monotonic time at which the pause ends."""


class Preflight:
    """Checks nodes before they are used, and remembers the results.

    A node with other versions is refused for as long as Ray runs on it. A check that fails in any other way, such as a
    timeout, is repeated after a pause.

    Args:
      cluster: starts processes on nodes.
      environment: environment variables of the checks.
    """

    def __init__(self, cluster: Any, environment: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._environment = environment
        self._differences: dict[str, str] = {}
        """How the versions of each node differ, by node id; empty for a node that can be used."""
        self._failures: dict[str, _Failures] = {}
        self._pending: dict[str, _PendingCheck] = {}

    def usable_nodes(self, nodes: Sequence[Node], wait: bool) -> list[Node]:
        """The nodes with the driver's versions; checks new nodes, and logs why a node is not used.

        Args:
          nodes: the living nodes.
          wait: whether to wait for each node's first check; otherwise a node is left out until it has answered.
        """
        for node in nodes:
            if self._is_due(node):
                check = self.start_check(node)
                deadline = time.monotonic() + CHECK_TIMEOUT_S
                self._pending[node.id] = _PendingCheck(node, check, check.begin("versions"), deadline)
        for pending in list(self._pending.values()):
            first = pending.node.id not in self._failures
            if (wait and first) or pending.answer.done or time.monotonic() >= pending.deadline:
                self._finish(pending)
        return [node for node in nodes if self._differences.get(node.id) == ""]

    def _is_due(self, node: Node) -> bool:
        """Whether a node must be checked now."""
        if node.id in self._differences or node.id in self._pending:
            return False
        failures = self._failures.get(node.id)
        return failures is None or time.monotonic() >= failures.retry_at

    def _finish(self, pending: _PendingCheck) -> None:
        """Takes the result of a check."""
        node = pending.node
        del self._pending[node.id]
        try:
            theirs = pending.answer.result(max(0.0, pending.deadline - time.monotonic()))
        except Exception as failure:  # a process with other versions may fail in any way
            self._note_failure(node, failure)
        else:
            self._failures.pop(node.id, None)
            self._differences[node.id] = found = "; ".join(differences(versions(), theirs))
            if found:
                log.warning("%s is refused: %s%s", node, found, INSTALL_ADVICE)
        pending.check.kill()

    def _note_failure(self, node: Node, failure: Exception) -> None:
        known = isinstance(failure, (ClusterError, WorkerDied))  # their messages suffice without the type
        earlier = self._failures.get(node.id)
        retry_s = min(2 * earlier.retry_s, LONGEST_RETRY_S) if earlier else FIRST_RETRY_S
        error = f"its check failed: {failure if known else repr(failure)}"
        self._failures[node.id] = _Failures(error, retry_s, time.monotonic() + retry_s)
        log.warning("%s is not used yet: %s; the check is repeated in %.0f s", node, error, retry_s)

    def refusals(self, nodes: Iterable[Node]) -> list[str]:
        """Why some of `nodes` cannot be used."""
        found = []
        for node in nodes:
            if differing := self._differences.get(node.id):
                found.append(f"{node}: {differing}{INSTALL_ADVICE}")
            elif node.id in self._failures:
                found.append(f"{node}: {self._failures[node.id].error}; the check is repeated")
        return found

    @property
    def checked(self) -> frozenset[str]:
        """The ids of the nodes whose versions are known."""
        return frozenset(self._differences)

    def start_check(self, node: Node) -> RemoteActor:
        """Starts a `PreflightCheck` on a node."""
        check: RemoteActor = self._cluster.spawn(
            PreflightCheck, f"preflight check on {node}", cpus=0, environment=self._environment, node=node
        )
        return check


def versions() -> dict[str, str]:
    """The versions of Python and of packages that must agree, and a digest of podzero's own code."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in (*PACKAGES, *OPTIONAL_PACKAGES)},
        "podzero's code": code_digest(Path(podzero.__file__).parent),
    }


def differences(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Describes each version that differs, for example `jax 0.12.0, the driver has 0.12.0.1`."""
    return [
        f"{name} {theirs.get(name, _MISSING)}, the driver has {version}"
        for name, version in mine.items()
        if theirs.get(name) != version
        and not (name in OPTIONAL_PACKAGES and _MISSING in (version, theirs.get(name, _MISSING)))
    ]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return _MISSING


def code_digest(package: Path) -> str:
    """A hash over the names and contents of all Python files of the package."""
    digest = hashlib.sha256()
    names = {file.relative_to(package).as_posix(): file for file in code_files(package) if file.suffix == ".py"}
    for name, file in sorted(names.items()):
        digest.update(name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
