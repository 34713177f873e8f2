"""Compares the workers that a run wants with those that are alive, and starts the difference."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from podzero.config import Experiment
from podzero.runtime.checkpoints import Checkpoint, SavedShard
from podzero.runtime.failures import SHARD, Failures
from podzero.runtime.learner_group import LearnerFailed
from podzero.runtime.nodes import RunNodes
from podzero.runtime.replay_shards import MoveAnnouncer, ReplayShards
from podzero.runtime.worker import Worker
from podzero.runtime.worker_group import WorkerGroup

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""Time between two looks for nodes with room for the workers that are missing."""


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
        self._failures = Failures(experiment.restarts, nodes.describe)
        self._shard_cpus = experiment.replay.cpus
        self._noted: dict[int, Worker] = {}
        """By index, the last process of a shard whose loss was noted."""
        self._homeless: set[int] = set()
        """Indices of the lost shards for which there is no node."""
        self._announcer = MoveAnnouncer()
        self._look_at = 0.0

    @property
    def workers(self) -> list[Worker]:
        """All inference servers, actors and reanalysers, and the evaluator."""
        return [worker for group in self._groups for worker in list(group.workers.values())]

    @property
    def failing(self) -> dict[str, str]:
        """The workers that have failed and not worked since, by name: how often in a row, and their last errors."""
        return self._failures.failing

    def reconcile(self, learners: Sequence[Worker], newest: Callable[[], Checkpoint | None]) -> list[str]:
        """Replaces the workers that ended, and starts those for which there is room now.

        Args:
          learners: told when a shard moves.
          newest: finds the newest checkpoint, from which a shard takes its contents.

        Returns:
          the names of the workers that ended, and of the shards that were replaced.

        Raises:
          RunFailed: workers that training needs have failed too often or cannot do what the experiment asks for.
          LearnerFailed: a learner could not be told that a shard moved.
        """

        def contents(index: int) -> list[SavedShard]:
            return saved.shard(index) if (saved := newest()) else []

        for worker in [*self._shards.workers, *self.workers]:
            if worker.worked:
                self._failures.note_work(worker.actor.name)
        replaced = self._replace_shards(contents)
        ended = [name for group in self._groups for name in self._remove_ended(group)]
        self._announce_moves(learners)
        ended += [name for group in self._samplers for name in self._remove_ended(group)]
        if replaced or ended or time.monotonic() >= self._look_at:
            self.scale()
        return [*replaced, *ended]

    def scale(self) -> None:
        """Starts the wanted workers that are not alive, as far as nodes have room and they may start again."""
        self._look_at = time.monotonic() + LOOK_EVERY_S
        nodes = [] if all(group.complete for group in self._groups) else self._nodes.for_workers()
        for group, limit in self._start_order:
            if group in self._samplers and self._shards.lost():
                continue  # they are built with the addresses of all shards
            where = self._nodes.with_accelerators() if group.resources and not group.complete else nodes
            usable = self._failures.usable(group.kind, [node for node in where if group.could_run_on(node)])
            for name, node in group.scale(usable, self.taken(), self._failures.may_start, limit).items():
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

    def _remove_ended(self, group: WorkerGroup) -> list[str]:
        """Removes the workers of a group that ended; returns their names."""
        ended = group.remove_ended()
        alive = [*group.workers, *ended]  # each that ended is noted in its turn
        for name, (node, error) in ended.items():
            self._failures.note_end(name, node, error, alive)
        return list(ended)

    def _replace_shards(self, contents: Callable[[int], list[SavedShard]]) -> list[str]:
        """Restarts the lost shards that may restart, each with its first whole `contents`; returns their names."""
        replaced, all_lost = [], self._shards.lost()
        self._homeless &= {index for index, _ in all_lost}
        for index, loss in all_lost:
            name, lost = f"{SHARD}-{index}", self._shards.workers[index]
            if self._noted.get(index) is not lost:
                self._noted[index] = lost
                self._failures.note_end(name, lost.actor.node, loss, [])
            if not self._failures.may_start(name):
                continue
            nodes = self._failures.usable(SHARD, self._nodes.for_workers())
            if self._shards.replace(index, nodes, contents(index)):
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

    def _announce_moves(self, learners: Sequence[Worker]) -> None:
        """Tells readers and writers where restarted shards are; those that could not be told are of no use any more."""
        users = [*(worker for group in self._samplers for worker in group.workers.values()), *learners]
        self._announcer.announce(self._shards.moves(), users)
        for worker, failure in self._announcer.failures():
            if worker in learners:
                raise LearnerFailed(
                    f"{worker.actor.name} could not be told that a replay shard moved: {failure}"
                ) from failure
            worker.failure = failure
