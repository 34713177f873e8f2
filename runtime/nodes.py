"""A run's nodes: waits until those it needs have joined, chooses those for workers, records their hardware."""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from podzero.config import Experiment
from podzero.core.errors import ClusterError
from podzero.files.workdir import Workdir, write_atomically
from podzero.runtime.cluster.placement import (
    MEMORY,
    MissingNodes,
    Node,
    Placement,
    actor_nodes,
    place,
    without_learner,
    without_room,
)
from podzero.runtime.cluster.preflight import Preflight
from podzero.runtime.cluster.ray_cluster import Cluster
from podzero.runtime.cluster.remote import START_TIMEOUT_S
from podzero.runtime.program import CPU_ONLY, program, reserved_cpus
from podzero.runtime.stopping import StopRequest

log = logging.getLogger(__name__)

LOG_EVERY_S = 30.0
"""Time between two log lines about the nodes that are still missing."""
_POLL_S = 1.0
_ACCELERATORS = ("TPU", "GPU")
_ACCELERATOR_TYPE = "ray.io/accelerator-type"
"""Ray's label for the kind of a node's accelerators."""


class NodesAbsent(ClusterError):
    """The nodes that a run needs have not joined; the message says which."""


class RunNodes:
    """The nodes that a run may use: all of a local cluster, or those of a joined one that pass the preflight check."""

    def __init__(self, cluster: Cluster, experiment: Experiment, home: str) -> None:
        self._cluster = cluster
        self._experiment = experiment
        self._program = program(experiment)
        self._home = home
        self._preflight = Preflight(cluster, CPU_ONLY)
        self._learner: Sequence[Node] = ()

    def wait(self, stopping: StopRequest) -> Placement:
        """Waits until all nodes that the run needs have joined; returns where learner and replay run."""
        # Nothing joins a cluster that was started here.
        minutes = self._experiment.cluster.join_minutes if self._cluster.joined else 0.0
        deadline, log_at = time.monotonic() + 60 * minutes, time.monotonic()
        while True:
            try:
                placement = place(self._usable(wait=True), self._program, self._experiment.cluster, self._home)
                self._learner = placement.learner
                return placement
            except MissingNodes as missing:
                refused = self._preflight.refusals(self._cluster.nodes())
                reason = "\n  not used: ".join([str(missing), *refused])
                # An autoscaler adds no nodes unless processes ask for them, and none has been started yet.
                self.request_capacity({}, reserved_cpus(self._experiment))
            now = time.monotonic()
            if now >= deadline:
                raise NodesAbsent(f"waited {minutes:g} minutes (cluster.join_minutes) for nodes to join: {reason}")
            if now >= log_at:
                log_at = now + LOG_EVERY_S
                log.info("waiting for nodes to join: %s", reason)
            if stopping.wait(_POLL_S):
                raise NodesAbsent(f"stopped while waiting for nodes to join: {reason}")

    def for_workers(self) -> list[Node]:
        """The nodes for processes without accelerators, without what the learner reserves there; never waits."""
        try:
            nodes = actor_nodes(self._usable(wait=False), self._experiment.cluster)
        except MissingNodes:
            return []
        return self._without_learner(nodes)

    def with_accelerators(self) -> list[Node]:
        """The nodes for processes that reserve accelerators, including TPU hosts; never waits."""
        return self._without_learner(self._usable(wait=False))

    def describe(self, node: str) -> str:
        """Describes the node with an id."""
        return next((str(known) for known in self._cluster.nodes() if known.id == node), f"node {node[:8]}")

    def request_capacity(self, taken: Mapping[str, float], cpus: Sequence[float]) -> None:
        """Asks an autoscaler for room for processes that need `cpus`, beside those taken; replaces the last request."""
        nodes = self.for_workers() if cpus else []
        self._cluster.request_capacity(without_room(nodes, taken, cpus), self._preflight.checked)

    @contextmanager
    def prepared_hosts(self, hosts: Sequence[Node], run: str) -> Iterator[str]:
        """Ends processes that earlier runs left on the learner hosts' chips, and reserves the coordinator's port.

        Spares the processes of this run (its id). Yields the address at which host 0 coordinates the others, empty for
        a learner on this machine alone; the port is reserved for host 0 while the context lasts.
        """
        if not self._cluster.joined and len(hosts) == 1:
            yield ""
            return
        checks = [self._preflight.start_check(host) for host in hosts]
        try:
            for clear in [check.begin("end_stale_processes", run) for check in checks]:
                for stale in clear.result(START_TIMEOUT_S):
                    log.warning("ended %s, a process of an earlier run that held the TPU chips", stale)
            yield f"{hosts[0].host}:{checks[0].ask('reserve_port')}"
        finally:
            for check in checks:
                check.kill()

    def _without_learner(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes without what the learner reserves on its hosts."""
        reserved = next(kind.resources for kind in self._program if kind.name == "learner")
        return without_learner(nodes, self._learner, reserved)

    def _usable(self, wait: bool) -> list[Node]:
        """The nodes that may be used; with `wait`, waits for preflight checks that are under way."""
        nodes = self._cluster.nodes()
        return self._preflight.usable_nodes(nodes, wait) if self._cluster.joined else nodes


def record_hardware(workdir: Workdir, nodes: Sequence[Node], home: str) -> None:
    """Writes the hardware of the run's nodes into the hardware file; `home` is the id of the driver's.

    The preflight check ensures that all nodes have the driver's versions.
    """
    driver = {
        "processor": processor(Path("/proc/cpuinfo")),
        "podzero": version("podzero"),
        "Python": platform.python_version(),
        "JAX": version("jax"),
    }
    # A cluster started here has more CPUs than the machine if the run's processes share them.
    here = float(len(os.sched_getaffinity(0)))
    found = [_node(node, min(here, node.cpus) if node.id == home else node.cpus) for node in nodes]
    try:
        write_atomically(workdir.hardware_file, json.dumps({"driver": driver, "nodes": found}) + "\n")
    except OSError as error:  # it is for reports alone
        log.warning("cannot write %s; training continues: %s", workdir.hardware_file, error)


def processor(cpu_info: Path) -> str:
    """The CPU's name from a file like `/proc/cpuinfo`, or its architecture."""
    try:
        lines = cpu_info.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _node(node: Node, cpus: float) -> dict[str, Any]:
    kind = node.labels.get(_ACCELERATOR_TYPE)
    found = {kind or name: node.resources[name] for name in _ACCELERATORS if node.resources.get(name)}
    return {
        "host": node.host,
        "cpus": cpus,
        "memory_gib": round(node.resources.get(MEMORY, 0.0) / 2**30, 1),
        "accelerators": {name: int(count) for name, count in found.items()},
    }
