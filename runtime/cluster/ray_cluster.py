"""A Ray cluster, started on this machine or joined by address, and the processes that a run starts in it."""

from __future__ import annotations

import math
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray._private import ray_constants, services, state
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import podzero
from podzero.core.errors import ClusterError, ConfigError
from podzero.runtime.cluster.node_environment import NODE_PYTHON, EnvironmentSpec, installations, pack_environment
from podzero.runtime.cluster.placement import MEMORY, Node, described
from podzero.runtime.cluster.ray_start import (
    deferred_signals,
    errors_in_log,
    local_cluster,
    own_handlers,
    restore_handlers,
    separate_signals,
)
from podzero.runtime.cluster.remote import NodeCalls, RemoteActor, node_affinity

THREADS = 4
"""Most methods of a process that run at the same time."""
MOST_REQUESTS = 64
"""Most placement groups that ask an autoscaler for room: Ray slows down beyond a thousand in all runs."""


class Bundle(NamedTuple):
    """Resources of a node, reserved for one process."""

    node: Node
    resources: Mapping[str, float]
    strategy: Any
    """Ray's scheduling strategy for a process that occupies the bundle."""


class PlacementGroup:
    """Resources on several nodes, reserved together by a group of Ray's; None if they are none.

    `bundles` has the order of the nodes; empty once released.
    """

    def __init__(self, group: Any, bundles: Sequence[Bundle]) -> None:
        self._group = group
        self.bundles = list(bundles)

    def release(self) -> None:
        """Releases all bundles and kills the processes in them."""
        self.bundles = []
        if self._group is not None:
            remove_placement_group(self._group)


class Cluster:
    """A Ray cluster, started here for one machine or joined by address."""

    def __init__(self, address: str, joined: bool, ended: Callable[[], bool] = lambda: False) -> None:
        self.address = address
        self.joined = joined
        """Whether it was already running, on nodes that may differ from this one and be shared with others."""
        self.ended = ended
        """Whether its head was started here and has ended: a minute later Ray would end the driver without a word."""
        self._installations: NodeCalls | None = None
        self._requested: list[float] = []
        """The CPUs of the processes for which room was requested, by placement groups that none of them uses."""
        self._requests: list[Any] = []
        self._beyond: frozenset[str] = frozenset()
        self._reserved_cpus: dict[str, float] = {}
        """The CPUs of each actor started here that is not in a bundle, by actor id."""
        self._groups: list[PlacementGroup] = []

    def spawn(
        self,
        process: type,
        name: str,
        *arguments: object,
        cpus: float,
        environment: Mapping[str, str],
        resources: Mapping[str, float] | None = None,
        node: Node | None = None,
        bundle: Bundle | None = None,
        use_node_python: bool = False,
    ) -> RemoteActor:
        """Starts `process(*arguments)`, of a plain class, as a Ray actor; returns before it is up.

        Ray reserves these CPUs and other resources for it, unless it occupies a bundle of `reserve`.
        Without a node, Ray spreads such processes over the nodes. The node's own Python runs it, if asked to, even
        where podzero installs environments.
        """
        actor = (
            _remote_class(process)
            .options(
                **resource_options(bundle.resources if bundle else {"CPU": cpus, **(resources or {})}),
                max_concurrency=THREADS,
                max_restarts=0,
                runtime_env={"env_vars": dict(environment), **(NODE_PYTHON if use_node_python else {})},
                scheduling_strategy=bundle.strategy if bundle else node_affinity(node.id) if node else "SPREAD",
            )
            .remote(*arguments)
        )
        if cpus and not bundle:
            self._reserved_cpus[actor._actor_id.hex()] = cpus
        where = bundle.node if bundle else node
        return RemoteActor(name, actor, where.id if where else None)

    def install_environment(self, environment: EnvironmentSpec) -> None:
        """Installs the environment on all nodes; `nodes` omits nodes that join later until they have it."""
        found, calls = self.nodes(), installations(self.spawn, environment)
        calls.update(found, wait=True)
        if failures := [f"{node}: {calls.errors[node.id]}" for node in found if node.id in calls.errors]:
            raise ClusterError("\n  ".join(["cannot install the environment on these nodes:", *failures]))
        self._installations = calls

    def nodes(self) -> list[Node]:
        """The living nodes."""
        alive = [node for node in ray.nodes() if node["Alive"]]
        cpus = {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in alive}
        # Ray's public API has sums over the cluster only.
        free = state.available_resources_per_node() if self.joined else None
        if free is not None:
            usable = self._usable_cpus(free)
            cpus = {name: min(total, usable.get(name, 0.0)) for name, total in cpus.items()}
        nodes = [
            Node(
                id=node["NodeID"],
                host=node["NodeManagerAddress"],
                cpus=cpus[node["NodeID"]],
                resources=node["Resources"],
                labels=node.get("Labels", {}),
                free=None if free is None else free.get(node["NodeID"], {}),
            )
            for node in alive
        ]
        if self._installations is None:
            return nodes
        self._installations.update(nodes, wait=False)
        return [node for node in nodes if node.id in self._installations.answers]

    def reserve(self, nodes: Sequence[Node], resources: Mapping[str, float], timeout_s: float) -> PlacementGroup:
        """Reserves `resources` on each of `nodes`, or on none of them; there may be none to reserve."""
        if not resources:
            return PlacementGroup(None, [Bundle(node, {}, node_affinity(node.id)) for node in nodes])
        group = placement_group(
            [dict(resources)] * len(nodes),
            strategy="STRICT_SPREAD",
            bundle_label_selector=[{"ray.io/node-id": node.id} for node in nodes],
        )
        if not group.wait(timeout_s):
            remove_placement_group(group)
            raise ClusterError(
                f"waited {timeout_s:.0f} s for {described(resources)} on each of {', '.join(map(str, nodes))}: another "
                "run, or a process of an earlier one, holds them (`ray status` on the head shows their use)"
            )
        bundles = [
            Bundle(node, resources, PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index))
            for index, node in enumerate(nodes)
        ]
        reserved = PlacementGroup(group, bundles)
        self._groups = [*(one for one in self._groups if one.bundles), reserved]
        return reserved

    def _usable_cpus(self, free: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """The CPUs of each node that no other driver has reserved, by node id; `free` are the unreserved resources.

        Actors that are still starting are not counted as this driver's own, since Ray may not have reserved their CPUs
        yet. The result may therefore be too low for a moment, but never too high.
        """
        job = ray.JobID(bytes.fromhex(ray.get_runtime_context().get_job_id()))
        actors = state.actors(job_id=job, actor_state_name="ALIVE")
        own = [(found["Address"]["NodeID"], self._reserved_cpus.get(actor, 0.0)) for actor, found in actors.items()]
        bundles = [bundle for group in self._groups for bundle in group.bundles]
        own += [(bundle.node.id, bundle.resources.get("CPU", 0.0)) for bundle in bundles]
        cpus = {node: resources.get("CPU", 0.0) for node, resources in free.items()}
        for node, amount in own:
            if node in cpus:
                cpus[node] += amount
        return cpus

    def request_capacity(self, cpus: Sequence[float], beyond: frozenset[str]) -> None:
        """Tells a joined cluster's autoscaler, if it has one, which processes have no room, by their CPUs.

        The ids `beyond` are those of nodes without room for them. The autoscaler adds nodes for placement groups that
        Ray cannot place, and Ray removes the groups when their driver ends in any way.
        `ray.autoscaler.sdk.request_resources` would outlive the driver, and all drivers share one request. Each of at
        most `MOST_REQUESTS` groups is for as many processes, which Ray places together or not at all.

        A node that has just joined may serve the request, which then reserves its CPUs until the node is in `beyond`.
        Whenever `beyond` changes, the request is only withdrawn, so that these CPUs become free; the next call asks for
        what is still missing.
        """
        wanted = sorted(filter(None, cpus)) if beyond == self._beyond else []
        self._beyond = beyond
        if not self.joined or wanted == self._requested:
            return
        for group in self._requests:
            remove_placement_group(group)
        # No spaces: Ray would take them for parts of the ids.
        selector = {"ray.io/node-id": f"!in({','.join(sorted(beyond))})"} if beyond else {}
        size = math.ceil(len(wanted) / MOST_REQUESTS)
        parts = [wanted[first : first + size] for first in range(0, len(wanted), max(size, 1))]
        self._requests = [
            placement_group([{"CPU": amount} for amount in part], bundle_label_selector=[selector] * len(part))
            for part in parts
        ]
        self._requested = wanted


@cache
def _remote_class(process: type) -> Any:
    """Ray's class of a process: each that is made anew is stored in the cluster once more, until the driver ends."""
    return ray.remote(process)


def resource_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """The options of a Ray actor that reserve `resources`: CPU, GPU and memory have options of their own."""
    custom = dict(resources)
    options = {"num_cpus": custom.pop("CPU", 0.0), "num_gpus": custom.pop("GPU", None)}
    return options | {"memory": custom.pop(MEMORY, None) or None, "resources": custom or None}


@contextmanager
def connect(
    address: str | None, cpus: float, install_extras: Sequence[str] | None = None, packages: Sequence[str] = ()
) -> Iterator[Cluster]:
    """Joins the Ray cluster at `address`, or starts one on this machine, for as long as the context lasts.

    A cluster started here is separate from any other on this machine, can be reached only from this machine and with a
    token, and is shut down with everything in it.

    Args:
      address: `host:port` of a running cluster's head; `auto` for the one that `ray start` started last on this
        machine; or None.
      cpus: the least CPUs of a cluster started here; if the machine has fewer, processes share them.
      install_extras: copies this checkout to the nodes of a joined cluster and installs the environment of its lock
        file there, with these optional dependencies; by default the nodes must have the environment already.
      packages: requirements to install there too.
    """
    joined, environment, ended = address is not None, None, lambda: False
    with ExitStack() as stack:
        if address is None:
            address, ended = stack.enter_context(local_cluster(cpus))
        else:
            address = _reachable(address)
            if install_extras is not None:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="podzero-"))
                environment = pack_environment(Path(podzero.__file__).parent, install_extras, Path(folder), packages)
        stack.enter_context(_session(address, environment))
        cluster = Cluster(address, joined, ended)
        if environment is not None:
            cluster.install_environment(environment)
        yield cluster


@contextmanager
def _session(address: str, environment: EnvironmentSpec | None) -> Iterator[None]:
    # Under `uv run`, Ray would otherwise send the working directory and have each worker rebuild the environment. The
    # variable of this name is read only once, when Ray is first imported.
    ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False

    settings = environment.runtime_env if environment else None
    job = ray.job_config.JobConfig()
    # Ray adds the driver's folder and that of its script, from which the driver itself imports nothing: a jax.py there
    # would hide the library.
    job._py_driver_sys_path = deque(maxlen=0)
    with ExitStack() as stack:
        stack.callback(restore_handlers, own_handlers())
        stack.enter_context(errors_in_log())
        stack.callback(ray.shutdown)  # also if a signal interrupts `ray.init`
        try:
            with separate_signals(), deferred_signals():
                ray.init(
                    address=address, configure_logging=False, log_to_driver=False, job_config=job, runtime_env=settings
                )
        except (ConnectionError, RuntimeError) as error:
            raise ClusterError(f"cannot join the Ray cluster at {address}: {error}") from None
        yield


def _reachable(address: str) -> str:
    """The address as `host:port`. Fails within seconds at a wrong one; Ray would wait for minutes."""
    given = f"--address {address} (or RAY_ADDRESS)"
    if address == "auto":
        found = services.find_bootstrap_address(None)
        if found is None:
            raise ConfigError(
                f"{given}: no cluster has been started on this machine; start one with `ray start --head`, give the "
                "HOST:PORT of another machine's, or leave --address out to train on this machine alone"
            )
        address, given = found, f"{given}, which is {found} here"
    host, _, port = address.rpartition(":")
    if not host or "//" in host or not port.isdigit():
        raise ConfigError(
            f"{given}: expected host:port of a Ray cluster's head, such as 10.0.0.2:6379, auto, or local for a cluster "
            "of this run alone (addresses of Ray Client, ray://, and of the dashboard, http://, are others)"
        )
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ConfigError(
            f"{given}: nothing answers there ({error.strerror or error}); "
            "start a head with `ray start --head`, or leave --address out to train on this machine"
        ) from None
    return address
