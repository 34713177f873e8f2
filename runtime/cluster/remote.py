"""Remote actors: every call is bounded in time, and every error of Ray becomes one of podzero's errors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.exceptions import RayError

from podzero.core.errors import TRY_AGAIN, ClusterError, PodzeroError

START_TIMEOUT_S = 180.0
BUILD_TIMEOUT_S = 1800.0
"""Longest time to build a replay shard, or a process that waits for one: enough to restore 180 GB at 100 MB/s."""
STOP_TIMEOUT_S = 30.0
VERDICT_TIMEOUT_S = 60.0
"""Longest time until Ray knows whether an actor has died: it takes 15 s to declare a silent node dead."""


class WorkerDied(PodzeroError, RuntimeError):
    """A process has died or could not be started; the message includes Ray's reason."""

    exit_code = TRY_AGAIN


class NodeLost(WorkerDied):
    """A process is gone because its node is: preempted, shut down, or cut off."""


class RemoteActor:
    """A plain Python object in a Ray actor; its methods are called by name."""

    def __init__(self, name: str, actor: Any, node: str | None = None) -> None:
        self.name = name
        self.actor = actor
        self.node = node
        """The id of the node that the actor was sent to; None if Ray chose it."""

    def begin(self, method: str, *args: Any) -> Call:
        """Starts a method and returns at once."""
        return Call(self, method, getattr(self.actor, method).remote(*args))

    def ask(self, method: str, *args: Any, timeout_s: float = START_TIMEOUT_S) -> Any:
        """Calls a method and waits for its result.

        Raises:
          ClusterError: no answer within `timeout_s`, or the answer was lost.
          WorkerDied: the process is gone.
          Exception: the error that the method raised.
        """
        return self.begin(method, *args).result(timeout_s)

    def kill(self) -> None:
        """Ends the process at once; does nothing if it has ended."""
        import ray

        ray.kill(self.actor, no_restart=True)

    def diagnose(self, method: str, error: RayError) -> ClusterError | WorkerDied:
        """Why a call failed with Ray's `error`: the node is lost, the process died, or only the answer was lost.

        Asks Ray until it knows whether the process lives.
        """
        import ray
        from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError

        death, deadline = error, time.monotonic() + VERDICT_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                # Ray gives every actor this method, which answers once the actor is up.
                ray.get(self.actor.__ray_ready__.remote(), timeout=5.0)
            except GetTimeoutError:
                continue
            except ActorUnavailableError as unavailable:  # Ray does not know yet
                death = unavailable
                time.sleep(0.5)
            except RayError as final:
                death = final
                break
            else:
                return ClusterError(f"{self.name} is alive, but Ray lost its answer to '{method}': {error}")
        lost = self.node is not None and not any(node["NodeID"] == self.node and node["Alive"] for node in ray.nodes())
        return (NodeLost if lost else WorkerDied)(f"{self.name} is gone: {death}")


class Call:
    """The pending result of a method of a `RemoteActor`."""

    def __init__(self, actor: RemoteActor, method: str, reference: Any) -> None:
        self._actor = actor
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
          ClusterError: no result within `timeout_s`, or the result was lost although the process lives.
          NodeLost: the process is gone with its node.
          WorkerDied: the process is gone, or could not be started.
          Exception: the error that the method raised; its cause is Ray's error with the remote traceback.
        """
        import ray
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        try:
            return ray.get(self._reference, timeout=timeout_s)
        except GetTimeoutError:
            raise ClusterError(
                f"waited {timeout_s:.0f} s for {self._actor.name} to answer '{self._method}'; "
                "it may be starting, overloaded, or without a node that has room for it"
            ) from None
        except RayTaskError as error:
            # The method's own exception, with its own type.
            cause = error.cause if isinstance(error.cause, Exception) else error.as_instanceof_cause()
            raise cause from error
        except RayError as error:
            raise self._actor.diagnose(self._method, error) from error


def node_affinity(node: str) -> Any:
    """Ray's scheduling strategy for a process that must run on the node with this id."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def start_lasting(service: type, node: str, **options: Any) -> Any:
    """Starts `service()` as a small Ray actor, which reserves no CPU; returns its handle.

    Ray restarts it, on the same node (its id), for as long as its owner lives, and repeats the calls that were pending.
    Choose the driver's node: it must survive the loss of any other.
    """
    import ray

    lasting = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": node_affinity(node)}
    return ray.remote(service).options(**lasting, **options).remote()


def current_node_id() -> str:
    """The id of this process's node."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def own_address() -> str:
    """The name or IP at which other nodes reach this process's node; loopback if there are no other nodes."""
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())
