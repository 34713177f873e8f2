"""The only thing podzero asks of Ray: a cluster with nodes, and processes that run where they are sent."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

import podzero
from podzero.cluster.node_environment import NODES_PYTHON, EnvironmentSpec, NodeEnvironments, pack
from podzero.cluster.placement import Node
from podzero.cluster.ray_start import separate_signals
from podzero.cluster.remote import START_TIMEOUT_S, ClusterError, RemoteActor, here
from podzero.errors import ConfigError

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 256 * 2**20
"""Of a cluster started here: enough for a few versions of the parameters of nets that train on one machine."""
LOOPBACK = "127.0.0.1"
"""Address of a node that is started here: Ray's processes then listen there alone."""
START_ATTEMPTS = 3
"""How often a cluster on this machine is started before that is an error."""
CLAIM = "run"
"""Name of the actor that holds a namespace for a run."""


class Cluster:
    """A Ray cluster, started here for one machine or joined by address."""

    def __init__(self, address: str, joined: bool) -> None:
        self.address = address
        self.joined = joined
        """Whether somebody else started it, on machines that may differ."""
        self._environments: NodeEnvironments | None = None

    def spawn(
        self,
        role: type,
        name: str,
        *,
        cpus: float,
        environment: Mapping[str, str],
        threads: int = 4,
        node: Node | None = None,
        bundle: Bundle | None = None,
        bare: bool = False,
        **arguments: Any,
    ) -> RemoteActor:
        """Starts `role(name, **arguments)` as a process; returns before it is up.

        Args:
          role: a plain class.
          name: its name in messages and figures.
          cpus: CPUs that Ray reserves for it.
          environment: environment variables of the process.
          threads: methods that may run at the same time.
          node: where it runs; Ray spreads those over the nodes for which nothing is said.
          bundle: of the placement group that `reserve` returned.
          bare: whether it runs by the Python of its node, even where the environment is shipped.
          arguments: keyword arguments of the constructor.
        """
        import ray

        options = ray.remote(role).options(
            num_cpus=cpus,
            resources=dict(bundle.resources) if bundle else None,
            max_concurrency=threads,
            max_restarts=0,
            runtime_env={"env_vars": dict(environment), **(NODES_PYTHON if bare else {})},
            scheduling_strategy=bundle.strategy if bundle else _affinity(node),
        )
        where = bundle.node if bundle else node
        return RemoteActor(name, options.remote(name, **arguments), where.id if where else None)

    def ship(self, environment: EnvironmentSpec) -> None:
        """Makes the environment on all nodes; those that join later are not among `nodes` before they have it.

        Raises:
          ClusterError: a node cannot be given it; says which, and why.
        """
        environments = NodeEnvironments(self.spawn, environment)
        environments.make(self.nodes())
        self._environments = environments

    def nodes(self) -> list[Node]:
        """The nodes that are alive."""
        import ray

        found = [
            Node(
                id=node["NodeID"],
                host=node["NodeManagerAddress"],
                cpus=node["Resources"].get("CPU", 0.0),
                resources=node["Resources"],
                labels=node.get("Labels", {}),
            )
            for node in ray.nodes()
            if node["Alive"]
        ]
        return self._environments.having(found) if self._environments else found

    def reserve(self, nodes: Sequence[Node], resources: Mapping[str, float], timeout_s: float) -> PlacementGroup:
        """Reserves `resources` on all of `nodes` together, or on none.

        Raises:
          ClusterError: they are not free within `timeout_s`.
        """
        from ray.util.placement_group import placement_group, remove_placement_group

        group = placement_group(
            [dict(resources)] * len(nodes),
            strategy="STRICT_SPREAD",
            bundle_label_selector=[{"ray.io/node-id": node.id} for node in nodes],
        )
        if not group.wait(timeout_s):
            remove_placement_group(group)
            wanted = ", ".join(f"{amount:g} {name}" for name, amount in resources.items())
            raise ClusterError(
                f"waited {timeout_s:.0f} s for {wanted} on each of {', '.join(map(str, nodes))}: another run, or what "
                "is left of one, holds them (`ray status` on the head shows who)"
            )
        return PlacementGroup(group, nodes, resources)

    def ask_for(self, cpus: Sequence[float]) -> None:
        """Tells the autoscaler of a joined cluster, if it has one, what shall find room at the same time."""
        from ray.autoscaler.sdk import request_resources

        if self.joined:
            request_resources(bundles=[{"CPU": amount} for amount in cpus if amount])

    def claim(self, what: str) -> Any:
        """Holds this run's namespace for as long as the returned handle lives.

        Raises:
          ClusterError: another run holds it; says which.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        try:
            beside_the_driver = NodeAffinitySchedulingStrategy(here(), soft=False)
            claim = (
                ray.remote(_Claim).options(name=CLAIM, num_cpus=0, scheduling_strategy=beside_the_driver).remote(what)
            )
            ray.get(claim.what.remote(), timeout=START_TIMEOUT_S)
        except ValueError:
            holder = ray.get(ray.get_actor(CLAIM).what.remote(), timeout=START_TIMEOUT_S)
            raise ClusterError(
                f"another run holds this place in the cluster at {self.address}: {holder}; stop it, or choose "
                "another --workdir"
            ) from None
        return claim


class Bundle(NamedTuple):
    """A reserved place for one process."""

    node: Node
    resources: Mapping[str, float]
    strategy: Any


class PlacementGroup:
    """Resources on several nodes, reserved together; `seats` are in the order of the nodes."""

    def __init__(self, group: Any, nodes: Sequence[Node], resources: Mapping[str, float]) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Strategy

        self._group = group
        self.bundles = [
            Bundle(node, resources, Strategy(group, placement_group_bundle_index=index))
            for index, node in enumerate(nodes)
        ]

    def release(self) -> None:
        """Gives everything back, and ends what still runs there."""
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(self._group)


class _Claim:
    """Holds a namespace and says for whom."""

    def __init__(self, what: str) -> None:
        self._what = what

    def what(self) -> str:
        """For whom."""
        return self._what


def _affinity(node: Node | None) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node.id, soft=False)


@contextmanager
def connect(
    address: str | None, cpus: float, namespace: str | None = None, ship: Sequence[str] | None = None
) -> Iterator[Cluster]:
    """Joins the cluster at `address`, or starts one on this machine, for as long as the context lasts.

    A cluster started here never joins another one that may be running on this machine, is reached from this machine
    alone, asks its callers for a token, and is taken down with everything in it.

    Args:
      address: `host:port` of a running cluster's head, or None.
      cpus: CPUs that a cluster started here offers at least, even if the machine has fewer: the operating system
        shares them out.
      namespace: keeps the names of one run from those of others; by default one of this process.
      ship: sends this checkout to the nodes of a joined cluster, and makes the environment of its lock file there,
        with these optional dependencies; by default the nodes are taken as they are.

    Raises:
      ConfigError: nothing answers at `address`, or there is no checkout to send.
      ClusterError: the cluster cannot be joined, or not be given what is sent.
    """
    joined, environment = address is not None, None
    # Under `uv run`, Ray would otherwise send the working directory and have each worker rebuild the environment.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    with ExitStack() as stack:
        if address is None:
            address = stack.enter_context(_local_cluster(cpus))
        else:
            _check_reachable(address)
            if ship is not None:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="podzero-"))
                environment = pack(Path(podzero.__file__).parent, ship, Path(folder))
        stack.enter_context(_session(address, namespace or f"podzero-{os.getpid()}", environment))
        cluster = Cluster(address, joined)
        if environment is not None:
            cluster.ship(environment)
        yield cluster


@contextmanager
def _local_cluster(cpus: float) -> Iterator[str]:
    """One node on this machine; yields its address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    _require_token()
    from ray._private import ray_constants

    nodes = _start_node(max(cpus, float(os.cpu_count() or 1)))
    # `ray.init` replaces a loopback address by another one of this machine, unless its clusters are switched off.
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield str(nodes.address)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        nodes.shutdown()


def _require_token() -> None:
    """Makes Ray ask for a token, even if it was imported earlier: it reads its settings and the token only once."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    from ray._private.authentication.authentication_token_setup import AuthenticationTokenLoader, Config

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _start_node(cpus: float) -> Any:
    """A cluster of this machine. A raylet gives up when its agents take more than 15 s, as on a busy machine."""
    from ray.cluster_utils import Cluster as RayNodes

    driver = psutil.Process()
    for attempt in range(1, START_ATTEMPTS + 1):
        before = set(driver.children(recursive=True))
        try:
            with separate_signals():
                return RayNodes(initialize_head=True, head_node_args=local_node(cpus) | {"node_ip_address": LOOPBACK})
        except BaseException as failure:  # Ray raises nothing more exact
            _kill(set(driver.children(recursive=True)) - before)  # Ray leaves behind what it had started
            if not isinstance(failure, Exception):
                raise
            log.warning("Ray did not start (attempt %d of %d): %s", attempt, START_ATTEMPTS, failure)
            cause = failure
    raise ClusterError(f"Ray did not start on this machine in {START_ATTEMPTS} attempts: {cause}")


def _kill(processes: Iterable[psutil.Process]) -> None:
    gone = list(processes)
    for process in gone:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(gone, timeout=5.0)


def local_node(cpus: float) -> dict[str, Any]:
    """Arguments of a Ray node on this machine.

    The agents' ports are fixed beforehand: a raylet that must learn them from a slow agent gives up after 15 s. Nobody
    reads what Ray's log monitor would send, which takes a tenth of a core, and nothing is scaled by its autoscaler.
    """
    names = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    return {
        "num_cpus": cpus,
        "include_dashboard": False,
        "include_log_monitor": False,
        "no_monitor": True,
        "object_store_memory": OBJECT_STORE_BYTES,
        **dict(zip(names, free_ports(len(names)), strict=True)),
    }


def free_ports(count: int) -> list[int]:
    """Ports that nobody holds at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [int(one.getsockname()[1]) for one in sockets]


@contextmanager
def _session(address: str, namespace: str, environment: EnvironmentSpec | None) -> Iterator[None]:
    import ray

    settings = environment.runtime_env if environment else None
    with ExitStack() as stack:
        stack.callback(ray.shutdown)  # also if a signal interrupts `ray.init`
        try:
            with separate_signals():
                ray.init(
                    address=address,
                    configure_logging=False,
                    log_to_driver=False,
                    namespace=namespace,
                    runtime_env=settings,
                )
        except (ConnectionError, RuntimeError) as error:
            raise ClusterError(f"cannot join the Ray cluster at {address}: {error}") from None
        yield


def _check_reachable(address: str) -> None:
    """Finds a wrong address in seconds, where Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--address {address}: expected host:port of the head of a Ray cluster, as 10.0.0.2:6379")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ConfigError(
            f"--address {address}: nothing answers there ({error.strerror or error}); "
            "start a head with `ray start --head`, or leave --address out to use this machine alone"
        ) from None
