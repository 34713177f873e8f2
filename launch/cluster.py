"""The only thing podzero asks of Ray: a cluster, and named processes with methods, each call bounded in time."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from podzero.errors import ConfigError

log = logging.getLogger(__name__)

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0
OBJECT_STORE_BYTES = 256 * 2**20
"""Of a cluster started here: enough for a few versions of the parameters of nets that train on one machine."""


class ClusterError(RuntimeError):
    """The cluster cannot be reached or has no room; the message says what was waited for."""


class RoleDied(RuntimeError):
    """A process of the run is gone; the message holds its last words."""


class Role:
    """A running process: a plain Python object in a Ray actor, reached by method name."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self.actor = actor

    def begin(self, method: str, *args: Any) -> Call:
        """Starts a method and returns at once."""
        return Call(self.name, method, getattr(self.actor, method).remote(*args))

    def ask(self, method: str, *args: Any, timeout_s: float = START_TIMEOUT_S) -> Any:
        """Calls a method and waits for its result.

        Raises:
          ClusterError: no answer within `timeout_s`.
          RoleDied: the process is gone.
        """
        return self.begin(method, *args).result(timeout_s)

    def kill(self) -> None:
        """Ends the process without ceremony; one that is gone already is no error."""
        import ray

        ray.kill(self.actor, no_restart=True)


class Call:
    """The pending result of a method of a `Role`."""

    def __init__(self, role: str, method: str, reference: Any) -> None:
        self._role = role
        self._method = method
        self._reference = reference

    @property
    def done(self) -> bool:
        """Whether a result or an error is there; never waits."""
        import ray

        ready, _ = ray.wait([self._reference], timeout=0)
        return bool(ready)

    def result(self, timeout_s: float) -> Any:
        """The result.

        Raises:
          ClusterError: none within `timeout_s`.
          RoleDied: the process is gone.
          Exception: whatever the method raised.
        """
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

        try:
            return ray.get(self._reference, timeout=timeout_s)
        except GetTimeoutError:
            raise ClusterError(
                f"waited {timeout_s:.0f} s for {self._role} to answer '{self._method}'; "
                "it may be starting, overloaded, or without a node that has room for it"
            ) from None
        except RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except RayActorError as error:
            raise RoleDied(f"{self._role} is gone: {error}") from None


class Cluster:
    """A Ray cluster, started here for one machine or joined by address."""

    def spawn(
        self, role: type, name: str, *, cpus: float, environment: Mapping[str, str], threads: int = 4, **arguments: Any
    ) -> Role:
        """Starts `role(name, **arguments)` as a process; returns before it is up.

        Args:
          role: a plain class.
          name: its name in messages and figures.
          cpus: CPUs that Ray reserves for it; roles with any are spread over the nodes.
          environment: environment variables of the process.
          threads: methods that may run at the same time.
          arguments: keyword arguments of the constructor.
        """
        import ray

        options = ray.remote(role).options(
            num_cpus=cpus,
            max_concurrency=threads,
            max_restarts=0,
            runtime_env={"env_vars": dict(environment)},
            scheduling_strategy="SPREAD",
        )
        return Role(name, options.remote(name, **arguments))

    def cpus(self) -> float:
        """CPUs of all nodes, as Ray counts them."""
        import ray

        return float(ray.cluster_resources().get("CPU", 0.0))


@contextmanager
def connect(address: str | None, cpus: float) -> Iterator[Cluster]:
    """Joins the cluster at `address`, or starts one on this machine, for as long as the context lasts.

    A cluster started here never joins another one that may be running on this machine, asks its callers for a
    token, and is taken down with everything in it.

    Args:
      address: `host:port` of a running cluster's head, or None.
      cpus: CPUs that the roles will reserve. A cluster started here offers that many even if the machine has
        fewer: the operating system shares them out.

    Raises:
      ConfigError: nothing answers at `address`.
      ClusterError: the cluster has too few CPUs.
    """
    with ExitStack() as stack:
        if address is None:
            address = stack.enter_context(_local_cluster(cpus))
        else:
            _check_reachable(address)
        stack.enter_context(_session(address))
        cluster = Cluster()
        if cluster.cpus() < cpus:
            raise ClusterError(
                f"the cluster at {address} has {cluster.cpus():g} CPUs, the experiment reserves {cpus:g}: "
                "lower actors.count or actors.cpus, or add nodes"
            )
        yield cluster


@contextmanager
def _local_cluster(cpus: float) -> Iterator[str]:
    """One node on this machine; yields its address."""
    # Each worker would otherwise rebuild the driver's uv environment.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if "ray" not in sys.modules:  # Ray reads mode and token once in the life of a process
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    from ray.cluster_utils import Cluster as RayNodes

    nodes = RayNodes(initialize_head=True, head_node_args=local_node(max(cpus, float(os.cpu_count() or 1))))
    try:
        yield str(nodes.address)
    finally:
        nodes.shutdown()


def local_node(cpus: float) -> dict[str, Any]:
    """Arguments of a Ray node on this machine.

    The agents' ports are fixed beforehand: a raylet that must learn them from a slow agent gives up after 15 s.
    """
    names = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    return {
        "num_cpus": cpus,
        "include_dashboard": False,
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
def _session(address: str) -> Iterator[None]:
    import ray

    try:
        ray.init(address=address, configure_logging=False, log_to_driver=False, namespace=f"podzero-{os.getpid()}")
    except (ConnectionError, RuntimeError) as error:
        raise ClusterError(f"cannot join the Ray cluster at {address}: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()


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
