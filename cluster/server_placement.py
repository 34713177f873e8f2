"""Chooses nodes for inference servers: pure functions over a description of the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from podzero.cluster.placement import MissingNodes, Node, actor_places, added, host_resources
from podzero.config import ClusterConfig, Experiment, ServerConfig

MANY = 1_000_000
"""Servers on a node that ask for nothing but CPUs."""


def check_servers(nodes: Sequence[Node], experiment: Experiment) -> None:
    """Checks that `nodes`, by `without_learner`, have the resources of all inference servers.

    Raises:
      MissingNodes: they lack some; the message says which.
    """
    resources, count = experiment.server.resources, experiment.server_processes
    if not resources or not count:
        return
    room = sum(_servers_on(node, resources) for node in nodes)
    if room < count:
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in resources.items())
        raise MissingNodes(
            f"{count} inference server(s) with {wanted} each (server.resources, server.count); the nodes have room for "
            f"{room} beside the learner"
        )


def _servers_on(node: Node, resources: Mapping[str, float]) -> int:
    """How many servers the resources of a node allow, its CPUs aside."""
    return int(min((node.resources.get(name, 0.0) // amount for name, amount in resources.items()), default=MANY))


def without_learner(nodes: Sequence[Node], learner: Sequence[Node], config: ClusterConfig) -> list[Node]:
    """The nodes without the CPUs and other resources that the learner reserves on its hosts."""
    reserved, hosts = host_resources(config), {node.id for node in learner}

    def left(node: Node) -> Node:
        resources = {name: amount - reserved.get(name, 0.0) for name, amount in node.resources.items()}
        return node._replace(cpus=node.cpus - reserved.get("CPU", 0.0), resources=resources)

    return [left(node) if node.id in hosts else node for node in nodes]


def server_places(
    nodes: Sequence[Node], taken: Mapping[str, float], servers: Mapping[str, int], config: ServerConfig, count: int
) -> list[Node]:
    """Nodes for up to `count` more inference servers, always the one with most free CPUs of those with the resources.

    Args:
      nodes: the nodes to choose from, by `without_learner`.
      taken: CPUs that this run has reserved already, by node id.
      servers: the number of servers that run, by node id.
      config: what each server reserves.
      count: the number of servers.
    """
    running = Counter(servers)
    places: list[Node] = []
    for _ in range(count):
        able = [node for node in nodes if running[node.id] < _servers_on(node, config.resources)]
        place = actor_places(able, taken, config.cpus, 1)
        if not place:
            break
        places += place
        running[place[0].id] += 1
        taken = added(taken, place, config.cpus)
    return places
