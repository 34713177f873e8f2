"""The program of a run: every kind of process that it starts, in one table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from podzero.config import Experiment
from podzero.runtime.cluster.accelerators import described
from podzero.runtime.cluster.placement import host_resources
from podzero.runtime.cluster.remote import START_TIMEOUT_S
from podzero.runtime.processes.actor import ActorProcess
from podzero.runtime.processes.evaluator import EvaluatorProcess
from podzero.runtime.processes.inference import InferenceProcess
from podzero.runtime.processes.learner import LearnerProcess
from podzero.runtime.processes.process import Process
from podzero.runtime.processes.reanalyser import ReanalysisProcess
from podzero.runtime.processes.replay import ReplayProcess

CPU_ONLY = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
"""Environment of the processes without accelerators, so that they leave those of their host to others."""


class Patience(NamedTuple):
    """How long a worker may leave a request for its reports unanswered."""

    first_s: float
    """Seconds until its first answer: Ray may look for a node, and libraries load."""
    later_s: float
    """Seconds until each later one."""
    advice: str
    """What to do if it never answered at all."""


@dataclass(frozen=True)
class Kind:
    """The processes of one kind: a row of the table.

    Attributes:
      name: the kind; its processes are `NAME-0`, `NAME-1` and so on, the first learner and the evaluator plain `NAME`.
      process: what each of them is.
      count: how many there are when all have room.
      cpus: CPUs that each reserves.
      memory: bytes of memory that each reserves.
      resources: accelerators that each reserves.
      environment: environment variables of each.
      fed_by: what the processes get from other kinds, by the kind that it comes from.
      ahead: how many start before the kinds below in the table; the rest start after them. None for all.
      patience: how long one may be silent before it is replaced; None for ever.
      restart: what the loss of one means for the run.
    """

    name: str
    process: type[Process]
    count: int
    cpus: float = 0.0
    memory: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    fed_by: Mapping[str, str] = field(default_factory=dict)
    ahead: int | None = None
    patience: Patience | None = None
    restart: str = ""

    @property
    def names(self) -> list[str]:
        """The names of the processes, by index."""
        numbered = [f"{self.name}-{index}" for index in range(self.count)]
        return [self.name, *numbered[1:]] if self.name in ("learner", "evaluator") else numbered


def program(experiment: Experiment) -> tuple[Kind, ...]:
    """The processes of an experiment, in the order in which they start; a kind that it does not use has count 0."""
    replay, server, actors, reanalyse = experiment.replay, experiment.server, experiment.actors, experiment.reanalyse
    served, hosts = actors.inference == "server", host_resources(experiment.cluster)
    stored = {"reanalyser": "new targets"} if reanalyse.processes else {}
    prioritized = {"learner": "priorities"} if replay.sampler == "prioritized" else {}
    return (
        Kind(
            "replay", ReplayProcess, replay.shards,
            cpus=replay.cpus, memory=replay.memory_bytes, environment=CPU_ONLY,
            fed_by={"actor": "samples, states" if stored else "samples"} | stored | prioritized,
            restart="alone, with the contents of the newest checkpoint; its users connect again",
        ),
        Kind(
            "learner", LearnerProcess, experiment.cluster.learner_hosts,
            cpus=hosts.get("CPU", 0.0), resources=hosts,
            fed_by={"replay": "batches"},
            restart="all processes, from the newest checkpoint",
        ),
        Kind(
            "inference", InferenceProcess, experiment.server_processes,
            cpus=server.cpus, resources=server.resources,
            environment=_environment(server.resources, threads=max(1, round(server.cpus))),
            fed_by={"learner": "parameters", "actor": "positions"},
            patience=Patience(START_TIMEOUT_S, server.hang_s, _advice("server", server.resources)),
            restart="alone; actors wait, or ask another server",
        ),
        Kind(
            "reanalyser", ReanalysisProcess, reanalyse.processes,
            cpus=reanalyse.cpus, environment=_environment({}, threads=max(1, round(reanalyse.cpus))),
            fed_by={"learner": "parameters", "replay": "states"},
            ahead=1,  # training needs the samples of one reanalyser, but no actor should wait for the others
            restart="alone, with other random numbers",
        ),
        Kind(
            "actor", ActorProcess, actors.processes,
            cpus=actors.cpus, resources=actors.resources,
            # Each group of games that waits for a server holds a thread.
            environment=_environment(actors.resources, max(1, round(actors.cpus), server.groups if served else 0)),
            fed_by={"inference": "policies, values"} if served else {"learner": "parameters"},
            patience=Patience(START_TIMEOUT_S, math.inf, _advice("actors", actors.resources))
            if actors.resources else None,
            restart="alone, with other games; unfinished games are lost",
        ),
        Kind(
            "evaluator", EvaluatorProcess, 1,
            cpus=experiment.evaluation.cpus, environment=CPU_ONLY,
            fed_by={"learner": "snapshots"},
            ahead=0,  # training needs no ratings
            restart="alone, with the ratings so far",
        ),
    )  # fmt: skip


def reserved_cpus(experiment: Experiment) -> list[float]:
    """CPUs of each process that reserves some on nodes for actors: of all but the learner's."""
    return [kind.cpus for kind in program(experiment) if kind.name != "learner" for _ in range(kind.count)]


def start_order(kinds: Iterable[Kind]) -> list[tuple[Kind, int]]:
    """The kinds in the order in which they start, each with how many of its processes may run by then."""
    rows = list(kinds)
    first = [(kind, kind.count if kind.ahead is None else min(kind.ahead, kind.count)) for kind in rows]
    return first + [(kind, kind.count) for kind in rows if kind.ahead is not None]


def figure(kinds: Iterable[Kind]) -> str:
    """The processes and what flows between them, as a Mermaid flow chart; kinds without processes are left out."""
    used = {kind.name: kind for kind in kinds if kind.count}
    boxes = [f'    {kind.name}["{kind.name} x {kind.count}"]' for kind in used.values()]
    arrows = [
        f"    {source} -- {what} --> {kind.name}"
        for kind in used.values()
        for source, what in kind.fed_by.items()
        if source in used
    ]
    return "\n".join(["flowchart LR", *boxes, *arrows])


def _environment(resources: Mapping[str, float], threads: int) -> dict[str, str]:
    """Environment of a process of self-play: on its accelerators or, without, on this number of threads.

    XLA sizes its thread pool by NPROC.
    """
    return {} if resources else CPU_ONLY | {"NPROC": str(threads)}


def _advice(section: str, resources: Mapping[str, float]) -> str:
    """What to do about a process that never answers."""
    if not resources:
        return "is its node overloaded?"
    return f"does another run hold {described(resources)} of its node ({section}.resources)?"
