"""The supervisor of a run: starts its workers, keeps them alive, fetches their reports, and ends them in order."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from podzero.config import Experiment
from podzero.runtime.checkpoints import Checkpoint, SavedShard
from podzero.runtime.cluster.accelerators import described
from podzero.runtime.cluster.directory import start_directory
from podzero.runtime.cluster.placement import MEMORY, Node
from podzero.runtime.cluster.ray_cluster import Cluster
from podzero.runtime.cluster.remote import START_TIMEOUT_S, STOP_TIMEOUT_S, RemoteActor
from podzero.runtime.learner_group import LearnerGroup
from podzero.runtime.monitoring.reports import LogReport, MetricsReport
from podzero.runtime.nodes import RunNodes
from podzero.runtime.producers import ActorProcess, ReanalysisProcess
from podzero.runtime.reconcile import Reconciler
from podzero.runtime.replay_shards import ReplayShards
from podzero.runtime.spawner import CPU_ONLY, Spawner
from podzero.runtime.worker import Patience, Worker, await_end, last_reports
from podzero.runtime.worker_group import WorkerGroup
from podzero.workdir import Workdir

log = logging.getLogger(__name__)


class Supervisor:
    """All workers of a run.

    Args:
      cluster: where they run.
      experiment: of the run.
      workdir: of the run.
      store: handle of the parameter store.
      stopping: set when the run shall end, which also ends a wait for nodes.
      home: id of the driver's node.
    """

    def __init__(
        self,
        cluster: Cluster,
        experiment: Experiment,
        workdir: Workdir,
        store: Any,
        stopping: threading.Event,
        home: str,
    ) -> None:
        self.learner: LearnerGroup | None = None
        self.ladder: dict[str, Any] = {}
        """The rating ladder as the evaluator gave it last; a restarted evaluator continues it."""
        self.nodes_since = time.monotonic()
        """Monotonic time at which the nodes of the present workers had joined."""
        self._cluster = cluster
        self._stopping = stopping
        self._nodes = RunNodes(cluster, experiment, home, CPU_ONLY)
        directory = start_directory(home) if experiment.actors.inference == "server" else None
        self._spawner = Spawner(cluster, experiment, workdir, store, directory)
        self.shards = ReplayShards(self._spawn_shard)
        self._servers = self._inference_servers(experiment)
        actors = experiment.actors
        self._actors = self._producers(ActorProcess, "actor", actors.processes, actors.cpus, actors.resources)
        reanalyse = experiment.reanalyse
        self._reanalysers = self._producers(ReanalysisProcess, "reanalyser", reanalyse.processes, reanalyse.cpus)
        self._evaluators = WorkerGroup(
            ["evaluator"],
            experiment.evaluation.cpus,
            lambda name, _, node: self._spawner.evaluator(name, node, self.ladder),
        )
        self._evaluators.wanted = 0
        self._reconciler = Reconciler(
            self._nodes, self.shards, self._servers, self._actors, self._reanalysers, self._evaluators, experiment
        )
        self._shard_cpus, self._shard_memory = experiment.replay.cpus, experiment.replay.memory_bytes

    def start(self, checkpoint: Checkpoint | None) -> None:
        """Starts all workers but the evaluator; returns when replay and learner are built.

        Args:
          checkpoint: from which replay, learner and ratings continue; None starts from nothing.

        Raises:
          CheckpointDamaged: the checkpoint's learner cannot be used; no worker is left running. A replay shard that is
            damaged there takes older contents, or is empty.
          ConfigError, CheckpointMismatch: the experiment cannot be run here; no worker is left running.
          NodesAbsent: nodes did not join in time; the message names them.
          ClusterError, WorkerDied: a worker could not be built; no worker is left running.
        """
        self._spawner.begin_run(checkpoint.step if checkpoint else 0)
        self.ladder = checkpoint.ladder if checkpoint else {}
        nodes = self._nodes.wait(self._stopping)
        self.nodes_since = time.monotonic()
        try:
            contents = [checkpoint.shard(index) if checkpoint else [] for index in range(len(nodes.shards))]
            self.shards.start(nodes.shards, contents)
            folder = checkpoint.folder if checkpoint else None
            with self._nodes.prepared_hosts(nodes.learner, self._spawner.run) as coordinator:
                learners = self._spawner.learner(nodes.learner, coordinator, self.shards.actors, folder)
                self.learner = LearnerGroup([Worker(actor) for actor in learners])
                self._reconciler.scale()
                self.shards.await_ready()
                self.learner.await_ready()
            self.learner.begin()
        except BaseException:
            self.kill()
            raise

    def start_evaluator(self) -> None:
        """Wants an evaluator, which `reconcile` starts where there is room; it needs a first snapshot."""
        self._evaluators.wanted = 1

    @property
    def learning(self) -> bool:
        """Whether the learner trains.

        Raises:
          NodeLost: one of its hosts is gone with its node.
          LearnerFailed: it failed.
        """
        return self.learner is not None and self.learner.working

    def advance(self, share: float) -> None:
        """Tells the learner what share of the run's minutes and games has passed; never waits for it."""
        if self.learner is not None:
            self.learner.advance(share)

    @property
    def evaluator(self) -> Worker | None:
        """The evaluator; None before it has started."""
        return next(iter(self._evaluators.workers.values()), None)

    @property
    def failing(self) -> dict[str, str]:
        """The workers that have failed and not worked since, by name: how often in a row, and their last errors."""
        return self._reconciler.failing

    def reconcile(self, newest: Callable[[], Checkpoint | None]) -> list[str]:
        """Replaces the workers that ended, the learner's excepted, and starts those for which there is room now.

        Args:
          newest: finds the newest checkpoint, from which a shard takes its contents.

        Returns:
          the names of the workers that ended and of the shards that were replaced.

        Raises:
          RunFailed: workers that training needs have failed too often or cannot do what the experiment asks for.
          LearnerFailed: the learner could not be told that a shard moved.
        """
        return self._reconciler.reconcile(self._learners, newest)

    def listen(self) -> Iterator[MetricsReport | LogReport]:
        """The reports of all workers that have arrived since the last call; never waits for a worker."""
        for worker in [*self.shards.workers, *self._reconciler.workers, *self._learners]:
            yield from worker.reports()

    def stop_actors(self) -> list[MetricsReport | LogReport]:
        """Ends actors and reanalysers: asks them to stop, then kills those whose move takes too long; then the servers.

        Returns:
          the last reports of all of them.
        """
        workers = [*self._actors.workers.values(), *self._reanalysers.workers.values()]
        for worker in workers:
            worker.actor.begin("stop")
        await_end(workers, STOP_TIMEOUT_S / 3)
        for worker in workers:
            worker.ended()
            if worker.failure is not None:
                log.warning("%s failed before the run ended", worker.actor.name, exc_info=worker.failure)
        reports = last_reports([*workers, *self._servers.workers.values()])
        for group in (self._actors, self._reanalysers, self._servers):
            group.kill()
        return reports

    def stop_learner(self) -> list[MetricsReport | LogReport]:
        """Ends training; learner and replay still answer afterwards.

        Returns:
          the last reports of both.

        Raises:
          ClusterError: training did not end in time.
          WorkerDied: a learner is gone.
        """
        assert self.learner is not None
        return self.learner.stop() + last_reports(self.shards.workers)

    def stop_evaluator(self) -> None:
        """Ends the evaluator at once; the games that it was playing are lost."""
        self._evaluators.wanted = 0
        self._evaluators.kill()

    def kill(self) -> None:
        """Ends all workers at once and gives the reserved resources back."""
        for group in (self._actors, self._reanalysers, self._servers):
            group.kill()
        self.stop_evaluator()
        if self.learner is not None:
            self.learner.kill()
        self.shards.kill()
        self._spawner.release()
        self._nodes.request_capacity({}, [])
        self.learner = None

    @property
    def _learners(self) -> list[Worker]:
        return self.learner.workers if self.learner else []

    def _spawn_shard(self, index: int, node: Node, contents: Sequence[SavedShard]) -> RemoteActor:
        """Starts a shard, without a reservation if its CPUs or memory were taken: a run needs all its shards."""
        free = node.cpus - self._reconciler.taken(except_shard=index).get(node.id, 0.0)
        shards = 1 + sum(
            worker.actor.node == node.id for other, worker in enumerate(self.shards.workers) if other != index
        )
        fits = node.resources.get(MEMORY, 0.0) >= shards * self._shard_memory
        return self._spawner.shard(index, node, contents, reserve=free >= self._shard_cpus and fits)

    def _inference_servers(self, experiment: Experiment) -> WorkerGroup:
        """The group of servers `inference-0`, `inference-1`, ...; one that does not answer is replaced."""
        config = experiment.server
        return WorkerGroup(
            [f"inference-{index}" for index in range(experiment.server_processes)],
            config.cpus,
            lambda name, _, node: self._spawner.server(name, node),
            config.resources,
            Patience(START_TIMEOUT_S, config.hang_s, _advice("server", config.resources)),
        )

    def _producers(
        self,
        process: type[ActorProcess | ReanalysisProcess],
        kind: str,
        count: int,
        cpus: float,
        resources: Mapping[str, float] | None = None,
    ) -> WorkerGroup:
        """The group of workers `KIND-0`, `KIND-1`, ..., which produce samples."""

        def spawn(name: str, index: int, node: Node) -> RemoteActor:
            return self._spawner.producer(process, name, index, node, cpus, self.shards.actors)

        patience = Patience(START_TIMEOUT_S, math.inf, _advice("actors", resources)) if resources else None
        return WorkerGroup([f"{kind}-{index}" for index in range(count)], cpus, spawn, resources, patience)


def _advice(section: str, resources: Mapping[str, float]) -> str:
    """What to do about a process that never answers."""
    if not resources:
        return "is its node overloaded?"
    return f"does another run hold {described(resources)} of its node ({section}.resources)?"
