"""The processes of one run: placed, started together, listened to, replaced when they die, stopped in order."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from podzero.cluster.placement import (
    MissingNodes,
    Node,
    Placement,
    actor_nodes,
    actor_places,
    host_resources,
    place,
    reserved_cpus,
    without_room,
)
from podzero.cluster.preflight import Preflight
from podzero.cluster.ray_cluster import Cluster
from podzero.cluster.remote import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    ClusterError,
    NodeLost,
    RemoteActor,
    WorkerDied,
    current_node_id,
)
from podzero.cluster.scheduling import PlacementGroup
from podzero.cluster.stale_processes import RUN_VARIABLE
from podzero.config import Experiment
from podzero.driver.learner_group import LearnerGroup, RunFailed
from podzero.driver.processes import ActorProcess, EvaluatorProcess, LearnerProcess, ReanalysisProcess, ReplayProcess
from podzero.driver.replay_shards import ReplayShards
from podzero.driver.savepoints import Savepoint
from podzero.driver.worker import ANSWER_TIMEOUT_S, Worker, await_end
from podzero.driver.worker_group import WorkerGroup
from podzero.errors import ConfigError
from podzero.monitoring.reports import LogReport, MetricsReport
from podzero.workdir import Workdir

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""Time between two looks at the nodes of the cluster."""
SAY_EVERY_S = 30.0
"""Time between two lines about machines that are waited for."""


@dataclass
class Supervisor:
    """All processes of a run."""

    cluster: Cluster
    experiment: Experiment
    workdir: Workdir
    store: Any
    """Handle of the parameter store."""
    stopping: threading.Event
    """Set when somebody wants the run to end, which ends a wait for machines as well."""
    learner: LearnerGroup | None = None
    evaluator: Worker | None = None
    ladder: dict[str, Any] = field(default_factory=dict)
    """The rating ladder as the evaluator gave it last, so that a new one goes on from there."""
    lives: int = 0
    """Processes of actors, reanalysers, shards and evaluators that ended and were started again."""
    deaths: int = 0
    """Those of them that died although their machine did not."""

    def __post_init__(self) -> None:
        self._name_run()
        self._preflight = Preflight(self.cluster, self._cpu_only)
        self.shards = ReplayShards(self._spawn_shard)
        actors, reanalyse = self.experiment.actors, self.experiment.reanalyse
        self.actors = WorkerGroup(
            "actor", actors.count, actors.cpus, partial(self._spawn_searcher, ActorProcess, actors.cpus)
        )
        self.reanalysers = WorkerGroup(
            "reanalyser",
            reanalyse.processes,
            reanalyse.cpus,
            partial(self._spawn_searcher, ReanalysisProcess, reanalyse.cpus),
        )
        self._placement_group: PlacementGroup | None = None
        self._looked = 0.0

    def start(self, savepoint: Savepoint | None) -> None:
        """Starts everybody, from `savepoint` if there is one; returns when replay and learner are built.

        Raises:
          CheckpointDamaged, ReplayRestoreError: the savepoint cannot be used; nobody is left running.
          ConfigError, CheckpointMismatch: the experiment cannot be run here; nobody is left running.
          ClusterError: machines did not join in time; says which.
        """
        self._name_run()
        self.ladder = savepoint.ladder if savepoint else {}
        machines = self._wait_for_nodes()
        try:
            self.shards.start(machines.shards, [_content(savepoint, index) for index in range(len(machines.shards))])
            self.learner = LearnerGroup([Worker(actor) for actor in self._spawn_learners(machines.learner, savepoint)])
            self._scale()
            self.shards.await_ready()
            for worker in self.learner.workers:
                worker.actor.ask("ready", timeout_s=2 * START_TIMEOUT_S)
            self.learner.begin()
        except BaseException:
            self.kill()
            raise

    def start_evaluator(self) -> None:
        """Starts the evaluator, which needs a first snapshot, where most CPUs are spare."""
        cpus = self.experiment.evaluation.cpus
        places = actor_places(self._playing(), self._taken(), cpus, 1)
        if not places:
            return
        actor = self.cluster.spawn(
            EvaluatorProcess,
            "evaluator",
            cpus=cpus,
            environment=self._cpu_only,
            node=places[0],
            experiment=self.experiment,
            snapshots=self.workdir.snapshots,
            ladder=self.ladder,
        )
        self.evaluator = Worker(actor, actor.begin("run"))

    @property
    def learning(self) -> bool:
        """Whether the learner is at work.

        Raises:
          NodeLost: one of its hosts is gone with its machine.
          RunFailed: it failed.
        """
        return self.learner is not None and self.learner.working

    def reconcile(self, newest: Callable[[], Savepoint | None]) -> list[str]:
        """Replaces actors, reanalysers, shards and an evaluator that died, and gives actors to nodes that joined.

        Args:
          newest: finds the newest savepoint, from which a shard takes its contents.

        Returns:
          the names of those who were replaced.

        Raises:
          RunFailed: there were more deaths than `actors.max_restarts`.
        """
        replaced = self._reconcile_shards(newest)
        lost = self.actors.lost() | self.reanalysers.lost()
        for name, failure in lost.items():
            self._count(name, failure)
        if lost or time.monotonic() - self._looked >= LOOK_EVERY_S:
            self._scale()
        if self.evaluator is not None and (end := self.evaluator.ended()) is not None:
            self.stop_evaluator()
            self._count("evaluator", end)
            self.start_evaluator()
            replaced.append("evaluator")
        return replaced + list(lost)

    def listen(self) -> Iterator[MetricsReport | LogReport]:
        """What everybody said since the last call."""
        for actor in self.shards.actors:
            actor.begin("metrics")
        learners = self.learner.workers if self.learner else []
        for worker in [*self.shards.workers, *self._searchers, *learners, *filter(None, [self.evaluator])]:
            yield from worker.fetched()

    def stop_actors(self) -> list[MetricsReport | LogReport]:
        """Ends actors and reanalysers, asked first, then, if a move lasts too long, without ceremony.

        Returns:
          their last words.
        """
        workers = self._searchers
        for worker in workers:
            worker.actor.begin("stop")
        await_end(workers, STOP_TIMEOUT_S / 3)
        words = [item for worker in workers for item in worker.last_words()]
        self.actors.kill()
        self.reanalysers.kill()
        return words

    def stop_learner(self) -> list[MetricsReport | LogReport]:
        """Ends the training loop and returns the last words of learner and replay, which both still answer afterwards.

        Raises:
          ClusterError: it did not end in time.
        """
        assert self.learner is not None
        words = self.learner.stop()
        for actor in self.shards.actors:
            actor.ask("metrics", timeout_s=STOP_TIMEOUT_S)
        return words + [item for worker in self.shards.workers for item in worker.last_words()]

    def stop_evaluator(self) -> None:
        """Ends the evaluator at once: what it was playing counts for nothing yet."""
        if self.evaluator is not None:
            self.evaluator.actor.kill()
            self.evaluator = None

    def newest_ladder(self) -> dict[str, Any]:
        """The rating ladder, asked of the evaluator if it answers."""
        if self.evaluator is not None:
            with suppress(ClusterError, WorkerDied):
                self.ladder = self.evaluator.actor.ask("ladder", timeout_s=ANSWER_TIMEOUT_S)
        return self.ladder

    def kill(self) -> None:
        """Ends everybody without ceremony and gives the reserved machines back."""
        self.actors.kill()
        self.reanalysers.kill()
        self.stop_evaluator()
        if self.learner is not None:
            self.learner.kill()
        self.shards.kill()
        if self._placement_group is not None:
            self._placement_group.release()
        self.cluster.request_capacity([], frozenset())
        self.learner, self._placement_group = None, None

    def _name_run(self) -> None:
        """Makes what was started before, and may have been left on chips, a thing of another run."""
        self._run = uuid.uuid4().hex
        # One process of a host owns its accelerators: the learner's.
        self._cpu_only = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2", RUN_VARIABLE: self._run}

    def _wait_for_nodes(self) -> Placement:
        """Waits until all machines that the run needs have joined.

        Raises:
          ClusterError: they did not within `cluster.join_minutes`, or somebody wants the run to end.
        """
        minutes = self.experiment.cluster.join_minutes if self.cluster.joined else 0.0
        until, say_at = time.monotonic() + 60 * minutes, time.monotonic()
        while True:
            try:
                return place(self._fit_nodes(wait=True), self.experiment, current_node_id())
            except MissingNodes as missing:
                refused = self._preflight.refusals(self.cluster.nodes())
                words = "\n  not used: ".join([str(missing), *refused])
                self._request_capacity(self._playing(), reserved_cpus(self.experiment))
            now = time.monotonic()
            if now >= until:
                raise ClusterError(f"waited {minutes:g} minutes (cluster.join_minutes) for machines: {words}")
            if now >= say_at:
                say_at = now + SAY_EVERY_S
                log.info("waiting for machines: %s", words)
            if self.stopping.wait(1.0):
                raise ClusterError(f"stopped while waiting for machines: {words}")

    def _fit_nodes(self, wait: bool) -> list[Node]:
        """The nodes that may be used: on a cluster that others started, those that run what the driver runs."""
        nodes = self.cluster.nodes()
        return self._preflight.usable_nodes(nodes, wait) if self.cluster.joined else nodes

    def _playing(self) -> list[Node]:
        try:
            return actor_nodes(self._fit_nodes(wait=False), self.experiment.cluster)
        except MissingNodes:
            return []

    @property
    def _searchers(self) -> list[Worker]:
        """All actors and reanalysers."""
        return [*self.actors.workers.values(), *self.reanalysers.workers.values()]

    def _request_capacity(self, nodes: Sequence[Node], cpus: Sequence[float]) -> None:
        """Asks an autoscaler for room for those processes, of so many CPUs each, that find none on `nodes`."""
        self.cluster.request_capacity(without_room(nodes, self._taken(), cpus), self._preflight.checked)

    def _taken(self, but_shard: int | None = None) -> dict[str, float]:
        """CPUs that this run has reserved, by node; without those of the shard of this index."""
        taken: dict[str, float] = {}
        users = [(worker, group.cpus) for group in (self.actors, self.reanalysers) for worker in group.workers.values()]
        shards = [worker for index, worker in enumerate(self.shards.workers) if index != but_shard]
        users += [(worker, self.experiment.replay.cpus) for worker in shards]
        if self.evaluator is not None:
            users.append((self.evaluator, self.experiment.evaluation.cpus))
        for worker, cpus in users:
            if worker.actor.node is not None:
                taken[worker.actor.node] = taken.get(worker.actor.node, 0.0) + cpus
        return taken

    def _scale(self) -> None:
        """Starts who is missing, as far as nodes have room; they play as soon as there are parameters.

        One reanalyser comes before all actors, since the learner needs both; then actors, then the other reanalysers.
        """
        self._looked = time.monotonic()
        nodes = self._playing() if self._missing_cpus else []
        for group, most in ((self.reanalysers, 1), (self.actors, None), (self.reanalysers, None)):
            started = group.scale(nodes, self._taken(), most)
            for name, node in started.items():
                if self.cluster.joined:
                    log.info("%s starts on %s", name, node)
        self._request_capacity(nodes, self._missing_cpus)

    @property
    def _missing_cpus(self) -> list[float]:
        """CPUs of each process that is not running and reserves some."""
        groups = [[group.cpus] * (group.count - len(group.workers)) for group in (self.actors, self.reanalysers)]
        evaluator = [] if self.evaluator else [self.experiment.evaluation.cpus]
        return [cpus for cpus in [*chain(*groups), *evaluator] if cpus]

    def _reconcile_shards(self, newest: Callable[[], Savepoint | None]) -> list[str]:
        """Starts lost shards anew and leads everybody to where they are."""
        replaced = []
        for index, loss in self.shards.lost():
            if self.shards.replace(index, self._playing(), _content(newest(), index)):
                replaced.append(f"replay-{index}")
                self._count(f"replay-{index}", loss)
        learners = self.learner.workers if self.learner else []
        for move in self.shards.moves():
            for worker in [*self._searchers, *learners]:
                worker.actor.begin("moved", move.old, move.new)
        return replaced

    def _spawn_shard(self, index: int, node: Node, content: Path | None) -> RemoteActor:
        # A run needs all its shards: where other processes took a lost shard's CPUs, it runs without a reservation.
        cpus = self.experiment.replay.cpus
        has_room = node.cpus - self._taken(but_shard=index).get(node.id, 0.0) >= cpus
        return self.cluster.spawn(
            ReplayProcess,
            f"replay-{index}",
            cpus=cpus if has_room else 0.0,
            environment=self._cpu_only,
            node=node,
            experiment=self.experiment,
            shard=index,
            restore_from=content,
        )

    def _spawn_learners(self, nodes: tuple[Node, ...], savepoint: Savepoint | None) -> list[RemoteActor]:
        """One process on each host, all resources reserved together."""
        resources, bundles = host_resources(self.experiment.cluster), None
        coordinator = self._prepare_hosts(nodes)
        if resources:
            self._placement_group = self.cluster.reserve(nodes, resources, 60 * self.experiment.cluster.join_minutes)
            bundles = self._placement_group.bundles
        return [
            self.cluster.spawn(
                LearnerProcess,
                "learner" if rank == 0 else f"learner-{rank}",
                cpus=0,
                environment={RUN_VARIABLE: self._run},
                node=node,
                bundle=bundles[rank] if bundles else None,
                rank=rank,
                coordinator=coordinator,
                experiment=self.experiment,
                shards=self.shards.actors,
                store=self.store,
                snapshots=self.workdir.snapshots,
                restore_from=savepoint.folder if savepoint else None,
            )
            for rank, node in enumerate(nodes)
        ]

    def _prepare_hosts(self, nodes: tuple[Node, ...]) -> str:
        """Clears what earlier runs left on the hosts' chips; returns where host 0 will serve the others.

        Raises:
          ClusterError: somebody else holds the chips of a host.
        """
        if not self.cluster.joined and len(nodes) == 1:
            return ""
        checks = [self._preflight.start_check(node) for node in nodes]
        try:
            for clear in [check.begin("end_stale_processes", self._run) for check in checks]:
                clear.result(START_TIMEOUT_S)
            return f"{nodes[0].host}:{checks[0].ask('free_port')}"
        finally:
            for check in checks:
                check.kill()

    def _spawn_searcher(self, process: type, cpus: float, name: str, index: int, node: Node) -> RemoteActor:
        """Starts an actor or a reanalyser."""
        return self.cluster.spawn(
            process,
            name,
            cpus=cpus,
            # XLA sizes its thread pool by NPROC.
            environment=self._cpu_only | {"NPROC": str(max(1, round(cpus)))},
            node=node,
            experiment=self.experiment,
            index=index,
            life=self.lives,
            shards=self.shards.actors,
            store=self.store,
        )

    def _count(self, name: str, failure: Exception) -> None:
        """Notes that a process ended; only with its machine still there is that a death.

        Raises:
          RunFailed: there were too many deaths, or it would end so again: the experiment is at fault.
        """
        if isinstance(failure, ConfigError):
            raise RunFailed(f"{name} cannot do what the experiment asks for: {failure}") from failure
        self.lives += 1
        if isinstance(failure, NodeLost):
            log.warning("%s was lost with its machine and starts again where there is room", name)
            return
        self.deaths += 1
        log.warning("%s died and is started again (restart %d): %s", name, self.deaths, failure)
        if self.deaths > self.experiment.actors.max_restarts:
            raise RunFailed(
                f"{name} died, the {self.deaths}th death of this run; actors.max_restarts allows "
                f"{self.experiment.actors.max_restarts}. Its last words: {failure}"
            )


def _content(savepoint: Savepoint | None, index: int) -> Path | None:
    """Where a savepoint keeps the contents of a shard."""
    return savepoint.shard(index) if savepoint else None
