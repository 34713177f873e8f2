"""The replay shards of a run. One that dies is restarted; readers and writers find its new address in the directory."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from podzero.errors import ClusterError
from podzero.runtime.checkpoints import SavedShard
from podzero.runtime.cluster.placement import Node
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S, Call, RemoteActor
from podzero.runtime.worker import ANSWER_TIMEOUT_S, Worker, await_answers

log = logging.getLogger(__name__)


class _Restart(NamedTuple):
    """A shard that is being restarted."""

    ready: Call
    node: Node
    deadline: float
    """On the monotonic clock."""


class ReplayShards:
    """All replay shards, by index.

    Args:
      spawn: starts the process of a shard, given its index, on a node, with the first contents that are whole.
    """

    def __init__(self, spawn: Callable[[int, Node, Sequence[SavedShard]], Worker]) -> None:
        self._spawn = spawn
        self.workers: list[Worker] = []
        self._restarts: dict[int, _Restart] = {}

    @property
    def actors(self) -> list[RemoteActor]:
        """The remote actors of the shards, some of which may be starting."""
        return [worker.actor for worker in self.workers]

    def start(self, nodes: Sequence[Node], contents: Sequence[Sequence[SavedShard]]) -> None:
        """Starts one shard on each of `nodes`, with the first of its `contents` that is whole; returns at once."""
        places = enumerate(zip(nodes, contents, strict=True))
        self.workers = [self._spawn(index, node, found) for index, (node, found) in places]

    def await_ready(self) -> None:
        """Waits until all shards listen.

        Raises:
          ReplayMismatch, PortTaken, ...: whatever kept a shard from being built; the first such error of any.
        """
        await_answers([(worker, worker.actor.begin("ready")) for worker in self.workers], BUILD_TIMEOUT_S)

    @property
    def complete(self) -> bool:
        """Whether all shards work, as far as is known: none has failed, and none is still being restarted."""
        return not self._restarts and not self.lost()

    def lost(self) -> list[tuple[int, Exception]]:
        """The indices of the shards that failed, and why each failed."""
        return [(index, end) for index, worker in enumerate(self.workers) if (end := worker.ended()) is not None]

    def replace(self, index: int, nodes: Sequence[Node], contents: Sequence[SavedShard]) -> bool:
        """Restarts a lost shard on the node with the fewest shards; returns False when there is no node for it.

        Args:
          index: of the shard.
          nodes: where shards may be started.
          contents: of the newest checkpoint and those before; the shard takes the first that is whole, or is empty.
        """
        if not nodes:
            return False
        crowded = Counter(worker.actor.node for other, worker in enumerate(self.workers) if other != index)
        self._restart(index, min(nodes, key=lambda node: (crowded[node.id], -node.cpus, node.id)), contents)
        return True

    def check_restarts(self) -> None:
        """Looks at shards that are being restarted; one that failed, or does not listen in time, is `lost` again."""
        for index, restart in list(self._restarts.items()):
            if restart.ready.done:
                del self._restarts[index]
                try:
                    restart.ready.result(ANSWER_TIMEOUT_S)
                except Exception as failure:
                    self.workers[index].failure = failure
            elif time.monotonic() >= restart.deadline:
                del self._restarts[index]
                self.workers[index].failure = ClusterError(
                    f"replay-{index} has not listened for {BUILD_TIMEOUT_S:.0f} s since it was restarted on "
                    f"{restart.node}: is the node overloaded, or without the CPUs or memory that it reserves "
                    "(replay.cpus, replay.memory_gib)?"
                )

    def kill(self) -> None:
        """Ends all shards at once."""
        for worker in self.workers:
            worker.actor.kill()
        self.workers, self._restarts = [], {}

    def _restart(self, index: int, node: Node, contents: Sequence[SavedShard]) -> None:
        held = f"the contents of {contents[0].folder}" if contents else "no contents"
        log.warning("replay-%d restarts on %s with %s", index, node, held)
        self.workers[index].actor.kill()
        self.workers[index] = self._spawn(index, node, contents)
        ready = self.workers[index].actor.begin("ready")
        self._restarts[index] = _Restart(ready, node, time.monotonic() + BUILD_TIMEOUT_S)
