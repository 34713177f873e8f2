"""Chooses nodes for the processes of a run: pure functions over a description of the cluster."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from podzero.chips import Slice, find_slice
from podzero.config import ClusterConfig, Experiment, ReplayConfig
from podzero.errors import ConfigError

TPU, MEMORY = "TPU", "memory"
"""Ray's resources of TPU chips, and of memory in bytes."""
SLICE_NAME, WORKER_ID, POD_TYPE = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id", "ray.io/tpu-pod-type"
"""Labels that Ray puts on the hosts of a slice: its name, the host's number in it, and its kind, such as `v4-16`."""


class Node(NamedTuple):
    """A node of the Ray cluster."""

    id: str
    host: str
    """Name or IP by which other nodes reach it."""
    cpus: float
    """CPUs that this run may use there, its learner and workers together: all but those that others have reserved."""
    resources: Mapping[str, float]
    """All resources of the node, whoever has reserved them."""
    labels: Mapping[str, str]
    free: Mapping[str, float] | None = None
    """Resources that nobody has reserved, as Ray saw them a moment ago; None where the cluster is not shared."""

    def __str__(self) -> str:
        return f"node {self.id[:8]} at {self.host}"


class MissingNodes(LookupError):
    """The cluster lacks nodes, or free CPUs, that a run needs; the message says which."""


class Placement(NamedTuple):
    """The nodes of learner and replay."""

    learner: tuple[Node, ...]
    """One for each learner host, by rank."""
    shards: tuple[Node, ...]
    """One for each replay shard."""


def place(nodes: Sequence[Node], experiment: Experiment, driver_node: str) -> Placement:
    """Chooses nodes for learner and replay, and checks that the first actors and a first reanalyser have room too.

    Args:
      nodes: the nodes that may be used.
      experiment: the experiment of the run.
      driver_node: id of the driver's node, which the learner prefers.

    Raises:
      MissingNodes: the run has no room on `nodes`.
    """
    learner = learner_nodes(nodes, experiment.cluster, driver_node)
    reserved = host_resources(experiment.cluster).get("CPU", 0.0)
    candidates = [
        node._replace(cpus=node.cpus - reserved) if node in learner else node
        for node in actor_nodes(nodes, experiment.cluster)
    ]
    shards = shard_nodes(candidates, experiment.replay)
    _check_room(candidates, shards, experiment)
    return Placement(learner, shards)


def _check_room(nodes: Sequence[Node], shards: Sequence[Node], experiment: Experiment) -> None:
    """Raises `MissingNodes` if the first actors, or the first reanalyser, have no room on `nodes` beside the shards."""
    replay, actors, reanalyse = experiment.replay, experiment.actors, experiment.reanalyse
    free = f"the nodes for actors have {sum(node.cpus for node in nodes):g} free CPUs"
    beside = f"beside {len(shards)} replay shard(s) of {replay.cpus:g} CPUs (replay.cpus)"
    taken = added({}, shards, replay.cpus)
    servers = 0 if experiment.server.resources else experiment.server_processes
    serving = actor_places(nodes, taken, experiment.server.cpus, servers)
    if len(serving) < servers:
        raise MissingNodes(
            f"{free}, room for {len(serving)} of {servers} inference servers of {experiment.server.cpus:g} CPUs "
            f"{beside}; add nodes, or lower server.count or server.cpus"
        )
    taken = added(taken, serving, experiment.server.cpus)
    first = actor_places(nodes, taken, reanalyse.cpus, min(reanalyse.processes, 1))
    if reanalyse.processes and not first:
        raise MissingNodes(f"{free}, no room for a reanalyser of {reanalyse.cpus:g} (reanalyse.cpus) {beside}")
    least = 0 if actors.resources else actors.first_processes
    places = len(actor_places(nodes, added(taken, first, reanalyse.cpus), actors.cpus, least))
    if places < least:
        raise MissingNodes(
            f"{free}, room for {places} of {least} actors of {actors.cpus:g} CPUs {beside}"
            f"{' and a reanalyser' if first else ''}; add nodes, or lower actors.count, actors.cpus or actors.min_count"
        )


def learner_nodes(nodes: Sequence[Node], config: ClusterConfig, driver_node: str) -> tuple[Node, ...]:
    """The nodes of the learner's hosts, by rank; those whose resources others have reserved are taken last.

    Raises:
      MissingNodes: they have not all joined.
    """
    if config.tpu is not None:
        return _slice_nodes(nodes, config.tpu, config)
    able = [node for node in nodes if _has(node, config.host_resources)]
    if len(able) < config.learner_hosts:
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in config.host_resources.items()) or "any"
        raise MissingNodes(
            f"the learner needs {config.learner_hosts} host(s) (cluster.hosts) with {wanted} resources; "
            f"{len(able)} of {len(nodes)} nodes have them"
        )
    able.sort(key=lambda node: (not _is_free(node, config), node.id != driver_node, -node.cpus, node.id))
    return tuple(able[: config.learner_hosts])


def actor_nodes(nodes: Sequence[Node], config: ClusterConfig) -> list[Node]:
    """The nodes for actors, replay and evaluation: those without TPUs, unless the experiment says otherwise.

    A node without CPUs for this run is left out; the head of a cluster often is one.

    Raises:
      MissingNodes: there is none.
    """
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


def shard_nodes(nodes: Sequence[Node], replay: ReplayConfig) -> tuple[Node, ...]:
    """A node for each replay shard, spread as far as there is room, over the largest nodes first.

    Raises:
      MissingNodes: not all shards have room.
    """
    shards = Counter[str]()
    chosen: list[Node] = []
    for _ in range(replay.shards):
        able = [node for node in nodes if _holds(node, replay, shards[node.id] + 1)]
        if not able:
            raise MissingNodes(_missing_shards(nodes, replay, len(chosen)))
        chosen.append(min(able, key=lambda node: (shards[node.id], -node.cpus, node.id)))
        shards[chosen[-1].id] += 1
    return tuple(chosen)


def actor_places(nodes: Sequence[Node], taken: Mapping[str, float], cpus: float, count: int) -> list[Node]:
    """Nodes for up to `count` more processes of `cpus` each, always the node with most free CPUs.

    Args:
      nodes: the nodes to choose from.
      taken: CPUs that this run has reserved already, by node id.
      cpus: CPUs of one process.
      count: the number of processes.
    """
    free = {node.id: node.cpus - taken.get(node.id, 0.0) for node in nodes}
    by_id = {node.id: node for node in nodes}
    places: list[Node] = []
    while len(places) < count and free:
        roomiest = max(free, key=lambda name: (free[name], name))
        if free[roomiest] < cpus:
            break
        free[roomiest] -= cpus
        places.append(by_id[roomiest])
    return places


def without_room(nodes: Sequence[Node], taken: Mapping[str, float], cpus: Iterable[float]) -> list[float]:
    """CPUs of those processes for which `nodes` have no room.

    Args:
      nodes: the nodes that may be used.
      taken: CPUs that this run has reserved already, by node id.
      cpus: CPUs of each process that is to be started.
    """
    left = []
    for amount in sorted(cpus, reverse=True):
        places = actor_places(nodes, taken, amount, 1)
        taken = added(taken, places, amount)
        left += [] if places else [amount]
    return left


def added(taken: Mapping[str, float], places: Iterable[Node], cpus: float) -> dict[str, float]:
    """`taken` with `cpus` more for each of `places`."""
    total = defaultdict(float, taken)
    for node in places:
        total[node.id] += cpus
    return total


def host_resources(config: ClusterConfig) -> dict[str, float]:
    """Resources that each learner process reserves."""
    if config.host_resources or config.tpu is None:
        return dict(config.host_resources)
    return {TPU: float(config.tpu.chips_of_host)}


def _slice_nodes(nodes: Sequence[Node], wanted: Slice, config: ClusterConfig) -> tuple[Node, ...]:
    """The hosts of a complete slice of this kind, by worker id; of a free one, if there is one."""
    found: dict[str, dict[int, Node]] = defaultdict(dict)
    for node in nodes:
        if _kind(node) == wanted and node.resources.get(TPU, 0.0) >= wanted.chips_of_host:
            found[node.labels[SLICE_NAME]][int(node.labels[WORKER_ID])] = node
    ranks = range(wanted.hosts)
    complete = [[hosts[rank] for rank in ranks] for _, hosts in sorted(found.items()) if set(ranks) <= hosts.keys()]
    if not complete:
        raise MissingNodes(_missing_hosts(nodes, wanted, found))
    return tuple(min(complete, key=lambda hosts: sum(not _is_free(node, config) for node in hosts)))


def _missing_shards(nodes: Sequence[Node], replay: ReplayConfig, places: int) -> str:
    memory, wanted, fields = "", "", "replay.cpus"
    if replay.memory_gib:
        memory = f" and {sum(node.resources.get(MEMORY, 0.0) for node in nodes) / 2**30:.1f} GiB of memory"
        wanted, fields = f" and {replay.memory_gib:g} GiB", "replay.cpus or replay.memory_gib"
    return (
        f"the nodes for actors have {sum(node.cpus for node in nodes):g} free CPUs{memory}, room for {places} of "
        f"{replay.shards} replay shards of {replay.cpus:g} CPUs{wanted}; add nodes, or lower {fields}"
    )


def _kind(node: Node) -> Slice | None:
    """The kind of slice that the node's labels name."""
    if not {SLICE_NAME, WORKER_ID, POD_TYPE} <= node.labels.keys():
        return None
    try:
        return find_slice(node.labels[POD_TYPE])
    except ConfigError:
        return None


def _missing_hosts(nodes: Sequence[Node], wanted: Slice, found: Mapping[str, Mapping[int, Node]]) -> str:
    needed = f"{wanted.short_name} has {wanted.hosts} hosts with {wanted.chips_of_host} chips each (Ray's TPU resource)"
    if not found:
        tpus = dict.fromkeys(_describe_tpus(node) for node in nodes if node.resources.get(TPU))
        present = f"only {', '.join(tpus)}" if tpus else "no TPUs"
        return f"{needed}; the {len(nodes)} node(s) of the cluster have {present}"
    parts = [
        f"of slice '{name}' host(s) {_numbers(set(range(wanted.hosts)) - hosts.keys())} have not joined, "
        f"{_numbers(hosts.keys())} have"
        for name, hosts in sorted(found.items())
    ]
    return f"{needed}; {'; '.join(parts)}"


def _describe_tpus(node: Node) -> str:
    """The chips of a host that the run cannot use."""
    unlabelled = "" if SLICE_NAME in node.labels else f" without label {SLICE_NAME}"
    return f"{node.labels.get(POD_TYPE, 'an unnamed TPU')} with {node.resources[TPU]:g} chips{unlabelled}"


def _numbers(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def _holds(node: Node, replay: ReplayConfig, shards: int) -> bool:
    """Whether the node has room for that many replay shards."""
    return node.cpus >= shards * replay.cpus and _has(node, {MEMORY: shards * replay.memory_bytes})


def _has(node: Node, resources: Mapping[str, float]) -> bool:
    return all(node.resources.get(name, 0.0) >= amount for name, amount in resources.items())


def _is_free(node: Node, config: ClusterConfig) -> bool:
    """Whether nobody has reserved what a learner process needs there."""
    free = node.free
    return free is None or all(free.get(name, 0.0) >= amount for name, amount in host_resources(config).items())
