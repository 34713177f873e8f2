"""Real Ray nodes on this machine, which stand for those of a cluster."""

from __future__ import annotations

from podzero.runtime.cluster.ray_start import START_ATTEMPTS, local_node


def add_node(cluster, cpus, **more):
    """Adds a node to a `ray.cluster_utils.Cluster`, in several attempts: on a busy machine Ray gives up too early."""
    for attempt in range(1, START_ATTEMPTS + 1):
        arguments = local_node(cpus)
        if cluster.head_node is not None:
            del arguments["include_dashboard"]  # an argument of heads only
        try:
            return cluster.add_node(**arguments | more)
        except Exception:  # Ray raises no narrower type
            if attempt == START_ATTEMPTS:
                raise
    raise AssertionError
