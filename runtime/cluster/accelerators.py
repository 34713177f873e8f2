"""Chooses nodes for processes of self-play that reserve accelerators: pure functions of nodes and experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from podzero.config import ClusterConfig, Experiment
from podzero.runtime.cluster.placement import MissingNodes, Node, actor_places, added, host_resources

MANY = 1_000_000
"""Processes on a node that ask for nothing but CPUs."""


def check_accelerators(nodes: Sequence[Node], experiment: Experiment) -> None:
    """Checks that `nodes`, by `without_learner`, have the resources of all inference servers, and of the first actors.

    Raises:
      MissingNodes: they lack some; the message says which.
    """
    for section, what, resources, count in (
        ("server", "inference server(s)", experiment.server.resources, experiment.server_processes),
        ("actors", "actor(s)", experiment.actors.resources, experiment.actors.first_processes),
    ):
        room = sum(_processes_on(node, resources) for node in nodes)
        if resources and room < count:
            raise MissingNodes(
                f"{count} {what} with {described(resources)} each ({section}.resources, {section}.count); the nodes "
                f"have room for {room} beside the learner"
            )


def described(resources: Mapping[str, float]) -> str:
    """Resources in words, as `4 TPU`; empty for none."""
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def without_learner(nodes: Sequence[Node], learner: Sequence[Node], config: ClusterConfig) -> list[Node]:
    """The nodes without the CPUs and other resources that the learner reserves on its hosts."""
    reserved, hosts = host_resources(config), {node.id for node in learner}

    def left(node: Node) -> Node:
        resources = {name: amount - reserved.get(name, 0.0) for name, amount in node.resources.items()}
        return node._replace(cpus=node.cpus - reserved.get("CPU", 0.0), resources=resources)

    return [left(node) if node.id in hosts else node for node in nodes]


def accelerator_places(
    nodes: Sequence[Node],
    taken: Mapping[str, float],
    running: Mapping[str, int],
    cpus: float,
    resources: Mapping[str, float],
    count: int,
) -> list[Node]:
    """Nodes for up to `count` more processes, always the one with most free CPUs of those with the resources.

    Args:
      nodes: the nodes to choose from, by `without_learner` if there are resources.
      taken: CPUs that this run has reserved already, by node id.
      running: the number of processes of this kind, by node id.
      cpus: CPUs that each process reserves.
      resources: other resources that each process reserves.
      count: the number of processes.
    """
    total = Counter(running)
    places: list[Node] = []
    for _ in range(count):
        able = [node for node in nodes if total[node.id] < _processes_on(node, resources)]
        place = actor_places(able, taken, cpus, 1)
        if not place:
            break
        places += place
        total[place[0].id] += 1
        taken = added(taken, place, cpus)
    return places


def _processes_on(node: Node, resources: Mapping[str, float]) -> int:
    """How many processes the resources of a node allow, its CPUs aside."""
    return int(min((node.resources.get(name, 0.0) // amount for name, amount in resources.items()), default=MANY))
