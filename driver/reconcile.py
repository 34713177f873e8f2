"""Compares the workers that a run wants with those that are alive, and starts the difference."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from podzero.cluster.remote import NodeLost
from podzero.config import Experiment
from podzero.driver.checkpoints import Checkpoint, SavedShard
from podzero.driver.learner_group import RunFailed
from podzero.driver.nodes import RunNodes
from podzero.driver.replay_shards import MoveAnnouncer, ReplayShards
from podzero.driver.worker import Worker
from podzero.driver.worker_group import WorkerGroup
from podzero.errors import ConfigError

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""Time between two looks for nodes with room for the workers that are missing."""


class FailureCount:
    """Counts the workers that failed, and ends the run when there are too many.

    Args:
      limit: how many failures a run survives.
    """

    def __init__(self, limit: int) -> None:
        self.failures = 0
        """Workers that failed although their nodes did not."""
        self._limit = limit

    def add(self, name: str, error: Exception) -> None:
        """Counts a worker that ended. The loss of its node is no failure.

        Raises:
          RunFailed: there were too many failures, or the experiment is at fault and the worker would fail again.
        """
        if isinstance(error, ConfigError):
            raise RunFailed(f"{name} cannot do what the experiment asks for: {error}") from error
        if isinstance(error, NodeLost):
            log.warning("%s was lost with its node; it restarts on a node that has room for it", name)
            return
        self.failures += 1
        log.warning("%s failed and restarts (failure %d, at most %d)", name, self.failures, self._limit, exc_info=error)
        if self.failures > self._limit:
            raise RunFailed(
                f"{name} failed: workers of this run failed {self.failures} times, at most {self._limit} are allowed "
                f"(actors.max_restarts); last error: {error}"
            ) from error


class Reconciler:
    """Keeps replay shards, inference servers, actors, reanalysers and the evaluator of a run alive.

    Args:
      nodes: where workers may be started.
      shards: of replay.
      servers: who evaluate positions for actors.
      actors: who play.
      reanalysers: who search stored positions again.
      evaluator: a group of at most one worker.
      experiment: of the run.
    """

    def __init__(
        self,
        nodes: RunNodes,
        shards: ReplayShards,
        servers: WorkerGroup,
        actors: WorkerGroup,
        reanalysers: WorkerGroup,
        evaluator: WorkerGroup,
        experiment: Experiment,
    ) -> None:
        self._nodes = nodes
        self._shards = shards
        self._groups = (servers, actors, reanalysers, evaluator)
        self._samplers = (actors, reanalysers)
        # The learner needs samples of actors and of at least one reanalyser, but no ratings.
        self._start_order = (
            (servers, None), (reanalysers, 1), (actors, None), (reanalysers, None), (evaluator, None),
        )  # fmt: skip
        self._failures = FailureCount(experiment.actors.max_restarts)
        self._shard_cpus = experiment.replay.cpus
        self._homeless: set[int] = set()
        """Indices of the lost shards for which there is no node."""
        self._announcer = MoveAnnouncer()
        self._look_at = 0.0

    @property
    def workers(self) -> list[Worker]:
        """All inference servers, actors and reanalysers, and the evaluator."""
        return [worker for group in self._groups for worker in list(group.workers.values())]

    def reconcile(self, learners: Sequence[Worker], newest: Callable[[], Checkpoint | None]) -> list[str]:
        """Replaces the workers that ended, and starts those for which there is room now.

        Args:
          learners: told when a shard moves.
          newest: finds the newest checkpoint, from which a shard takes its contents.

        Returns:
          the names of the workers that ended, and of the shards that were replaced.

        Raises:
          RunFailed: more workers failed than `actors.max_restarts` allows, one failed because of the experiment, or a
            learner could not be told that a shard moved.
        """

        def contents(index: int) -> list[SavedShard]:
            return saved.shard(index) if (saved := newest()) else []

        ended = self._replace_shards(contents)
        for group in self._groups:
            ended |= group.remove_ended()
        ended |= self._announce_moves(learners)
        for name, error in ended.items():
            self._failures.add(name, error)
        if ended or time.monotonic() >= self._look_at:
            self.scale()
        return list(ended)

    def scale(self) -> None:
        """Starts the wanted workers that are not alive, as far as nodes have room."""
        self._look_at = time.monotonic() + LOOK_EVERY_S
        nodes = [] if all(group.complete for group in self._groups) else self._nodes.for_workers()
        for group, limit in self._start_order:
            where = self._nodes.with_accelerators() if group.resources and not group.complete else nodes
            for name, node in group.scale(where, self.taken(), limit).items():
                log.info("%s starts on %s", name, node)
        missing = [cpus for group in self._groups for cpus in group.missing_cpus]
        self._nodes.request_capacity(self.taken(), missing + [self._shard_cpus] * len(self._homeless))

    def taken(self, except_shard: int | None = None) -> dict[str, float]:
        """CPUs that the workers have reserved, by node; those of the shard of this index are left out."""
        shards = [worker for index, worker in enumerate(self._shards.workers) if index != except_shard]
        reserved = [(worker, group.cpus) for group in self._groups for worker in group.workers.values()]
        taken: dict[str, float] = defaultdict(float)
        for worker, cpus in [*reserved, *((worker, self._shard_cpus) for worker in shards)]:
            if worker.actor.node is not None:
                taken[worker.actor.node] += cpus
        return taken

    def _replace_shards(self, contents: Callable[[int], list[SavedShard]]) -> dict[str, Exception]:
        """Restarts lost shards, each with the first of its `contents` that is whole; returns why they were lost."""
        replaced = {}
        for index, loss in self._shards.lost():
            if self._shards.replace(index, self._nodes.for_workers(), contents(index)):
                self._homeless.discard(index)
                replaced[f"replay-{index}"] = loss
            elif index not in self._homeless:
                self._homeless.add(index)
                log.warning(
                    "replay-%d is lost (%s), and no node can run it: it restarts when one joins. Until then its "
                    "samples are missing",
                    index,
                    loss,
                )
        return replaced

    def _announce_moves(self, learners: Sequence[Worker]) -> dict[str, Exception]:
        """Tells readers and writers where restarted shards are; removes workers that could not be told."""
        users = [*(worker for group in self._samplers for worker in group.workers.values()), *learners]
        self._announcer.announce(self._shards.moves(), users)
        ended: dict[str, Exception] = {}
        for worker, failure in self._announcer.failures():
            if worker in learners:
                raise RunFailed(
                    f"{worker.actor.name} could not be told that a replay shard moved: {failure}"
                ) from failure
            worker.failure = failure
            for group in self._samplers:
                ended |= group.remove_ended()
        return ended
