"""Processes of one kind, of which a run has as many as there is room for: hired, missed, dismissed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from podzero.cluster.placement import Node, actor_places
from podzero.cluster.remote import RemoteActor
from podzero.driver.worker import Worker


class WorkerGroup:
    """The actors, or the reanalysers, of a run.

    Args:
      kind: the first part of their names, as in `actor-3`.
      count: how many are wanted.
      cpus: that each takes.
      spawn: starts the process of an index on a node.
    """

    def __init__(self, kind: str, count: int, cpus: float, spawn: Callable[[str, int, Node], RemoteActor]) -> None:
        self.cpus = cpus
        self.count = count
        self.workers: dict[int, Worker] = {}
        """By index; one for which no node has room yet is absent."""
        self._kind = kind
        self._spawn = spawn

    @property
    def complete(self) -> bool:
        """Whether nobody is missing."""
        return len(self.workers) == self.count

    def scale(self, nodes: Sequence[Node], taken: Mapping[str, float], most: int | None = None) -> dict[str, Node]:
        """Starts those that are missing, as far as nodes have room; returns who went where.

        Args:
          nodes: where they may go.
          taken: CPUs that the run uses already, by node id.
          most: only the first so many.
        """
        absent = [index for index in range(self.count)[:most] if index not in self.workers]
        started = {}
        for index, node in zip(absent, actor_places(nodes, taken, self.cpus, len(absent)), strict=False):
            actor = self._spawn(f"{self._kind}-{index}", index, node)
            self.workers[index] = Worker(actor, actor.begin("run"))
            started[actor.name] = node
        return started

    def lost(self) -> dict[str, Exception]:
        """Gives up those whose processes ended by themselves; returns how, by name."""
        ends = {index: end for index, worker in self.workers.items() if (end := worker.ended()) is not None}
        for index in ends:
            self.workers.pop(index).actor.kill()
        return {f"{self._kind}-{index}": end for index, end in ends.items()}

    def kill(self) -> None:
        """Ends all of them without ceremony."""
        for worker in self.workers.values():
            worker.actor.kill()
        self.workers = {}
