"""Starts the processes of a run, each with its resources, environment variables and arguments."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from podzero.config import Experiment
from podzero.runtime.checkpoints import SavedShard
from podzero.runtime.cluster.placement import Node, host_resources
from podzero.runtime.cluster.ray_cluster import Cluster
from podzero.runtime.cluster.remote import RemoteActor
from podzero.runtime.cluster.scheduling import PlacementGroup
from podzero.runtime.cluster.stale_processes import RUN_VARIABLE
from podzero.runtime.processes import EvaluatorProcess, InferenceProcess, LearnerProcess, ReplayProcess
from podzero.runtime.producers import ActorProcess, ReanalysisProcess
from podzero.workdir import Workdir

CPU_ONLY = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
"""Environment of the processes that have no accelerators, so that they leave those of their host to others."""


class Spawner:
    """Starts processes on the nodes that it is given.

    Args:
      cluster: where they run.
      experiment: of the run.
      workdir: of the run.
      store: handle of the parameter store.
      directory: handle of the directory of inference servers; None without such servers.
    """

    def __init__(
        self, cluster: Cluster, experiment: Experiment, workdir: Workdir, store: Any, directory: Any = None
    ) -> None:
        self._cluster = cluster
        self._experiment = experiment
        self._workdir = workdir
        self._store = store
        self._directory = directory
        self._starts: Counter[str] = Counter()
        self._placement_group: PlacementGroup | None = None
        self.begin_run()

    def begin_run(self, step: int = 0) -> None:
        """Assigns a new run id, so that all processes started before count as left by an earlier run.

        Args:
          step: of the checkpoint from which the run goes on. It enters the seeds of the producers: earlier drivers,
            whose counts of starts are gone, gave them the seeds of a run from step 0.
        """
        self.run = uuid.uuid4().hex
        self._step = step

    def shard(self, index: int, node: Node, contents: Sequence[SavedShard], reserve: bool) -> RemoteActor:
        """Starts a replay shard, with the first of `contents` that is whole; it may `reserve` its CPUs and memory."""
        replay = self._experiment.replay
        return self._spawn(
            ReplayProcess,
            f"replay-{index}",
            node,
            cpus=replay.cpus if reserve else 0.0,
            memory=replay.memory_bytes if reserve else 0,
            environment=self._cpu_only(),
            shard=index,
            contents=list(contents),
        )

    def learner(
        self, hosts: Sequence[Node], coordinator: str, shards: Sequence[RemoteActor], restore_from: Path | None
    ) -> list[RemoteActor]:
        """Starts the learner's processes, one on each host, and reserves the resources of all hosts together.

        Args:
          hosts: by rank.
          coordinator: address at which host 0 coordinates the others.
          shards: of replay.
          restore_from: the checkpoint's folder, or None.

        Raises:
          ClusterError: the resources are not free within `cluster.join_minutes`.
        """
        resources, bundles = host_resources(self._experiment.cluster), None
        if resources:
            timeout_s = 60 * self._experiment.cluster.join_minutes
            self._placement_group = self._cluster.reserve(hosts, resources, timeout_s)
            bundles = self._placement_group.bundles
        return [
            self._spawn(
                LearnerProcess,
                "learner" if rank == 0 else f"learner-{rank}",
                node,
                environment={RUN_VARIABLE: self.run},
                bundle=bundles[rank] if bundles else None,
                rank=rank,
                coordinator=coordinator,
                shards=list(shards),
                store=self._store,
                directory=self._directory,
                snapshots=self._workdir.snapshots,
                restore_from=restore_from,
            )
            for rank, node in enumerate(hosts)
        ]

    def producer(
        self,
        process: type[ActorProcess | ReanalysisProcess],
        name: str,
        index: int,
        node: Node,
        cpus: float,
        shards: Sequence[RemoteActor],
    ) -> RemoteActor:
        """Starts an actor or a reanalyser, which produce samples for `shards`."""
        attempt = self._step + self._starts[name]
        self._starts[name] += 1
        plays = process is ActorProcess
        resources = self._experiment.actors.resources if plays else {}
        # XLA sizes its thread pool by NPROC. A group of games that waits for a server holds one thread.
        served = plays and self._experiment.actors.inference == "server"
        threads = max(1, round(cpus), self._experiment.server.groups if served else 0)
        return self._spawn(
            process,
            name,
            node,
            cpus=cpus,
            resources=resources,
            environment=self._environment(resources, threads),
            index=index,
            attempt=attempt,
            shards=list(shards),
            store=self._store,
            directory=self._directory,
        )

    def server(self, name: str, node: Node) -> RemoteActor:
        """Starts an inference server on a node, with its resources."""
        server = self._experiment.server
        return self._spawn(
            InferenceProcess,
            name,
            node,
            cpus=server.cpus,
            resources=server.resources,
            environment=self._environment(server.resources, max(1, round(server.cpus))),
            store=self._store,
            directory=self._directory,
        )

    def evaluator(self, name: str, node: Node, ladder: dict[str, Any]) -> RemoteActor:
        """Starts the evaluator, which continues the rating `ladder`."""
        cpus = self._experiment.evaluation.cpus
        return self._spawn(
            EvaluatorProcess,
            name,
            node,
            cpus=cpus,
            environment=self._cpu_only(),
            snapshots=self._workdir.snapshots,
            games=self._workdir.games,
            ladder=ladder,
        )

    def release(self) -> None:
        """Gives the reserved resources back."""
        if self._placement_group is not None:
            self._placement_group.release()
        self._placement_group = None

    def _spawn(
        self,
        process: type,
        name: str,
        node: Node,
        *,
        environment: dict[str, str],
        cpus: float = 0.0,
        **arguments: Any,
    ) -> RemoteActor:
        return self._cluster.spawn(
            process, name, cpus=cpus, environment=environment, node=node, experiment=self._experiment, **arguments
        )

    def _environment(self, resources: Mapping[str, float], threads: int) -> dict[str, str]:
        """That of a process of self-play: on its accelerators or, without, on so many threads of CPUs."""
        return {RUN_VARIABLE: self.run} if resources else self._cpu_only() | {"NPROC": str(threads)}

    def _cpu_only(self) -> dict[str, str]:
        return CPU_ONLY | {RUN_VARIABLE: self.run}
