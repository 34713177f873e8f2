"""The processes of one run: started together, listened to, replaced when they die, stopped in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from podzero.config import Experiment
from podzero.launch.cluster import START_TIMEOUT_S, STOP_TIMEOUT_S, Call, Cluster, ClusterError, Role, RoleDied
from podzero.launch.outbox import Figures, LogLine
from podzero.launch.roles import ActorProcess, EvaluatorProcess, LearnerProcess, ReplayProcess
from podzero.launch.savepoints import Savepoint
from podzero.workdir import Workdir

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 20.0
"""A role that does not hand over its figures for so long is only skipped: it may be compiling."""
LAST_WORDS_S = 2.0
CPU_ONLY = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
"""Environment of every process but the learner: one process of a host owns its accelerators."""


class RunFailed(RuntimeError):
    """The run cannot go on; the message says who failed, why, and what to do."""


@dataclass
class _Post:
    """One place in the crew, whoever fills it."""

    role: Role
    work: Call | None = None
    """The pending `run`; None for roles that only answer."""
    fetch: Call | None = None
    """The pending `drain`."""


@dataclass
class Crew:
    """All processes of a run."""

    cluster: Cluster
    experiment: Experiment
    workdir: Workdir
    store: Any
    """Handle of the parameter store."""
    shards: list[_Post] = field(default_factory=list)
    learner: _Post | None = None
    actors: list[_Post] = field(default_factory=list)
    evaluator: _Post | None = None
    ladder: dict[str, Any] = field(default_factory=dict)
    """The rating ladder as the evaluator gave it last, so that a new one goes on from there."""
    lives: int = 0
    """Restarts of actors and evaluators so far."""

    def start(self, savepoint: Savepoint | None) -> None:
        """Starts everybody, from `savepoint` if there is one; returns when replay and learner are built.

        Raises:
          CheckpointDamaged, ReplayRestoreError: the savepoint cannot be used; nobody is left running.
          ConfigError, CheckpointMismatch: the experiment cannot be run here; nobody is left running.
        """
        self.ladder = savepoint.ladder if savepoint else {}
        for index in range(self.experiment.replay.shards):
            self.shards.append(_Post(self._spawn_shard(index, savepoint)))
        self.learner = _Post(self._spawn_learner(savepoint))
        self.actors = [self._employ_actor(index) for index in range(self.experiment.actors.count)]
        try:
            for post in [*self.shards, self.learner]:
                post.role.ask("ready", timeout_s=2 * START_TIMEOUT_S)
            self.learner.work = self.learner.role.begin("run")
        except Exception:
            self.kill()
            raise

    def start_evaluator(self) -> None:
        """Starts the evaluator, which needs a first snapshot."""
        role = self.cluster.spawn(
            EvaluatorProcess,
            "evaluator",
            cpus=self.experiment.evaluation.cpus,
            environment=CPU_ONLY,
            experiment=self.experiment,
            snapshots=self.workdir.snapshots,
            ladder=self.ladder,
        )
        self.evaluator = _Post(role, role.begin("run"))

    @property
    def learning(self) -> bool:
        """Whether the learner is at work.

        Raises:
          RunFailed: it failed.
        """
        assert self.learner is not None
        assert self.learner.work is not None
        if not self.learner.work.done:
            return True
        try:
            self.learner.work.result(ANSWER_TIMEOUT_S)
        except Exception as failure:
            raise RunFailed(f"the learner failed: {failure}") from failure
        return False

    def heal(self) -> list[str]:
        """Replaces actors and an evaluator that died; returns their names.

        Raises:
          RunFailed: a replay shard died, or there were more deaths than `actors.max_restarts`.
        """
        healed = []
        for index, post in enumerate(self.actors):
            if self._lost(post):
                self.actors[index] = self._employ_actor(index)
                healed.append(post.role.name)
        if self.evaluator is not None and self._lost(self.evaluator):
            self.start_evaluator()
            healed.append("evaluator")
        for post in self.shards:
            if post.fetch is not None and post.fetch.done:
                self._check_shard(post)
        return healed

    def listen(self) -> Iterator[Figures | LogLine]:
        """What everybody said since the last call; never waits."""
        for post in self.shards:
            post.role.begin("figures")
        for post in [*self.shards, *self.actors, *filter(None, [self.learner, self.evaluator])]:
            yield from _fetch(post)

    def stop_actors(self) -> list[Figures | LogLine]:
        """Ends the actors: asked first, then, if a move lasts too long, without ceremony; returns their last words."""
        for post in self.actors:
            post.role.begin("stop")
        _await_end(self.actors, STOP_TIMEOUT_S / 3)
        words = [item for post in self.actors for item in _last_words(post)]
        for post in self.actors:
            post.role.kill()
        self.actors = []
        return words

    def stop_learner(self) -> list[Figures | LogLine]:
        """Ends the training loop and returns the last words of learner and replay, which both still answer afterwards.

        Raises:
          ClusterError: it did not end in time.
        """
        assert self.learner is not None
        assert self.learner.work is not None
        self.learner.role.ask("stop", timeout_s=STOP_TIMEOUT_S)
        self.learner.work.result(4 * STOP_TIMEOUT_S)
        for post in self.shards:
            post.role.ask("figures", timeout_s=STOP_TIMEOUT_S)
        return [item for post in [self.learner, *self.shards] for item in _last_words(post)]

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
        """Ends everybody without ceremony."""
        for post in [*self.actors, *filter(None, [self.evaluator, self.learner]), *self.shards]:
            post.role.kill()
        self.shards, self.actors, self.learner, self.evaluator = [], [], None, None

    def _spawn_shard(self, index: int, savepoint: Savepoint | None) -> Role:
        return self.cluster.spawn(
            ReplayProcess,
            f"replay-{index}",
            cpus=0,
            environment=CPU_ONLY,
            experiment=self.experiment,
            shard=index,
            restore_from=savepoint.shard(index) if savepoint else None,
        )

    def _spawn_learner(self, savepoint: Savepoint | None) -> Role:
        return self.cluster.spawn(
            LearnerProcess,
            "learner",
            cpus=0,
            environment={},
            experiment=self.experiment,
            shards=[post.role for post in self.shards],
            store=self.store,
            snapshots=self.workdir.snapshots,
            restore_from=savepoint.folder if savepoint else None,
        )

    def _employ_actor(self, index: int) -> _Post:
        """An actor that is being built and will play as soon as there are parameters."""
        cpus = self.experiment.actors.cpus
        role = self.cluster.spawn(
            ActorProcess,
            f"actor-{index}",
            cpus=cpus,
            # XLA sizes its thread pool by NPROC.
            environment=CPU_ONLY | {"NPROC": str(max(1, round(cpus)))},
            experiment=self.experiment,
            index=index,
            life=self.lives,
            shards=[post.role for post in self.shards],
            store=self.store,
        )
        return _Post(role, role.begin("run"))

    def _lost(self, post: _Post) -> bool:
        """Whether the process behind a post ended by itself, which counts as a death."""
        if post.work is None or not post.work.done:
            return False
        try:
            post.work.result(ANSWER_TIMEOUT_S)
            reason = "it returned"
        except Exception as failure:
            reason = str(failure)
        post.role.kill()
        self.lives += 1
        log.warning("%s died and is started again (restart %d): %s", post.role.name, self.lives, reason)
        if self.lives > self.experiment.actors.max_restarts:
            raise RunFailed(
                f"{post.role.name} died, the {self.lives}th death of this run; actors.max_restarts allows "
                f"{self.experiment.actors.max_restarts}. Its last words: {reason}"
            )
        return True

    def _check_shard(self, post: _Post) -> None:
        assert post.fetch is not None
        try:
            post.fetch.result(ANSWER_TIMEOUT_S)
        except RoleDied as failure:
            raise RunFailed(
                f"{post.role.name} died, and with it the samples since the last savepoint: {failure}"
            ) from None


def _fetch(post: _Post) -> list[Figures | LogLine]:
    """What a post has said, if its answer is there; asks for more."""
    items: list[Figures | LogLine] = []
    if post.fetch is not None:
        if not post.fetch.done:
            return items
        try:
            items = post.fetch.result(ANSWER_TIMEOUT_S)
        except (ClusterError, RoleDied):
            return items  # its death is found by `heal`, which knows what to do
    post.fetch = post.role.begin("drain")
    return items


def _last_words(post: _Post) -> list[Figures | LogLine]:
    """What a post that has ended its work had not yet said."""
    items: list[Figures | LogLine] = []
    for fetch in filter(None, [post.fetch, post.role.begin("drain")]):
        with suppress(ClusterError, RoleDied):
            items += fetch.result(LAST_WORDS_S)
    return items


def _await_end(posts: list[_Post], timeout_s: float) -> None:
    """Waits until each post's work has ended, all together no longer than `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(post.work and not post.work.done for post in posts):
        time.sleep(0.1)
