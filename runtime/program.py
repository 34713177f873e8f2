"""The program of a run: every kind of process that it starts, in one table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from podzero.config import Experiment
from podzero.runtime import kinds
from podzero.runtime.cluster.placement import Reservation, described, host_resources
from podzero.runtime.cluster.preflight import CPU_ONLY
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S, START_TIMEOUT_S
from podzero.runtime.process import Handle, Parameters, Replay, Servers, Snapshots


class SilenceLimit(NamedTuple):
    """How long a worker may be silent before it is replaced; later, what takes `FACTOR` of its usual times is, too."""

    first_s: float = BUILD_TIMEOUT_S + START_TIMEOUT_S
    """Longest wait for the first answer to a request for its reports, in seconds: Ray may look for a node, libraries
    load, and replay is restored."""
    later_s: float = 300.0
    """Least wait for each later answer, in seconds."""
    first_work_s: float = 3600.0
    """Longest time from then to the first report of its work, in seconds: programs are compiled."""
    work_s: float = 600.0
    """Least time between two such reports, in seconds. A worker that says that it waits for others is not silent."""
    advice: str = ""
    """What the user should check if it never answered."""


USUAL = SilenceLimit()


FEW_ARENAS = {"MALLOC_ARENA_MAX": "2"}
"""Of long-lived processes with many threads: by default what is freed leaves gaps in up to 8 arenas per core."""


@dataclass(frozen=True, kw_only=True)
class Kind(Reservation):
    """The processes of one kind: a row of the table.

    Attributes:
      name: the kind. Its processes are called `NAME-0`, `NAME-1`, ...; the first learner and the evaluator just `NAME`.
      process: makes a process from its name, context, index and attempt: its class, with its handles of other kinds.
      environment: the environment variables of each process.
      ahead: how many start before the kinds further down the table; the rest start last. None: all of them.
      work: the metric whose report shows that a process goes on; a count that is not zero, that it has worked.
      silence_limit: how long a process may be silent before it is replaced.
      restart: what starts again when a process is lost: it `alone`, wherever there is room; it `with contents` of the
        newest checkpoint, on any node; or all of its kind `together`, from the newest checkpoint.
    """

    process: partial[Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    ahead: int | None = None
    work: str = ""
    silence_limit: SilenceLimit = USUAL
    restart: Literal["alone", "with contents", "together"]

    @property
    def handles(self) -> list[Handle]:
        """The handles of other kinds that each process gets."""
        return [handle for handle in self.process.keywords.values() if isinstance(handle, Handle)]

    @property
    def reaches(self) -> set[str]:
        """The kinds that its processes reach."""
        return {handle.kind for handle in self.handles}

    @property
    def names(self) -> list[str]:
        """The processes' names, in the order of their indices."""
        numbered = [f"{self.name}-{index}" for index in range(self.count)]
        return [self.name, *numbered[1:]] if self.name in ("learner", "evaluator") else numbered


def program(experiment: Experiment) -> tuple[Kind, ...]:
    """The processes of an experiment, in the order in which they start; kinds that it does not use have count 0."""
    replay, server, actors, reanalyse = experiment.replay, experiment.server, experiment.actors, experiment.reanalyse
    cluster, shards, players = experiment.cluster, experiment.replay_shards, experiment.actor_processes
    beside = actors.beside_learner and experiment.has_self_play
    learners, servers, hosts = cluster.learner_hosts, experiment.server_processes, host_resources(cluster)
    served, played = actors.inference == "server", "samples, states" if reanalyse.processes else "samples"
    returned = [*(["priorities"] if replay.sampler == "prioritized" else []), *([played] if beside else [])]
    earlier = any(opponent.who == "earlier" for opponent in actors.opponents)
    network = Servers(kind="learner" if server.beside_learner else "inference") if served else Parameters()
    memory = _gpu_memory(experiment)
    return (
        Kind(
            "replay", shards, process=partial(kinds.ReplayProcess), plural="replay shards", needed=shards,
            cpus=replay.cpus, settings="replay.cpus", environment=CPU_ONLY,
            work="replay/size",
            # A server that swaps, or whose disk is slow, still holds its samples; a new one would have older ones.
            silence_limit=SilenceLimit(first_work_s=math.inf, work_s=150.0),
            restart="with contents",  # its users connect again
        ),
        Kind(
            "learner", learners, plural="learners", needed=learners, cpus=hosts.get("CPU", 0.0), resources=hosts,
            process=partial(kinds.LearnerProcess, replay=Replay(receives="batches", sends=", ".join(returned))),
            environment=FEW_ARENAS | memory,
            work="time/step",
            restart="together",
        ),
        Kind(
            "inference", servers, plural="inference servers", needed=servers,
            process=partial(kinds.InferenceProcess, parameters=Parameters()),
            cpus=server.cpus, resources=server.resources,
            settings=f"server.count or server.{'resources' if server.resources else 'cpus'}",
            environment=_environment(server.resources, max(1, round(server.cpus)), memory),
            work="count/served",
            restart="alone",  # actors wait, or ask another server
            silence_limit=SilenceLimit(START_TIMEOUT_S, server.hang_s, advice=_advice("server", server.resources)),
        ),
        Kind(
            "reanalyser", reanalyse.processes, plural="reanalysers",
            needed=min(reanalyse.processes, 1), cpus=actors.cpus, settings="actors.cpus",
            process=partial(
                kinds.ReanalysisProcess, parameters=Parameters(), replay=Replay(receives="states", sends="new targets")
            ),
            environment=_environment({}, max(1, round(actors.cpus)), {}),
            ahead=1,  # training needs the samples of one reanalyser, but no actor should wait for the others
            work="count/reanalysed",
            restart="alone",  # with other random numbers
        ),
        Kind(
            "actor", players, plural="actors", needed=experiment.first_actors,
            process=partial(
                kinds.ActorProcess, replay=Replay(sends=played), network=network,
                opponents=Snapshots(receives="snapshots" if earlier else "") if actors.opponents else None,
            ),
            cpus=actors.cpus, resources=actors.resources,
            settings=f"actors.count, actors.{'resources' if actors.resources else 'cpus'} or actors.min_count",
            # Each group of games that waits for a server holds a thread.
            environment=_environment(
                actors.resources, max(1, round(actors.cpus), server.groups if served else 0), memory
            ),
            work="count/moves",
            restart="alone",  # with other games; unfinished games are lost
            silence_limit=SilenceLimit(START_TIMEOUT_S, advice=_advice("actors", actors.resources))
            if actors.resources else USUAL,
        ),
        Kind(
            "evaluator", 1, plural="evaluators", needed=0, cpus=experiment.evaluation.cpus,
            environment=CPU_ONLY | FEW_ARENAS,
            process=partial(kinds.EvaluatorProcess, snapshots=Snapshots()),
            ahead=0,  # training needs no ratings
            work="evaluation/step",
            silence_limit=SilenceLimit(first_work_s=math.inf, work_s=math.inf),  # a round may take long
            restart="alone",  # with the ratings so far
        ),
    )  # fmt: skip


def reserved_cpus(experiment: Experiment) -> list[float]:
    """The CPUs that each process reserves, except the learner's."""
    return [kind.cpus for kind in program(experiment) if kind.name != "learner" for _ in range(kind.count)]


def start_order(table: Iterable[Kind]) -> list[tuple[Kind, int]]:
    """The steps of a start: in each, a kind is filled up to a number of processes."""
    rows = list(table)
    first = [(kind, kind.count if kind.ahead is None else min(kind.ahead, kind.count)) for kind in rows]
    return first + [(kind, kind.count) for kind in rows if kind.ahead is not None]


def _environment(resources: Mapping[str, float], threads: int, memory: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that uses its accelerators if it reserves any, else this number of threads."""
    return {**memory} if resources else CPU_ONLY | {"NPROC": str(threads)}  # XLA sizes its thread pool by NPROC


def _gpu_memory(experiment: Experiment) -> dict[str, str]:
    """The variables by which processes on one GPU share its memory, most of which JAX gives to the first by default."""
    shares = [each.resources.get("GPU", 0.0) for each in (experiment.server, experiment.actors)]
    learner = host_resources(experiment.cluster).get("GPU", 0.0)
    # Without a reservation the learner uses all GPUs of its host.
    shared = any(shares) and (not learner or any(share % 1 for share in (learner, *shares)))
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if shared else {}


def _advice(section: str, resources: Mapping[str, float]) -> str:
    """What the user should check about a process that never answers."""
    if not resources:
        return "is its node overloaded?"
    return f"does another run hold {described(resources)} of its node ({section}.resources)?"
