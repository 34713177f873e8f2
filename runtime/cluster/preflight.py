"""The nodes of a run, each checked before it is used: Python, packages, code, and chips that earlier runs still hold;
and the folder of a cluster that is to be started on this machine.

Only one process can use the TPU chips of a host. A process that outlived its run (its driver or its Ray node was
killed) keeps the next run from starting until the host is restarted. It is found by the device files it has open.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

import podzero
from podzero.config import ClusterConfig
from podzero.core.errors import ClusterError, ConfigError
from podzero.runtime.cluster import placement
from podzero.runtime.cluster.node_environment import code_files
from podzero.runtime.cluster.placement import HeldByOthers, MissingNodes, Node, NodesAbsent, Placement, Reservation
from podzero.runtime.cluster.remote import START_TIMEOUT_S, Call, NodeCalls, RemoteActor

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
LOG_EVERY_S = 30.0
"""Time between two log lines about the nodes that a run waits for."""
_POLL_S = 1.0
RUN_VARIABLE = "PODZERO_RUN"
"""The environment variable with the run's id, set for all of its processes."""
CPU_ONLY = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
"""Environment of the processes without accelerators, so that they leave those of their host to others."""
CHIP_FILES = ("accel*", "vfio/[0-9]*")
"""Device files of TPU chips, below /dev."""
END_TIMEOUT_S = 10.0
"""Longest wait for a process to release its chips, first after it is asked to end, then after it is killed."""
_SOCKET = f"ray/session_2026-11-27_13-15-23_393360_{os.getpid()}/sockets/plasma_store"
"""The path of a socket in Ray's folder at some time of day."""
_SOCKET_BYTES = 107
"""The longest path that Linux takes for a socket."""


class PreflightCheck:
    """A process that checks its node, and prepares it for a learner."""

    def versions(self) -> Mapping[str, str]:
        """The versions that this node would run podzero with."""
        return versions()

    def reserve_port(self) -> int:
        """Reserves a port until this process ends."""
        # Servers of this user that also set SO_REUSEPORT, as gRPC's do, can listen there: JAX's coordinator is one.
        self._reservation = socket.socket()
        self._reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reservation.bind(("", 0))
        return int(self._reservation.getsockname()[1])

    def end_stale_processes(self) -> list[str]:
        """Ends stale processes that hold this node's chips; `end_stale_processes` of this module."""
        return end_stale_processes()

    def examine(self, actor: Any) -> str:
        """The state of the process of a Ray actor, and the stacks of its threads."""
        from ray._private import state  # Ray's public API asks the dashboard, which is not there

        return examined(int(state.actors(actor._actor_id.hex())["Pid"]))


class RunNodes:
    """The nodes that a run may use: all of a local cluster, or those of a joined one that pass the preflight check.

    A node with other versions is refused for as long as Ray runs on it. A check that fails in any other way, such as a
    timeout, is repeated after a pause. The program has what the processes of each kind reserve, in the order in which
    they start; `home` is the id of the driver's node.
    """

    def __init__(self, cluster: Any, config: ClusterConfig, program: Sequence[Reservation], home: str) -> None:
        self._cluster = cluster
        self._config = config
        self._program = program
        self._home = home
        self._checks = NodeCalls(self._start_check, ("versions",), CHECK_TIMEOUT_S, "its check")
        self._differences: dict[str, str] = {}
        """How the versions of each node differ, by node id; empty for a node that can be used."""
        self._learner: Sequence[Node] = ()
        """The nodes of the learner's hosts."""

    def wait(self, wait_s: Callable[[float], bool]) -> Placement:
        """Waits until all nodes that the run needs have joined; returns where learner and replay run.

        After `cluster.join_minutes` fewer slices are enough, down to `cluster.min_slices`. `wait_s` waits so many
        seconds, and returns whether the run must end.
        """
        config = self._config
        # Nothing joins a cluster that was started here.
        minutes = config.join_minutes if self._cluster.joined else 0.0
        deadline, log_at = time.monotonic() + 60 * minutes, time.monotonic()
        while True:
            try:
                found = placement.place(self.usable(wait=True), self._program, config, self._home)
                self._learner = found.learner
                return found
            except MissingNodes as missing:
                reason = "\n  not used: ".join([str(missing), *self.refusals()])
                # An autoscaler adds no nodes unless processes ask for them, and none has been started yet.
                rows = [row for row in self._program if row.name != "learner"]
                self.request_capacity({}, [row.cpus for row in rows for _ in range(row.count)])
            now = time.monotonic()
            if now >= deadline and config.slices > config.slice_counts[0]:
                log.warning("one slice less is enough after %g minutes (cluster.min_slices): %s", minutes, reason)
                config = config.model_copy(update={"slices": config.slices - 1})
                continue
            if now >= deadline:
                self.check_ended()
                raise NodesAbsent(f"waited {minutes:g} minutes (cluster.join_minutes) for nodes to join: {reason}")
            if now >= log_at:
                log_at = now + LOG_EVERY_S
                log.info("waiting for nodes to join: %s", reason)
            if wait_s(_POLL_S):
                raise NodesAbsent(f"stopped while waiting for nodes to join: {reason}")

    def usable(self, wait: bool) -> list[Node]:
        """The living nodes that may be used; checks new ones, and logs why a node is not used.

        Waits for each node's first check if asked to; otherwise a node is left out until it has answered.
        """
        nodes: list[Node] = self._cluster.nodes()
        if not self._cluster.joined:
            return nodes
        for node in self._checks.update(nodes, wait):
            found = self._differences[node.id] = "; ".join(differences(versions(), self._checks.answers[node.id]))
            if found:
                log.warning("%s is refused: %s%s", node, found, INSTALL_ADVICE)
        return [node for node in nodes if self._differences.get(node.id) == ""]

    def refusals(self) -> list[str]:
        """Why some nodes cannot be used."""
        why = {name: f"{found}{INSTALL_ADVICE}" for name, found in self._differences.items() if found}
        why |= {name: f"{error}; the check is repeated" for name, error in self._checks.errors.items()}
        return [f"{node}: {why[node.id]}" for node in self._cluster.nodes() if node.id in why]

    def for_workers(self, accelerators: bool = False) -> list[Node]:
        """The nodes for processes with accelerators or without, less what the learner reserves there; never waits."""
        nodes = self.usable(wait=False)
        if not accelerators:  # which TPU hosts have
            try:
                nodes = placement.actor_nodes(nodes, self._config)
            except MissingNodes:
                return []
        return placement.without_learner(nodes, self._learner, placement.host_resources(self._config))

    def for_learner(self, taken: Mapping[str, Mapping[str, float]], waited_s: float) -> tuple[Node, ...]:
        """The nodes for the learner's hosts, beside the resources that other processes have `taken` by node id.

        As many slices as before are enough; once `waited_s` is more than `cluster.join_minutes`, fewer, as for `wait`.
        Never waits. Raises `MissingNodes`, or `HeldByOthers` if a start of all processes would find room.
        """
        self.check_ended()
        nodes, config = self.usable(wait=False), self._config
        left = [one for node in nodes for one in placement.without_learner([node], [node], taken.get(node.id, {}))]
        late = waited_s > 60 * config.join_minutes
        least = config.slice_counts[0] if late else config.slices * len(self._learner) // config.learner_hosts
        missing = MissingNodes()
        for slices in range(config.slices, least - 1, -1):
            try:
                hosts = placement.learner_nodes(left, config.model_copy(update={"slices": slices}), self._home)
            except MissingNodes as absent:
                missing = absent
            else:
                if slices < config.slices:
                    log.warning("the learner goes on with %d of %d slices: %s", slices, config.slices, missing)
                self._learner = hosts
                return hosts
        placement.place(nodes, self._program, config.model_copy(update={"slices": least}), self._home)
        raise HeldByOthers(f"other processes of this run hold what the learner needs: {missing}")

    def check_ended(self) -> None:
        """Raises `ClusterEnded` if Ray's head on this machine, or its only node, has ended."""
        if self._cluster.ended() or not (self._cluster.joined or self._cluster.nodes()):
            raise placement.ClusterEnded("Ray has ended on this machine: give the same command again to resume the run")

    def describe(self, node: str) -> str:
        """Describes the node with an id."""
        return next((str(known) for known in self._cluster.nodes() if known.id == node), f"node {node[:8]}")

    def request_capacity(self, taken: Mapping[str, float], cpus: Sequence[float]) -> None:
        """Asks an autoscaler for room for processes that need `cpus`, beside those taken; replaces the last request."""
        nodes = self.for_workers() if cpus else []
        self._cluster.request_capacity(placement.without_room(nodes, taken, cpus), frozenset(self._differences))

    @contextmanager
    def prepared_hosts(self, hosts: Sequence[Node]) -> Iterator[str]:
        """Ends processes that were left on the learner hosts' chips, and reserves the coordinator's port.

        Yields the address at which host 0 coordinates the others, empty for a learner on this machine alone; the port
        is reserved for host 0 while the context lasts.
        """
        if not self._cluster.joined and len(hosts) == 1:
            yield ""
            return
        checks = [self._start_check(host) for host in hosts]
        try:
            for clear in [check.begin("end_stale_processes") for check in checks]:
                for stale in clear.result(START_TIMEOUT_S):
                    log.warning("ended %s, which was left behind and held the TPU chips", stale)
            yield f"{hosts[0].host}:{checks[0].ask('reserve_port')}"
        finally:
            for check in checks:
                check.kill()

    def examine(self, suspect: RemoteActor) -> Call | None:
        """Asks another process on its node what a process does; None if the node is gone."""
        node = next((node for node in self._cluster.nodes() if node.id == suspect.node), None)
        return None if node is None else self._start_check(node).begin("examine", suspect.actor)

    def _start_check(self, node: Node) -> RemoteActor:
        check: RemoteActor = self._cluster.spawn(
            PreflightCheck, f"preflight check on {node}", cpus=0, environment=CPU_ONLY, node=node
        )
        return check


@cache
def versions() -> Mapping[str, str]:
    """The versions of Python and of packages that must agree, and a digest of podzero's own code, as imported here."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in (*PACKAGES, *OPTIONAL_PACKAGES)},
        "podzero's code": code_digest(Path(podzero.__file__).parent),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return _MISSING


def differences(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Describes each version that differs, for example `jax 0.12.0, the driver has 0.12.0.1`."""
    return [
        f"{name} {theirs.get(name, _MISSING)}, the driver has {version}"
        for name, version in mine.items()
        if theirs.get(name) != version
        and not (name in OPTIONAL_PACKAGES and _MISSING in (version, theirs.get(name, _MISSING)))
    ]


def code_digest(package: Path) -> str:
    """A hash over the names and contents of all Python files of the package."""
    digest = hashlib.sha256()
    names = {file.relative_to(package).as_posix(): file for file in code_files(package) if file.suffix == ".py"}
    for name, file in sorted(names.items()):
        digest.update(name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def end_stale_processes(devices: Path = Path("/dev")) -> list[str]:
    """Ends stale processes of podzero that hold chips; returns descriptions of them.

    A process is stale if its parent is gone, as that of a node that was lost for a moment. Any other process that holds
    a chip gets some time to end by itself, since it may already be ending; then a `ClusterError` names it.
    """
    chips = {str(file.resolve()) for pattern in CHIP_FILES for file in devices.glob(pattern)}
    ended = []
    for process in psutil.process_iter() if chips else ():
        if process.pid == os.getpid() or not chips & open_files(process.pid):
            continue
        description = _describe(process)
        if not _is_stale(process):
            if _releases(process, chips):
                continue
            raise ClusterError(f"{description} holds the TPU chips of its host; stop it, or wait for it to end")
        for end in (process.terminate, process.kill):
            with suppress(psutil.NoSuchProcess):
                end()
            if _releases(process, chips):
                break
        else:
            raise ClusterError(f"{description} holds the TPU chips of its host and cannot be ended; restart the host")
        ended.append(description)
    return ended


def examined(pid: int) -> str:
    """The state of a process and the stacks of its threads, which py-spy reads from its memory; or why it cannot."""
    try:
        state = psutil.Process(pid).status()
        # Nonblocking: py-spy would otherwise pause the process, and wait for ever where that is impossible.
        command = [str(Path(sys.executable).with_name("py-spy")), "dump", "--nonblocking", "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=30, check=False)
        return f"its state is '{state}'\n{done.stdout or done.stderr}"
    except (psutil.Error, OSError, subprocess.TimeoutExpired) as failure:
        return f"its stacks cannot be read: {failure}"


def open_files(pid: int) -> set[str]:
    """A process's open files, including device files, which psutil omits; none if they cannot be read."""
    found = set()
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(str(link.readlink()))
    return found


def _is_stale(process: psutil.Process) -> bool:
    """Whether a process belongs to a run of podzero and is an orphan."""
    try:
        return RUN_VARIABLE in process.environ() and is_orphan(process)
    except (psutil.Error, OSError):
        return False


def is_orphan(process: psutil.Process) -> bool:
    """Whether a process's original parent is gone: init, or a service manager outside its session, then adopts it."""
    parent = process.parent()
    if parent is None or parent.pid == 1:
        return True
    # The children of a living raylet have sessions of their own.
    return "raylet" not in parent.name() and os.getsid(parent.pid) != os.getsid(process.pid)


def _releases(process: psutil.Process, chips: AbstractSet[str]) -> bool:
    """Whether a process closes the files `chips` in time; a zombie has closed them."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while process.is_running() and chips & open_files(process.pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _describe(process: psutil.Process) -> str:
    host = f"on {socket.gethostname()}"
    with suppress(psutil.Error):
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(process.create_time()))
        return f"process {process.pid} {host} ({process.name()}, since {since})"
    return f"process {process.pid} {host}"


def session_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder below which Ray keeps the files of a cluster started here; it may not exist yet."""
    return Path(environment.get("RAY_TMPDIR", environment.get("TMPDIR", "/tmp")))


def check_session_folder(folder: Path) -> None:
    """Refuses a folder whose path is too long for Ray's sockets."""
    most = _SOCKET_BYTES - len(f"/{_SOCKET}")
    if (length := len(os.fsencode(folder.absolute()))) > most:
        raise ConfigError(
            f"Ray cannot keep its sockets in {folder}: the path has {length} bytes, and at most {most} leave room for "
            "their names; set TMPDIR (or RAY_TMPDIR, which precedes it) to a folder with a shorter path, such as /tmp"
        )
