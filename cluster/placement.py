"""Which machine does what: pure choices over the nodes of a cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from podzero.chips import Slice, find_slice
from podzero.config import ClusterConfig, Experiment
from podzero.errors import ConfigError

TPU = "TPU"
"""Ray's resource of TPU chips."""
SLICE_NAME, WORKER_ID, POD_TYPE = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id", "ray.io/tpu-pod-type"
"""Labels that Ray puts on the hosts of a slice: its name, the host's number in it, and what it is, as `v4-16`."""


class Node(NamedTuple):
    """A machine of the cluster, or what stands for one."""

    id: str
    host: str
    """Name or IP by which other nodes reach it."""
    cpus: float
    resources: Mapping[str, float]
    """Everything that Ray counts there."""
    labels: Mapping[str, str]

    def __str__(self) -> str:
        return f"node {self.id[:8]} at {self.host}"


class Missing(LookupError):
    """Machines that a run needs and that have not joined; the message says which."""


class Machines(NamedTuple):
    """Where the parts of a run go."""

    learner: tuple[Node, ...]
    """One for each learner host, by rank."""
    shards: tuple[Node, ...]
    """One for each replay shard."""


def choose(nodes: Sequence[Node], experiment: Experiment, home: str) -> Machines:
    """Where learner and replay go, once there is also room for the first actors, and a reanalyser if there are any.

    Args:
      nodes: the nodes that may be used.
      experiment: whose roles are placed.
      home: id of the driver's node, where the learner goes if nothing else decides.

    Raises:
      Missing: machines have not joined yet.
    """
    config = experiment.cluster
    learner = learner_nodes(nodes, config, home)
    playing = playing_nodes(nodes, config)
    _check_room(playing, experiment)
    by_size = sorted(playing, key=lambda node: (-node.cpus, node.id))
    shards = tuple(by_size[index % len(by_size)] for index in range(experiment.replay.shards))
    return Machines(learner, shards)


def _check_room(nodes: Sequence[Node], experiment: Experiment) -> None:
    """Raises `Missing` if the first actors, and the first reanalyser, have no room on `nodes`."""
    actors, reanalyse = experiment.actors, experiment.reanalyse
    cpus = f"the nodes for actors have {sum(node.cpus for node in nodes):g} CPUs"
    first = actor_places(nodes, {}, reanalyse.cpus, min(reanalyse.processes, 1))
    if reanalyse.processes and not first:
        raise Missing(f"{cpus}, no room for a reanalyser of {reanalyse.cpus:g} (reanalyse.cpus)")
    least = actors.min_count or actors.count
    places = len(actor_places(nodes, {node.id: reanalyse.cpus for node in first}, actors.cpus, least))
    if places < least:
        beside = " beside a reanalyser" if first else ""
        raise Missing(
            f"{cpus}, room for {places} of {least} actors of {actors.cpus:g} CPUs{beside}; add nodes, or lower "
            "actors.count, actors.cpus or actors.min_count"
        )


def reserved_cpus(experiment: Experiment) -> list[float]:
    """CPUs of each process that reserves some: actors, reanalysers and evaluator."""
    actors, reanalyse = experiment.actors, experiment.reanalyse
    return [
        *[actors.cpus] * actors.count,
        *[reanalyse.cpus] * reanalyse.processes,
        experiment.evaluation.cpus,
    ]


def learner_nodes(nodes: Sequence[Node], config: ClusterConfig, home: str) -> tuple[Node, ...]:
    """The nodes of the learner's hosts, by rank.

    Raises:
      Missing: they have not all joined.
    """
    if config.tpu is not None:
        return _slice_nodes(nodes, config.tpu)
    able = [node for node in nodes if _offers(node, config.host_resources)]
    if len(able) < config.learner_hosts:
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in config.host_resources.items()) or "any"
        raise Missing(
            f"the learner needs {config.learner_hosts} host(s) (cluster.hosts) with {wanted} resources; "
            f"{len(able)} of {len(nodes)} nodes are such"
        )
    able.sort(key=lambda node: (node.id != home, -node.cpus, node.id))
    return tuple(able[: config.learner_hosts])


def playing_nodes(nodes: Sequence[Node], config: ClusterConfig) -> list[Node]:
    """The nodes for actors, replay and evaluation: those without TPUs, unless the experiment says otherwise.

    A node that offers no CPUs, as heads often do, is left alone.

    Raises:
      Missing: there is none.
    """
    if len(nodes) == 1:
        return list(nodes)
    able = [node for node in nodes if node.cpus]
    if config.actors_on_tpu_hosts:
        return able
    playing = [node for node in able if not node.resources.get(TPU)]
    if not playing:
        raise Missing(
            f"all {len(able)} nodes that offer CPUs are TPU hosts; add CPU nodes, or let actors use the CPUs of TPU "
            "hosts with cluster.actors_on_tpu_hosts=true"
        )
    return playing


def actor_places(nodes: Sequence[Node], taken: Mapping[str, float], cpus: float, count: int) -> list[Node]:
    """Nodes for up to `count` more processes of `cpus` each, the emptiest first.

    Args:
      nodes: where they may go.
      taken: CPUs that this run uses already, by node id.
      cpus: of one of them.
      count: how many are wanted.
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


def host_resources(config: ClusterConfig) -> dict[str, float]:
    """What each learner process reserves."""
    if config.host_resources or config.tpu is None:
        return dict(config.host_resources)
    return {TPU: float(_chips_per_host(config.tpu))}


def _slice_nodes(nodes: Sequence[Node], wanted: Slice) -> tuple[Node, ...]:
    """The hosts of a complete slice of the wanted kind, by worker id."""
    found: dict[str, dict[int, Node]] = defaultdict(dict)
    for node in nodes:
        if _kind(node) == wanted and node.resources.get(TPU, 0.0) >= _chips_per_host(wanted):
            found[node.labels[SLICE_NAME]][int(node.labels[WORKER_ID])] = node
    for _, hosts in sorted(found.items()):
        if set(range(wanted.hosts)) <= hosts.keys():
            return tuple(hosts[rank] for rank in range(wanted.hosts))
    raise Missing(_missing_hosts(nodes, wanted, found))


def _kind(node: Node) -> Slice | None:
    """The kind of slice that a node says it belongs to."""
    if not {SLICE_NAME, WORKER_ID, POD_TYPE} <= node.labels.keys():
        return None
    try:
        return find_slice(node.labels[POD_TYPE])
    except ConfigError:
        return None


def _missing_hosts(nodes: Sequence[Node], wanted: Slice, found: Mapping[str, Mapping[int, Node]]) -> str:
    need = (
        f"{wanted.short_name} has {wanted.hosts} hosts with {_chips_per_host(wanted)} chips each (Ray's TPU resource)"
    )
    if not found:
        tpus = dict.fromkeys(_tpu_words(node) for node in nodes if node.resources.get(TPU))
        offer = f"only {', '.join(tpus)}" if tpus else "no TPU at all"
        return f"{need}; the {len(nodes)} node(s) of the cluster offer {offer}"
    parts = [
        f"of slice '{name}' host(s) {_numbers(set(range(wanted.hosts)) - hosts.keys())} have not joined, "
        f"{_numbers(hosts.keys())} have"
        for name, hosts in sorted(found.items())
    ]
    return f"{need}; {'; '.join(parts)}"


def _tpu_words(node: Node) -> str:
    """What a host that is of no use to the run says of its chips."""
    unlabelled = "" if SLICE_NAME in node.labels else f" without label {SLICE_NAME}"
    return f"{node.labels.get(POD_TYPE, 'an unnamed TPU')} with {node.resources[TPU]:g} chips{unlabelled}"


def _numbers(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def _chips_per_host(wanted: Slice) -> int:
    return wanted.chips // wanted.hosts


def _offers(node: Node, resources: Mapping[str, float]) -> bool:
    return all(node.resources.get(name, 0.0) >= amount for name, amount in resources.items())
