"""What Ray has free, where it runs a process and with which resources, and requests for more nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from podzero.core.errors import ClusterError
from podzero.runtime.cluster.placement import MEMORY, Node


class Bundle(NamedTuple):
    """Resources of a node, reserved for one process."""

    node: Node
    resources: Mapping[str, float]
    strategy: Any
    """Ray's scheduling strategy for a process that occupies the bundle."""


class PlacementGroup:
    """Resources on several nodes, reserved together; `bundles` has the order of the nodes."""

    def __init__(self, group: Any, nodes: Sequence[Node], resources: Mapping[str, float]) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Strategy

        self._group = group
        self.bundles = [
            Bundle(node, resources, Strategy(group, placement_group_bundle_index=index))
            for index, node in enumerate(nodes)
        ]
        self.released = False

    @property
    def cpus(self) -> dict[str, float]:
        """The CPUs of the bundles, by node id; empty once they are released."""
        return {} if self.released else {one.node.id: one.resources.get("CPU", 0.0) for one in self.bundles}

    def release(self) -> None:
        """Releases all bundles and kills the processes in them."""
        from ray.util.placement_group import remove_placement_group

        self.released = True
        remove_placement_group(self._group)


def reserve(nodes: Sequence[Node], resources: Mapping[str, float], timeout_s: float) -> PlacementGroup:
    """Reserves `resources` on each of `nodes`, or on none of them."""
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
            f"waited {timeout_s:.0f} s for {wanted} on each of {', '.join(map(str, nodes))}: another run, or a process "
            "of an earlier one, holds them (`ray status` on the head shows their use)"
        )
    return PlacementGroup(group, nodes, resources)


def node_affinity(node_id: str) -> Any:
    """Ray's scheduling strategy for a process that must run on this node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def resource_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """The options of a Ray actor that reserve `resources`: CPU, GPU and memory have options of their own."""
    custom = dict(resources)
    options = {"num_cpus": custom.pop("CPU", 0.0), "num_gpus": custom.pop("GPU", None)}
    return options | {"memory": custom.pop(MEMORY, None) or None, "resources": custom or None}


def free_resources() -> dict[str, dict[str, float]]:
    """The unreserved resources of each node, by node id."""
    from ray._private import state  # Ray's public API has sums over the cluster only

    free: dict[str, dict[str, float]] = state.available_resources_per_node()
    return free


def usable_cpus(
    free: Mapping[str, Mapping[str, float]], own: Mapping[str, float], bundles: Mapping[str, float]
) -> dict[str, float]:
    """The CPUs of each node that no other driver has reserved, by node id.

    Actors that are still starting are not counted as this driver's own, since Ray may not have reserved their CPUs yet.
    The result may therefore be too low for a moment, but never too high.

    Args:
      free: the unreserved resources, from `free_resources`.
      own: the CPUs of each of this driver's actors, by actor id.
      bundles: the CPUs of this driver's placement groups, by node id.
    """
    import ray
    from ray._private import state  # Ray's public API has sums over the cluster only

    cpus = {node: resources.get("CPU", 0.0) + bundles.get(node, 0.0) for node, resources in free.items()}
    job = ray.JobID(bytes.fromhex(ray.get_runtime_context().get_job_id()))
    for actor, found in state.actors(job_id=job, actor_state_name="ALIVE").items():
        node = found["Address"]["NodeID"]
        if node in cpus:
            cpus[node] += own.get(actor, 0.0)
    return cpus


class CapacityRequest:
    """Tells Ray's autoscaler which processes have no room, through placement groups that no process uses.

    The autoscaler adds nodes for placement groups that Ray cannot place, and Ray removes the groups when their driver
    ends in any way. `ray.autoscaler.sdk.request_resources` would outlive the driver, and all drivers share one request.
    """

    def __init__(self) -> None:
        self._cpus: list[float] = []
        self._beyond: frozenset[str] = frozenset()
        self._groups: list[Any] = []

    def update(self, cpus: Iterable[float], beyond: frozenset[str]) -> None:
        """Replaces the request.

        A node that has just joined may serve the request, which then reserves its CPUs until the node is in `beyond`.
        Whenever `beyond` changes, the request is only withdrawn, so that these CPUs become free; the next update
        asks for what is still missing.

        Args:
          cpus: the CPUs of each process that has no room.
          beyond: the ids of the nodes that cannot serve the request.
        """
        from ray.util.placement_group import placement_group, remove_placement_group

        wanted = sorted(filter(None, cpus)) if beyond == self._beyond else []
        self._beyond = beyond
        if wanted == self._cpus:
            return
        for group in self._groups:
            remove_placement_group(group)
        # No spaces: Ray would take them for parts of the ids.
        selector = {"ray.io/node-id": f"!in({','.join(sorted(beyond))})"} if beyond else {}
        self._groups = [placement_group([{"CPU": amount}], bundle_label_selector=[selector]) for amount in wanted]
        self._cpus = wanted
