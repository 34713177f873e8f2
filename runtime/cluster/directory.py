"""Where the servers of a run are: a small Ray actor that servers tell their addresses, and that clients ask."""

from __future__ import annotations

import time
from typing import Any

from podzero.errors import ClusterError
from podzero.runtime.cluster.scheduling import node_affinity

STALE_S = 10.0
"""Time after which a server that has not announced itself again is left out."""
ANSWER_TIMEOUT_S = 20.0
"""Longest wait for the directory's answer: Ray may be restarting it."""


class Directory:
    """Addresses by name. A Ray actor; `start_directory` starts it. After a restart, announcements fill it again."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[str, float]] = {}

    def announce(self, name: str, address: str) -> None:
        """Makes `address` that of the server `name`; to be repeated every few seconds."""
        self._entries[name] = address, time.monotonic()

    def addresses(self) -> dict[str, str]:
        """The addresses of the servers that announced themselves lately, by name."""
        now = time.monotonic()
        return {name: address for name, (address, heard) in self._entries.items() if now - heard < STALE_S}


def start_directory(node: str) -> Any:
    """Starts a directory in the connected Ray cluster and returns its actor handle.

    It reserves no CPU, and Ray restarts it on the same node for as long as its owner lives.

    Args:
      node: id of the node where it runs; the driver's.
    """
    import ray

    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
    return ray.remote(Directory).options(scheduling_strategy=node_affinity(node), **options).remote()


def tell(directory: Any, name: str, address: str) -> None:
    """Announces a server to the directory; returns at once."""
    directory.announce.remote(name, address)


def ask(directory: Any) -> dict[str, str]:
    """The addresses of the present servers by name, as the directory knows them.

    Raises:
      ClusterError: the directory did not answer.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    try:
        found: dict[str, str] = ray.get(directory.addresses.remote(), timeout=ANSWER_TIMEOUT_S)
    except GetTimeoutError:
        raise ClusterError(f"waited {ANSWER_TIMEOUT_S:g} s for the directory of inference servers") from None
    except RayError as error:
        raise ClusterError(f"the directory of inference servers is gone: {error}") from None
    return found
