"""Processes with methods, each call bounded in time, and what became of a process that no longer answers."""

from __future__ import annotations

import time
from typing import Any

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0
VERDICT_TIMEOUT_S = 60.0
"""Longest time until Ray knows whether a process that broke off has died: it takes 15 s to give a machine up."""


class ClusterError(RuntimeError):
    """The cluster cannot be reached or has no room; the message says what was waited for."""


class WorkerDied(RuntimeError):
    """A process of the run is gone; the message holds its last words."""


class NodeLost(WorkerDied):
    """A process is gone because its whole machine is: preempted, shut down, or cut off."""


class RemoteActor:
    """A running process: a plain Python object in a Ray actor, reached by method name."""

    def __init__(self, name: str, actor: Any, node: str | None = None) -> None:
        self.name = name
        self.actor = actor
        self.node = node
        """Id of the node that it was sent to; None where Ray chose."""

    def begin(self, method: str, *args: Any) -> Call:
        """Starts a method and returns at once."""
        return Call(self, method, getattr(self.actor, method).remote(*args))

    def ask(self, method: str, *args: Any, timeout_s: float = START_TIMEOUT_S) -> Any:
        """Calls a method and waits for its result.

        Raises:
          ClusterError: no answer within `timeout_s`.
          WorkerDied: the process is gone.
        """
        return self.begin(method, *args).result(timeout_s)

    def kill(self) -> None:
        """Ends the process without ceremony; one that is gone already is no error."""
        import ray

        ray.kill(self.actor, no_restart=True)

    def fate(self) -> WorkerDied:
        """What became of this process, which broke off a call: asks Ray until it knows."""
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError

        until, said = time.monotonic() + VERDICT_TIMEOUT_S, "it does not answer any more"
        while time.monotonic() < until:
            try:
                ray.get(self.actor.__ray_ready__.remote(), timeout=5.0)
            except GetTimeoutError:
                continue
            except RayActorError as error:
                said = str(error)
                if "temporarily unavailable" not in said:
                    break
            time.sleep(0.5)
        kind = NodeLost if self.node is not None and not _alive(self.node) else WorkerDied
        return kind(f"{self.name} is gone: {said}")


class Call:
    """The pending result of a method of a `Role`."""

    def __init__(self, role: RemoteActor, method: str, reference: Any) -> None:
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
          NodeLost: the process is gone with its machine.
          WorkerDied: the process is gone.
          Exception: whatever the method raised.
        """
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

        try:
            return ray.get(self._reference, timeout=timeout_s)
        except GetTimeoutError:
            raise ClusterError(
                f"waited {timeout_s:.0f} s for {self._role.name} to answer '{self._method}'; "
                "it may be starting, overloaded, or without a node that has room for it"
            ) from None
        except RayTaskError as error:
            raise _cause(error) from error
        except RayActorError:
            raise self._role.fate() from None


def _cause(error: Any) -> Exception:
    """What a method raised, as it was raised there; the traceback of the other process is in `error`."""
    cause: Exception = error.cause if isinstance(error.cause, Exception) else error.as_instanceof_cause()
    return cause


def current_node_id() -> str:
    """Id of the node of this process."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _alive(node: str) -> bool:
    import ray

    return any(found["NodeID"] == node and found["Alive"] for found in ray.nodes())
