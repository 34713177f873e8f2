"""The processes of one run: placed, started together, listened to, replaced when they die, stopped in order."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from podzero.cluster.placement import (
    Machines,
    Missing,
    Node,
    actor_places,
    choose,
    host_resources,
    playing_nodes,
    reserved_cpus,
)
from podzero.cluster.preflight import Scouts
from podzero.cluster.ray_cluster import Cluster, Gang
from podzero.cluster.remote import START_TIMEOUT_S, STOP_TIMEOUT_S, ClusterError, MachineLost, Role, RoleDied, here
from podzero.cluster.stale_processes import RUN_VARIABLE
from podzero.config import Experiment
from podzero.driver.learner_group import LearnerTeam, RunFailed
from podzero.driver.processes import ActorProcess, EvaluatorProcess, LearnerProcess, ReanalysisProcess, ReplayProcess
from podzero.driver.replay_shards import Shards
from podzero.driver.savepoints import Savepoint
from podzero.driver.worker import ANSWER_TIMEOUT_S, Post, await_end
from podzero.driver.worker_group import Squad
from podzero.errors import ConfigError
from podzero.monitoring.reports import Figures, LogLine
from podzero.workdir import Workdir

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""Time between two looks at the nodes of the cluster."""
SAY_EVERY_S = 30.0
"""Time between two lines about machines that are waited for."""


@dataclass
class Crew:
    """All processes of a run."""

    cluster: Cluster
    experiment: Experiment
    workdir: Workdir
    store: Any
    """Handle of the parameter store."""
    stopping: threading.Event
    """Set when somebody wants the run to end, which ends a wait for machines as well."""
    team: LearnerTeam | None = None
    evaluator: Post | None = None
    ladder: dict[str, Any] = field(default_factory=dict)
    """The rating ladder as the evaluator gave it last, so that a new one goes on from there."""
    lives: int = 0
    """Processes of actors, reanalysers, shards and evaluators that ended and were started again."""
    deaths: int = 0
    """Those of them that died although their machine did not."""

    def __post_init__(self) -> None:
        self._name_run()
        self._scouts = Scouts(self.cluster, self._cpu_only)
        self.shards = Shards(self._spawn_shard)
        actors, reanalyse = self.experiment.actors, self.experiment.reanalyse
        self.actors = Squad(
            "actor", actors.count, actors.cpus, partial(self._spawn_searcher, ActorProcess, actors.cpus)
        )
        self.reanalysers = Squad(
            "reanalyser",
            reanalyse.processes,
            reanalyse.cpus,
            partial(self._spawn_searcher, ReanalysisProcess, reanalyse.cpus),
        )
        self._gang: Gang | None = None
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
        machines = self._muster()
        try:
            self.shards.start(machines.shards, [_content(savepoint, index) for index in range(len(machines.shards))])
            self.team = LearnerTeam([Post(role) for role in self._spawn_learners(machines.learner, savepoint)])
            self._employ()
            self.shards.await_ready()
            for post in self.team.posts:
                post.role.ask("ready", timeout_s=2 * START_TIMEOUT_S)
            self.team.begin()
        except BaseException:
            self.kill()
            raise

    def start_evaluator(self) -> None:
        """Starts the evaluator, which needs a first snapshot, where most CPUs are spare."""
        cpus = self.experiment.evaluation.cpus
        places = actor_places(self._playing(), self._taken(), cpus, 1)
        if not places:
            return
        role = self.cluster.spawn(
            EvaluatorProcess,
            "evaluator",
            cpus=cpus,
            environment=self._cpu_only,
            node=places[0],
            experiment=self.experiment,
            snapshots=self.workdir.snapshots,
            ladder=self.ladder,
        )
        self.evaluator = Post(role, role.begin("run"))

    @property
    def learning(self) -> bool:
        """Whether the learner is at work.

        Raises:
          MachineLost: one of its hosts is gone with its machine.
          RunFailed: it failed.
        """
        return self.team is not None and self.team.working

    def heal(self, newest: Callable[[], Savepoint | None]) -> list[str]:
        """Replaces actors, reanalysers, shards and an evaluator that died, and gives actors to nodes that joined.

        Args:
          newest: finds the newest savepoint, from which a shard takes its contents.

        Returns:
          the names of those who were replaced.

        Raises:
          RunFailed: there were more deaths than `actors.max_restarts`.
        """
        healed = self._heal_shards(newest)
        lost = self.actors.lost() | self.reanalysers.lost()
        for name, failure in lost.items():
            self._count(name, failure)
        if lost or time.monotonic() - self._looked >= LOOK_EVERY_S:
            self._employ()
        if self.evaluator is not None and (end := self.evaluator.ended()) is not None:
            self.stop_evaluator()
            self._count("evaluator", end)
            self.start_evaluator()
            healed.append("evaluator")
        return healed + list(lost)

    def listen(self) -> Iterator[Figures | LogLine]:
        """What everybody said since the last call."""
        for role in self.shards.roles:
            role.begin("figures")
        learners = self.team.posts if self.team else []
        for post in [*self.shards.posts, *self._searchers, *learners, *filter(None, [self.evaluator])]:
            yield from post.fetched()

    def stop_actors(self) -> list[Figures | LogLine]:
        """Ends actors and reanalysers, asked first, then, if a move lasts too long, without ceremony.

        Returns:
          their last words.
        """
        posts = self._searchers
        for post in posts:
            post.role.begin("stop")
        await_end(posts, STOP_TIMEOUT_S / 3)
        words = [item for post in posts for item in post.last_words()]
        self.actors.kill()
        self.reanalysers.kill()
        return words

    def stop_learner(self) -> list[Figures | LogLine]:
        """Ends the training loop and returns the last words of learner and replay, which both still answer afterwards.

        Raises:
          ClusterError: it did not end in time.
        """
        assert self.team is not None
        words = self.team.stop()
        for role in self.shards.roles:
            role.ask("figures", timeout_s=STOP_TIMEOUT_S)
        return words + [item for post in self.shards.posts for item in post.last_words()]

    def stop_evaluator(self) -> None:
        """Ends the evaluator at once: what it was playing counts for nothing yet."""
        if self.evaluator is not None:
            self.evaluator.role.kill()
            self.evaluator = None

    def newest_ladder(self) -> dict[str, Any]:
        """The rating ladder, asked of the evaluator if it answers."""
        if self.evaluator is not None:
            with suppress(ClusterError, RoleDied):
                self.ladder = self.evaluator.role.ask("ladder", timeout_s=ANSWER_TIMEOUT_S)
        return self.ladder

    def kill(self) -> None:
        """Ends everybody without ceremony and gives the reserved machines back."""
        self.actors.kill()
        self.reanalysers.kill()
        self.stop_evaluator()
        if self.team is not None:
            self.team.kill()
        self.shards.kill()
        if self._gang is not None:
            self._gang.release()
        self.cluster.ask_for([])
        self.team, self._gang = None, None

    def _name_run(self) -> None:
        """Makes what was started before, and may have been left on chips, a thing of another run."""
        self._run = uuid.uuid4().hex
        # One process of a host owns its accelerators: the learner's.
        self._cpu_only = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2", RUN_VARIABLE: self._run}

    def _muster(self) -> Machines:
        """Waits until all machines that the run needs have joined.

        Raises:
          ClusterError: they did not within `cluster.join_minutes`, or somebody wants the run to end.
        """
        self.cluster.ask_for(reserved_cpus(self.experiment))
        minutes = self.experiment.cluster.join_minutes if self.cluster.joined else 0.0
        until, say_at = time.monotonic() + 60 * minutes, time.monotonic()
        while True:
            try:
                return choose(self._fit_nodes(wait=True), self.experiment, here())
            except Missing as missing:
                refused = self._scouts.refusals(self.cluster.nodes())
                words = "\n  refused: ".join([str(missing), *refused])
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
        return self._scouts.fit(nodes, wait) if self.cluster.joined else nodes

    def _playing(self) -> list[Node]:
        try:
            return playing_nodes(self._fit_nodes(wait=False), self.experiment.cluster)
        except Missing:
            return []

    @property
    def _searchers(self) -> list[Post]:
        """All actors and reanalysers."""
        return [*self.actors.posts.values(), *self.reanalysers.posts.values()]

    def _taken(self) -> dict[str, float]:
        """CPUs that actors, reanalysers and evaluator use, by node."""
        taken: dict[str, float] = {}
        users = [(post, squad.cpus) for squad in (self.actors, self.reanalysers) for post in squad.posts.values()]
        if self.evaluator is not None:
            users.append((self.evaluator, self.experiment.evaluation.cpus))
        for post, cpus in users:
            if post.role.node is not None:
                taken[post.role.node] = taken.get(post.role.node, 0.0) + cpus
        return taken

    def _employ(self) -> None:
        """Starts who is missing, as far as nodes have room; they play as soon as there are parameters.

        One reanalyser comes before all actors, since the learner needs both; then actors, then the other reanalysers.
        """
        self._looked = time.monotonic()
        if self.actors.complete and self.reanalysers.complete:
            return
        nodes = self._playing()
        for squad, most in ((self.reanalysers, 1), (self.actors, None), (self.reanalysers, None)):
            hired = squad.employ(nodes, self._taken(), most)
            for name, node in hired.items():
                if self.cluster.joined:
                    log.info("%s goes to %s", name, node)

    def _heal_shards(self, newest: Callable[[], Savepoint | None]) -> list[str]:
        """Starts lost shards anew and leads everybody to where they are."""
        healed = []
        for index, loss in self.shards.lost():
            if self.shards.replace(index, self._playing(), _content(newest(), index)):
                healed.append(f"replay-{index}")
                self._count(f"replay-{index}", loss)
        learners = self.team.posts if self.team else []
        for move in self.shards.moves():
            for post in [*self._searchers, *learners]:
                post.role.begin("moved", move.old, move.new)
        return healed

    def _spawn_shard(self, index: int, node: Node, content: Path | None) -> Role:
        return self.cluster.spawn(
            ReplayProcess,
            f"replay-{index}",
            cpus=0,
            environment=self._cpu_only,
            node=node,
            experiment=self.experiment,
            shard=index,
            restore_from=content,
        )

    def _spawn_learners(self, nodes: tuple[Node, ...], savepoint: Savepoint | None) -> list[Role]:
        """One process on each host, all resources reserved together."""
        resources, seats = host_resources(self.experiment.cluster), None
        coordinator = self._prepare_hosts(nodes)
        if resources:
            self._gang = self.cluster.reserve(nodes, resources, 60 * self.experiment.cluster.join_minutes)
            seats = self._gang.seats
        return [
            self.cluster.spawn(
                LearnerProcess,
                "learner" if rank == 0 else f"learner-{rank}",
                cpus=0,
                environment={RUN_VARIABLE: self._run},
                node=node,
                seat=seats[rank] if seats else None,
                rank=rank,
                coordinator=coordinator,
                experiment=self.experiment,
                shards=self.shards.roles,
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
        scouts = [self._scouts.send(node) for node in nodes]
        try:
            for clear in [scout.begin("clear_chips", self._run) for scout in scouts]:
                clear.result(START_TIMEOUT_S)
            return f"{nodes[0].host}:{scouts[0].ask('free_port')}"
        finally:
            for scout in scouts:
                scout.kill()

    def _spawn_searcher(self, process: type, cpus: float, name: str, index: int, node: Node) -> Role:
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
            shards=self.shards.roles,
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
        if isinstance(failure, MachineLost):
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
