"""Workers of one kind, as many as the experiment wants and the nodes have room for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from podzero.runtime.cluster.accelerators import accelerator_places
from podzero.runtime.cluster.placement import Node
from podzero.runtime.cluster.remote import RemoteActor
from podzero.runtime.monitoring.monitor import kind_of
from podzero.runtime.worker import Patience, Worker


class End(NamedTuple):
    """How a worker ended."""

    node: str | None
    """Id of its node, if that is known."""
    error: Exception


class WorkerGroup:
    """The inference servers, the actors, the reanalysers, or the evaluator of a run.

    Args:
      names: of all workers that the group may have, by index.
      cpus: that each worker takes.
      spawn: starts the process of a worker, given its name and index, on a node.
      resources: accelerators that each worker takes; by default none.
      patience: how long a worker may be silent before it is replaced; by default for ever.
    """

    def __init__(
        self,
        names: Sequence[str],
        cpus: float,
        spawn: Callable[[str, int, Node], RemoteActor],
        resources: Mapping[str, float] | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.cpus = cpus
        self.resources = dict(resources or {})
        self.wanted = len(names)
        """How many of the names shall have a worker, from the first on."""
        self.workers: dict[str, Worker] = {}
        """The workers by name; one for which no node has room yet is absent."""
        self._names = list(names)
        self._spawn = spawn
        self._patience = patience

    @property
    def kind(self) -> str:
        """The kind of its workers; empty if there are none."""
        return kind_of(self._names[0]) if self._names else ""

    @property
    def complete(self) -> bool:
        """Whether every wanted worker has been started."""
        return len(self.workers) >= self.wanted

    @property
    def missing_cpus(self) -> list[float]:
        """CPUs of each wanted worker that has not been started."""
        return [self.cpus] * max(0, self.wanted - len(self.workers))

    def could_run_on(self, node: Node) -> bool:
        """Whether a worker fits onto the node when nothing else runs there."""
        has = node.resources
        return node.cpus >= self.cpus and all(has.get(name, 0.0) >= amount for name, amount in self.resources.items())

    def scale(
        self,
        nodes: Sequence[Node],
        taken: Mapping[str, float],
        may_start: Callable[[str], bool],
        limit: int | None = None,
    ) -> dict[str, Node]:
        """Starts the wanted workers that are absent, as far as nodes have room.

        Args:
          nodes: where workers may be started.
          taken: CPUs that the run uses already, by node id.
          may_start: whether the worker of a name may start now.
          limit: considers only the first so many workers; all by default.

        Returns:
          the nodes of the started workers, by name.
        """
        wanted = self._names[: self.wanted][:limit]
        absent = [index for index, name in enumerate(wanted) if name not in self.workers and may_start(name)]
        started = {}
        running = Counter(worker.actor.node for worker in self.workers.values() if worker.actor.node is not None)
        places = accelerator_places(nodes, taken, running, self.cpus, self.resources, len(absent))
        for index, node in zip(absent, places, strict=False):
            actor = self._spawn(wanted[index], index, node)
            self.workers[wanted[index]] = Worker(actor, actor.begin("run"))
            started[wanted[index]] = node
        return started

    def remove_ended(self) -> dict[str, End]:
        """Removes the workers that ended by themselves or are silent for too long; returns their ends, by name."""
        if self._patience is not None:
            for worker in self.workers.values():
                worker.check_silence(self._patience)
        ended = {
            name: End(worker.actor.node, error)
            for name, worker in self.workers.items()
            if (error := worker.ended()) is not None
        }
        for name in ended:
            self.workers.pop(name).actor.kill()
        return ended

    def kill(self) -> None:
        """Ends all workers at once."""
        for worker in self.workers.values():
            worker.actor.kill()
        self.workers = {}
