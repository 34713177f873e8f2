"""The supervisor of a run: starts its workers, keeps them alive, fetches their reports, and ends them in order."""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from podzero.config import Experiment
from podzero.files.storage import StorageError
from podzero.files.workdir import Workdir
from podzero.runtime.checkpoints import Checkpoint, SavedShard
from podzero.runtime.cluster.directory import start_directory
from podzero.runtime.cluster.placement import MEMORY, Node
from podzero.runtime.cluster.preflight import RUN_VARIABLE
from podzero.runtime.cluster.ray_cluster import Bundle, Cluster, PlacementGroup
from podzero.runtime.cluster.remote import STOP_TIMEOUT_S, RemoteActor
from podzero.runtime.failures import SHARD, Failures
from podzero.runtime.monitoring.reports import LogReport, MetricsReport
from podzero.runtime.nodes import RunNodes
from podzero.runtime.processes.process import Process, RunContext, hosted
from podzero.runtime.processes.replay import ReplayProcess
from podzero.runtime.program import CPU_ONLY, Kind, program, start_order
from podzero.runtime.stopping import StopRequest
from podzero.runtime.workers import LearnerGroup, ReplayShards, Worker, WorkerGroup, await_end, last_reports

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""Time between two looks for nodes with room for the workers that are missing."""


class Supervisor:
    """All workers of a run, as the table of `program` describes them.

    Args:
      cluster: where they run.
      experiment: the experiment of the run.
      workdir: the working directory.
      stopping: set when the run must end; it also ends a wait for nodes.
      home: the id of the driver's node.
      secrets: environment variables that all processes get, by name.
    """

    def __init__(
        self,
        cluster: Cluster,
        experiment: Experiment,
        workdir: Workdir,
        stopping: StopRequest,
        home: str,
        secrets: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.learner: LearnerGroup | None = None
        self.shards = ReplayShards(self._spawn_shard)
        self.ladder: dict[str, Any] = {}
        """The evaluator's last known rating ladder, which a restarted evaluator continues."""
        self.nodes_since = time.monotonic()
        """Monotonic time at which the nodes of the current workers had joined."""
        self._cluster = cluster
        self._stopping = stopping
        self._nodes = RunNodes(cluster, experiment, home, CPU_ONLY)
        self._home = home
        self._context = RunContext(experiment, workdir, run="", store=None, directory=None, secrets=dict(secrets))
        self._program = {kind.name: kind for kind in program(experiment)}
        self._failures = Failures(self._program.values(), self._nodes.describe)
        # Shards and learner start on nodes chosen beforehand; all others one by one, wherever there is room.
        self._groups = {
            name: WorkerGroup(kind, self._spawn_alone)
            for name, kind in self._program.items()
            if name not in ("replay", "learner")
        }
        self._samplers = (self._groups["actor"], self._groups["reanalyser"])
        self._evaluators = self._groups["evaluator"]
        self._evaluators.wanted = 0
        self._first_attempt = 0
        self._starts: Counter[str] = Counter()
        self._learner_resources: PlacementGroup | None = None
        self._noted: dict[int, Worker] = {}
        """The last process of each shard, by index, whose loss has been noted."""
        self._homeless: set[int] = set()
        """Indices of the lost shards that no node can run."""
        self._look_at = 0.0

    def start(self, checkpoint: Checkpoint | None) -> None:
        """Starts all workers except the evaluator; returns when replay and learner are built.

        Args:
          checkpoint: the checkpoint that replay, learner and ratings continue; None starts from nothing.

        Raises:
          CheckpointDamaged: the learner's part of the checkpoint cannot be used; no worker is left running. (A damaged
            replay shard takes older contents, or starts empty.)
          ConfigError, CheckpointMismatch: the experiment cannot be run here; no worker is left running.
          NodesAbsent: nodes did not join in time; the message names them.
          ClusterError, WorkerDied: a worker could not be built; no worker is left running.
        """
        from podzero.runtime.params import start_param_store  # imports JAX, for which a command need not wait

        folder = checkpoint.folder if checkpoint else None
        # The new run id marks all earlier processes as stale. A new directory and a new store keep the processes of
        # this start from finding the addresses and parameters of earlier ones.
        directory, store = start_directory(self._home), start_param_store(self._home)
        self._context = replace(
            self._context, run=uuid.uuid4().hex, store=store, directory=directory, restore_from=folder
        )
        # Attempts count from the checkpoint's step, since the driver does not know how many there were before: seeds
        # that earlier attempts used must not be used again.
        self._first_attempt = checkpoint.step if checkpoint else 0
        self.ladder = checkpoint.ladder if checkpoint else {}
        nodes = self._nodes.wait(self._stopping)
        self.nodes_since = time.monotonic()
        try:
            contents = [checkpoint.shard(index) if checkpoint else [] for index in range(len(nodes.shards))]
            self.shards.start(nodes.shards, contents)
            with self._nodes.prepared_hosts(nodes.learner, self._context.run) as coordinator:
                self._context = replace(self._context, coordinator=coordinator)
                self.learner = LearnerGroup(self._spawn_learner(nodes.learner))
                self.scale()
                self.shards.await_ready()
                self.learner.await_ready()
            self.learner.begin()
        except BaseException:
            self.kill()
            raise

    def start_evaluator(self) -> None:
        """Lets `reconcile` start the evaluator where there is room. Call it once there is a snapshot."""
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
        """Tells the learner which share of the run's minutes and games has passed; never waits for it."""
        if self.learner is not None:
            self.learner.advance(share)

    @property
    def evaluator(self) -> Worker | None:
        """The evaluator; None before it has started."""
        return next(iter(self._evaluators.workers.values()), None)

    @property
    def failing(self) -> dict[str, str]:
        """The workers that have not worked since they failed: by name, the failures in a row and the last error."""
        return self._failures.failing

    def reconcile(self, newest: Callable[[], Checkpoint | None]) -> list[str]:
        """Replaces workers that have ended, except the learner's, and starts those for which there is now room.

        Args:
          newest: finds the newest checkpoint, which holds the contents of a restarted shard; raises `StorageError` if
            it cannot be seen.

        Returns:
          the names of the workers that ended and of the shards that were replaced.
        """

        def contents(index: int) -> list[SavedShard]:
            return saved.shard(index) if (saved := newest()) else []

        for worker in [*self.shards.workers, *self._workers]:
            if worker.worked:
                self._failures.note_work(worker.actor.name)
        self.shards.check_restarts()
        replaced = self._replace_shards(contents)
        ended = [name for group in self._groups.values() for name in self._remove_ended(group)]
        if replaced or ended or time.monotonic() >= self._look_at:
            self.scale()
        return [*replaced, *ended]

    def scale(self) -> None:
        """Starts the missing workers that may start again and for which nodes have room."""
        self._look_at = time.monotonic() + LOOK_EVERY_S
        groups = self._groups.values()
        nodes = [] if all(group.complete for group in groups) else self._nodes.for_workers()
        for kind, limit in start_order(group.kind for group in groups):
            group = self._groups[kind.name]
            if group in self._samplers and not self.shards.complete:
                continue  # their constructors wait for all shards
            where = self._nodes.with_accelerators() if kind.resources and not group.complete else nodes
            usable = self._failures.usable(kind.name, [node for node in where if group.could_run_on(node)])
            for name, node in group.scale(usable, self._taken(), self._failures.may_start, limit).items():
                log.info("%s starts on %s", name, node)
        missing = [cpus for group in groups for cpus in group.missing_cpus]
        self._nodes.request_capacity(self._taken(), missing + [self._program["replay"].cpus] * len(self._homeless))

    def listen(self) -> Iterator[MetricsReport | LogReport]:
        """All workers' reports that have arrived since the last call; never waits for a worker."""
        for worker in [*self.shards.workers, *self._workers, *self._learners]:
            yield from worker.reports()

    def traceable(self) -> list[RemoteActor]:
        """The processes that play, serve, reanalyse or train."""
        groups = (self._groups["inference"], *self._samplers)
        return [worker.actor for worker in [*self._learners, *(w for group in groups for w in group.workers.values())]]

    def stop_actors(self) -> list[MetricsReport | LogReport]:
        """Asks actors and reanalysers to stop, kills the slow, then ends the servers; returns their last reports."""
        workers = [worker for group in self._samplers for worker in group.workers.values()]
        for worker in workers:
            worker.actor.begin("stop")
        await_end(workers, STOP_TIMEOUT_S / 3)
        for worker in workers:
            worker.ended()
            if worker.failure is not None:
                log.warning("%s failed before the run ended", worker.actor.name, exc_info=worker.failure)
        reports = last_reports([*workers, *self._groups["inference"].workers.values()])
        for group in (*self._samplers, self._groups["inference"]):
            group.wanted = 0
            group.kill()
        return reports

    def stop_learner(self) -> list[MetricsReport | LogReport]:
        """Ends training and returns the last reports; learner and replay still answer calls afterwards."""
        assert self.learner is not None
        return self.learner.stop() + last_reports(self.shards.workers)

    def judge_last(self, step: int) -> Worker | None:
        """Asks the evaluator to judge the snapshot of `step` and to end; starts it if it is missing, after the actors.

        Returns:
          the evaluator; None if no node has room for it, or it has failed and may not start yet.
        """
        self.start_evaluator()
        self.scale()
        if self.evaluator is not None:
            self.evaluator.actor.begin("stop", step)
        return self.evaluator

    def stop_evaluator(self) -> None:
        """Ends the evaluator at once; its unfinished games are lost."""
        self._evaluators.wanted = 0
        self._evaluators.kill()

    def kill(self) -> None:
        """Ends all workers at once and releases what they reserved."""
        for group in (*self._samplers, self._groups["inference"]):
            group.kill()
        self.stop_evaluator()
        if self.learner is not None:
            self.learner.kill()
        self.shards.kill()
        if self._learner_resources is not None:
            self._learner_resources.release()
            self._learner_resources = None
        self._nodes.request_capacity({}, [])
        self.learner = None

    @property
    def _learners(self) -> list[Worker]:
        return self.learner.workers if self.learner else []

    @property
    def _workers(self) -> list[Worker]:
        """All inference servers, actors and reanalysers, and the evaluator."""
        return [worker for group in self._groups.values() for worker in list(group.workers.values())]

    def _taken(self, except_shard: int | None = None) -> dict[str, float]:
        """The CPUs that the workers have reserved, by node; leaves out the shard of this index."""
        shards = [worker for index, worker in enumerate(self.shards.workers) if index != except_shard]
        reserved = [(worker, group.kind.cpus) for group in self._groups.values() for worker in group.workers.values()]
        taken: dict[str, float] = defaultdict(float)
        for worker, cpus in [*reserved, *((worker, self._program["replay"].cpus) for worker in shards)]:
            if worker.actor.node is not None:
                taken[worker.actor.node] += cpus
        return taken

    # Starting a process: the table gives its class and resources, the context what it shares with the others.

    def _spawn_alone(self, kind: Kind, index: int, node: Node) -> Worker:
        """Starts a process that can be replaced alone."""
        return self._spawn(kind, self._process(kind, index), node)

    def _spawn_learner(self, hosts: Sequence[Node]) -> list[Worker]:
        """Reserves the resources of all learner hosts together and starts a process on each host."""
        kind, bundles = self._program["learner"], list[Bundle | None]([None] * len(hosts))
        if kind.resources:
            timeout_s = 60 * self._context.experiment.cluster.join_minutes
            self._learner_resources = self._cluster.reserve(hosts, kind.resources, timeout_s)
            bundles = list(self._learner_resources.bundles)
        places = enumerate(zip(hosts, bundles, strict=True))
        return [self._spawn(kind, self._process(kind, rank), node, bundle) for rank, (node, bundle) in places]

    def _spawn_shard(self, index: int, node: Node, contents: Sequence[SavedShard]) -> Worker:
        """Starts a shard, without a reservation if its CPUs or memory are taken: a run needs all of its shards."""
        kind = self._program["replay"]
        free = node.cpus - self._taken(except_shard=index).get(node.id, 0.0)
        shards = 1 + sum(
            worker.actor.node == node.id for other, worker in enumerate(self.shards.workers) if other != index
        )
        if free < kind.cpus or node.resources.get(MEMORY, 0.0) < shards * kind.memory:
            kind = replace(kind, cpus=0.0, memory=0)
        name = kind.names[index]
        return self._spawn(kind, ReplayProcess(name, self._context, index, self._attempt(name), contents), node)

    def _process(self, kind: Kind, index: int) -> Process:
        """The process of this kind and index, ready to start."""
        name = kind.names[index]
        return kind.process(name, replace(self._context, ladder=self.ladder), index, self._attempt(name))

    def _attempt(self, name: str) -> int:
        """The number of a process's next attempt, which no earlier attempt had."""
        attempt = self._first_attempt + self._starts[name]
        self._starts[name] += 1
        return attempt

    def _spawn(self, kind: Kind, process: Process, node: Node, bundle: Bundle | None = None) -> Worker:
        actor = self._cluster.spawn(
            hosted(type(process)),
            process.name,
            process,
            cpus=kind.cpus,
            memory=kind.memory,
            resources=kind.resources,
            environment={**kind.environment, RUN_VARIABLE: self._context.run},
            node=node,
            bundle=bundle,
        )
        return Worker(actor, metric=kind.work)

    # Replacing what ended.

    def _remove_ended(self, group: WorkerGroup) -> list[str]:
        """Removes the ended workers of a group; returns their names."""
        ended = group.remove_ended()
        alive = [*group.workers, *ended]  # those that ended are noted one by one below
        for name, (node, error) in ended.items():
            self._failures.note_end(name, node, error, alive)
        return list(ended)

    def _replace_shards(self, contents: Callable[[int], list[SavedShard]]) -> list[str]:
        """Restarts the lost shards that may start again; returns their names."""
        replaced, all_lost = [], self.shards.lost()
        self._homeless &= {index for index, _ in all_lost}
        for index, loss in all_lost:
            name, lost = f"{SHARD}-{index}", self.shards.workers[index]
            if self._noted.get(index) is not lost:
                self._noted[index] = lost
                self._failures.note_end(name, lost.actor.node, loss, [])
            if not self._failures.may_start(name):
                continue
            try:
                saved = contents(index)
            except StorageError as failure:  # it may pass, and an empty shard in its place would not
                self._failures.note_end(name, None, failure, [])
                continue
            nodes = self._failures.usable(SHARD, self._nodes.for_workers())
            if self.shards.replace(index, nodes, saved):
                self._homeless.discard(index)
                replaced.append(name)
            elif index not in self._homeless:
                self._homeless.add(index)
                log.warning(
                    "%s is lost (%s), and no node can run it: it restarts when one joins. Until then its samples are "
                    "missing",
                    name,
                    loss,
                )
        return replaced
