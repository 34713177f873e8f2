"""Chooses nodes for the processes of a run: pure functions over a description of the cluster."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import NamedTuple

from podzero.config import ClusterConfig
from podzero.core.chips import Slice, find_slice
from podzero.core.errors import ClusterError, ConfigError

TPU, MEMORY = "TPU", "memory"
"""Ray's names for the resources TPU chips and memory (in bytes)."""
SLICE_NAME, WORKER_ID, POD_TYPE = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id", "ray.io/tpu-pod-type"
"""Ray's labels of a slice's hosts: the slice's name, the host's number in it, and the slice's kind, such as `v4-16`."""
MANY = 1_000_000
"""Stands for no limit on the processes of a node."""


class Node(NamedTuple):
    """A node of the Ray cluster."""

    id: str
    host: str
    """The name or IP at which other nodes reach it."""
    cpus: float
    """The CPUs that this run may use there in total: all except those that others have reserved."""
    resources: Mapping[str, float]
    """All resources of the node, reserved or not."""
    labels: Mapping[str, str]
    free: Mapping[str, float] | None = None
    """Unreserved resources, as Ray saw them a moment ago; None if the cluster is not shared."""

    def __str__(self) -> str:
        return f"node {self.id[:8]} at {self.host}"


@dataclass(frozen=True)
class Reservation:
    """What the processes of one kind reserve.

    Attributes:
      count: how many there are if all have room.
      needed: how many must have room before the run starts; 0 if training can do without them.
      plural: what several of them are called.
      settings: the settings that decide how much room they need, for messages.
      cpus: the CPUs that each process reserves.
      resources: the other resources, such as accelerators, that each process reserves.
    """

    name: str
    count: int
    _: KW_ONLY
    needed: int
    plural: str
    settings: str = ""
    cpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)


class MissingNodes(LookupError):
    """The cluster lacks nodes or free resources that a run needs; the message says which."""


class NodesAbsent(ClusterError):
    """The nodes that a run needs have not joined in time; the message says which."""


class HeldByOthers(ClusterError):
    """Other processes of the run hold the resources that its learner needs to restart."""


class ClusterEnded(ClusterError):
    """The only node of a cluster that was started here is gone, and none can join."""


class Placement(NamedTuple):
    """The nodes of learner and replay."""

    learner: tuple[Node, ...]
    """The node of each learner host, by rank."""
    shards: tuple[Node, ...]
    """The node of each replay shard."""


def place(nodes: Sequence[Node], program: Iterable[Reservation], config: ClusterConfig, driver_node: str) -> Placement:
    """Chooses nodes for learner and replay, and checks that the other kinds have room for the processes they need.

    The kinds of the program are in the order in which they start. The learner prefers the driver's node (its id).
    """
    rows = {row.name: row for row in program}
    learner, replay = rows.pop("learner"), rows.pop("replay")
    hosts = learner_nodes(nodes, config, driver_node)
    left = without_learner(nodes, hosts, learner.resources)
    candidates = without_learner(actor_nodes(nodes, config), hosts, learner.resources)
    shards = shard_nodes(candidates, replay)
    taken = added({}, shards, replay.cpus)
    beside = f"beside {len(shards)} replay shard(s) of {replay.cpus:g} CPUs (replay.cpus)"
    for row in rows.values():
        if row.resources:
            room = sum(_processes_on(node, row.resources) for node in left)
            missing = f"{row.plural} with {described(row.resources)} each beside the learner"
            nodes_have = "the nodes have"
        else:
            places = actor_places(candidates, taken, row.cpus, row.needed)
            room, taken = len(places), added(taken, places, row.cpus)
            missing = f"{row.plural} of {row.cpus:g} CPUs {beside}"
            nodes_have = f"the nodes for actors have {sum(node.cpus for node in candidates):g} free CPUs,"
            beside += f", {room} {row.plural}" if room else ""
        if room < row.needed:
            raise MissingNodes(
                f"{nodes_have} room for {room} of {row.needed} {missing}; add nodes, or lower {row.settings}"
            )
    return Placement(hosts, shards)


def learner_nodes(nodes: Sequence[Node], config: ClusterConfig, driver_node: str) -> tuple[Node, ...]:
    """The nodes of the learner's hosts, by rank; prefers those whose resources are not reserved by others."""
    if config.tpu is not None:
        return _slice_nodes(nodes, config.tpu, config)
    able = [node for node in nodes if covers(node.resources, config.host_resources)]
    if len(able) < config.learner_hosts:
        wanted = described(config.host_resources) or "any"
        raise MissingNodes(
            f"the learner needs {config.learner_hosts} host(s) (cluster.hosts) with {wanted} resources; "
            f"{len(able)} of {len(nodes)} nodes have them"
        )
    able.sort(key=lambda node: (not _is_free(node, config), node.id != driver_node, -node.cpus, node.id))
    return tuple(able[: config.learner_hosts])


def actor_nodes(nodes: Sequence[Node], config: ClusterConfig) -> list[Node]:
    """The nodes for actors, replay and evaluation: those without TPUs, unless the experiment says otherwise.

    Leaves out nodes without CPUs for this run, as a cluster's head often is.
    """
    # A node alone runs everything, even if it has TPUs.
    if len(nodes) == 1:
        return list(nodes)
    able = [node for node in nodes if node.cpus > 0]
    if config.actors_on_tpu_hosts:
        return able
    without_tpus = [node for node in able if not node.resources.get(TPU)]
    if not without_tpus:
        raise MissingNodes(
            f"all {len(able)} nodes with free CPUs are TPU hosts; add CPU nodes, or let actors use the CPUs of TPU "
            "hosts with cluster.actors_on_tpu_hosts=true"
        )
    return without_tpus


def shard_nodes(nodes: Sequence[Node], replay: Reservation) -> tuple[Node, ...]:
    """A node for each replay shard: spreads them as far as there is room, the largest nodes first."""
    shards = Counter[str]()
    chosen: list[Node] = []
    for _ in range(replay.count):
        able = [node for node in nodes if node.cpus >= (shards[node.id] + 1) * replay.cpus]
        if not able:
            raise MissingNodes(
                f"the nodes for actors have {sum(node.cpus for node in nodes):g} free CPUs, room for {len(chosen)} of "
                f"{replay.count} {replay.plural} of {replay.cpus:g} CPUs; add nodes, or lower {replay.settings}"
            )
        chosen.append(with_fewest(able, shards))
        shards[chosen[-1].id] += 1
    return tuple(chosen)


def with_fewest(nodes: Sequence[Node], shards: Mapping[str, int]) -> Node:
    """The node with the fewest `shards`, by node id; of several the largest."""
    return min(nodes, key=lambda node: (shards.get(node.id, 0), -node.cpus, node.id))


def without_learner(nodes: Sequence[Node], hosts: Sequence[Node], resources: Mapping[str, float]) -> list[Node]:
    """The nodes with what the learner leaves of them: on each of its `hosts` it reserves `resources`, CPUs included."""
    ids = {node.id for node in hosts}

    def left(node: Node) -> Node:
        remaining = {name: amount - resources.get(name, 0.0) for name, amount in node.resources.items()}
        return node._replace(cpus=node.cpus - resources.get("CPU", 0.0), resources=remaining)

    return [left(node) if node.id in ids else node for node in nodes]


def actor_places(
    nodes: Sequence[Node],
    taken: Mapping[str, float],
    cpus: float,
    count: int,
    resources: Mapping[str, float] = MappingProxyType({}),
    running: Mapping[str, int] = MappingProxyType({}),
) -> list[Node]:
    """Nodes for up to `count` more processes: for each, of those with room for it, the node with the most free CPUs.

    Each needs these `cpus` and other `resources`; for such, `nodes` are those by `without_learner`. By node id, `taken`
    are the CPUs that this run has reserved, and `running` the processes of this kind that there are.
    """
    ranked = enumerate(sorted(nodes, key=lambda node: node.id, reverse=True))
    room = {node.id: _processes_on(node, resources) - running.get(node.id, 0) for node in nodes}
    # The free CPUs are negative, so that the most come first.
    left = [(taken.get(node.id, 0.0) - node.cpus, rank, node) for rank, node in ranked]
    heapify(left)
    places: list[Node] = []
    while left and len(places) < count:
        free, rank, node = heappop(left)
        if -free >= cpus and room[node.id] > 0:
            places.append(node)
            room[node.id] -= 1
            heappush(left, (free + cpus, rank, node))
    return places


def _processes_on(node: Node, resources: Mapping[str, float]) -> int:
    """How many processes fit on a node by its resources, ignoring CPUs."""
    return int(min((node.resources.get(name, 0.0) // amount for name, amount in resources.items()), default=MANY))


def without_room(nodes: Sequence[Node], taken: Mapping[str, float], cpus: Iterable[float]) -> list[float]:
    """The CPUs of those processes, each of which needs some of `cpus`, for which `nodes` have no room."""
    left = []
    for amount, count in sorted(Counter(cpus).items(), reverse=True):
        places = actor_places(nodes, taken, amount, count)
        taken = added(taken, places, amount)
        left += [amount] * (count - len(places))
    return left


def added(taken: Mapping[str, float], places: Iterable[Node], cpus: float) -> dict[str, float]:
    """`taken` with `cpus` more for each of `places`."""
    total = defaultdict(float, taken)
    for node in places:
        total[node.id] += cpus
    return total


def described(resources: Mapping[str, float]) -> str:
    """Resources in words, such as `4 TPU`; empty for none."""
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def host_resources(config: ClusterConfig) -> dict[str, float]:
    """The resources that each learner process reserves."""
    if config.host_resources or config.tpu is None:
        return dict(config.host_resources)
    return {TPU: float(config.tpu.chips_of_host)}


def _slice_nodes(nodes: Sequence[Node], wanted: Slice, config: ClusterConfig) -> tuple[Node, ...]:
    """The hosts of `cluster.slices` complete slices of this kind, by slice and worker id; prefers free slices."""
    found: dict[str, dict[int, Node]] = defaultdict(dict)
    for node in nodes:
        if _kind(node) == wanted and node.resources.get(TPU, 0.0) >= wanted.chips_of_host:
            found[node.labels[SLICE_NAME]][int(node.labels[WORKER_ID])] = node
    ranks = range(wanted.hosts)
    complete = [[hosts[rank] for rank in ranks] for _, hosts in sorted(found.items()) if set(ranks) <= hosts.keys()]
    if len(complete) < config.slices:
        several = (
            "" if config.slices == 1 else f"{len(complete)} of {config.slices} slices (cluster.slices) are there: "
        )
        raise MissingNodes(several + _missing_hosts(nodes, wanted, found))
    complete.sort(key=lambda hosts: sum(not _is_free(node, config) for node in hosts))
    return tuple(node for hosts in complete[: config.slices] for node in hosts)


def _kind(node: Node) -> Slice | None:
    """The kind of slice that the node's labels name, if any."""
    if not {SLICE_NAME, WORKER_ID, POD_TYPE} <= node.labels.keys():
        return None
    try:
        return find_slice(node.labels[POD_TYPE])
    except ConfigError:
        return None


def _missing_hosts(nodes: Sequence[Node], wanted: Slice, found: Mapping[str, Mapping[int, Node]]) -> str:
    needed = f"{wanted.short_name} has {wanted.hosts} hosts with {wanted.chips_of_host} chips each (Ray's TPU resource)"
    if not found:
        tpus = dict.fromkeys(
            f"{node.labels.get(POD_TYPE, 'an unnamed TPU')} with {node.resources[TPU]:g} chips"
            + ("" if SLICE_NAME in node.labels else f" without label {SLICE_NAME}")
            for node in nodes
            if node.resources.get(TPU)
        )
        present = f"only {', '.join(tpus)}" if tpus else "no TPUs"
        return f"{needed}; the {len(nodes)} node(s) of the cluster have {present}"
    parts = []
    for name, hosts in sorted(found.items()):
        if missing := ", ".join(str(rank) for rank in range(wanted.hosts) if rank not in hosts):
            joined = ", ".join(map(str, sorted(hosts)))
            parts.append(f"of slice '{name}' host(s) {missing} have not joined, {joined} have")
    return "; ".join([needed, *parts])


def _is_free(node: Node, config: ClusterConfig) -> bool:
    """Whether nobody has reserved what a learner process needs there."""
    return node.free is None or covers(node.free, host_resources(config))


def covers(resources: Mapping[str, float], needed: Mapping[str, float]) -> bool:
    """Whether there is as much as is needed of each of the resources."""
    return all(resources.get(name, 0.0) >= amount for name, amount in needed.items())
