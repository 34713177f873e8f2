"""A lock on a namespace of a Ray cluster, so that only one driver trains in a working directory."""

from __future__ import annotations

from typing import Any

from podzero.errors import ClusterError
from podzero.runtime.cluster.remote import START_TIMEOUT_S, current_node_id
from podzero.runtime.cluster.scheduling import node_affinity

LOCK_NAME = "run"
"""Name of the actor that is the lock."""


class _RunLock:
    """The actor that is the lock. Ray ends it with the driver that started it."""

    def __init__(self, owner: str) -> None:
        self._owner = owner

    def owner(self) -> str:
        """The run that holds the lock, in words."""
        return self._owner


def lock_run(owner: str) -> Any:
    """Locks the namespace of this driver for as long as the returned handle lives.

    Args:
      owner: the run, in words for whoever finds the namespace locked.

    Raises:
      ClusterError: another run holds the lock, and the message says which; or the actor that is the lock did not start.
    """
    import ray
    from ray.exceptions import ActorAlreadyExistsError, GetTimeoutError, RayError

    try:
        strategy = node_affinity(current_node_id())
        lock = ray.remote(_RunLock).options(name=LOCK_NAME, num_cpus=0, scheduling_strategy=strategy).remote(owner)
        ray.get(lock.owner.remote(), timeout=START_TIMEOUT_S)
    except ActorAlreadyExistsError:
        raise ClusterError(
            f"another run holds the lock of this working directory in the Ray cluster: {_other_owner()}; stop that "
            "run, or choose another --workdir"
        ) from None
    except GetTimeoutError:
        raise ClusterError(
            f"waited {START_TIMEOUT_S:.0f} s for the lock of this working directory in the Ray cluster: its process on "
            "this node did not start; is the node overloaded?"
        ) from None
    except RayError as error:
        raise ClusterError(
            f"the lock of this working directory in the Ray cluster could not be started on this node: {error}"
        ) from error
    return lock


def _other_owner() -> str:
    """The run that holds the lock."""
    import ray
    from ray.exceptions import RayError

    try:
        return str(ray.get(ray.get_actor(LOCK_NAME).owner.remote(), timeout=START_TIMEOUT_S))
    except (ValueError, RayError):
        return "a run that is ending"
