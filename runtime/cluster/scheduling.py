"""Where Ray runs a process: on a node, or in a bundle of a placement group, and with which resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from podzero.errors import ClusterError
from podzero.runtime.cluster.placement import MEMORY, Node


class Bundle(NamedTuple):
    """Resources of one node, reserved for one process."""

    node: Node
    resources: Mapping[str, float]
    strategy: Any
    """Ray's scheduling strategy of a process that takes the bundle."""


class PlacementGroup:
    """Resources on several nodes, reserved together; `bundles` are in the order of the nodes."""

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
        """CPUs that the bundles reserve, by node id; empty once they are released."""
        return {} if self.released else {one.node.id: one.resources.get("CPU", 0.0) for one in self.bundles}

    def release(self) -> None:
        """Releases all bundles and kills the processes in them."""
        from ray.util.placement_group import remove_placement_group

        self.released = True
        remove_placement_group(self._group)


def reserve(nodes: Sequence[Node], resources: Mapping[str, float], timeout_s: float) -> PlacementGroup:
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
            f"waited {timeout_s:.0f} s for {wanted} on each of {', '.join(map(str, nodes))}: another run, or a process "
            "of an earlier one, holds them (`ray status` on the head shows their use)"
        )
    return PlacementGroup(group, nodes, resources)


def node_affinity(node_id: str) -> Any:
    """Ray's scheduling strategy of a process that runs on this node or nowhere."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def resource_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """The options of a Ray actor that reserve `resources`: CPU, GPU and memory have options of their own."""
    custom = dict(resources)
    options = {"num_cpus": custom.pop("CPU", 0.0), "num_gpus": custom.pop("GPU", None)}
    return options | {"memory": custom.pop(MEMORY, None) or None, "resources": custom or None}
