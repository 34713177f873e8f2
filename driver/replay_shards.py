"""The replay shards of a run: one that dies comes to life again elsewhere, and its readers and writers follow it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from podzero.cluster.placement import Node
from podzero.cluster.remote import START_TIMEOUT_S, Call, RemoteActor, WorkerDied
from podzero.driver.worker import ANSWER_TIMEOUT_S, Worker

log = logging.getLogger(__name__)


class Move(NamedTuple):
    """A shard that lives elsewhere now."""

    old: str
    """The address at which it is known."""
    new: str


class _Coming(NamedTuple):
    """A shard on its way up."""

    address: Call
    node: Node
    content: Path | None


class ReplayShards:
    """All replay shards, by index.

    Args:
      spawn: starts the process of a shard on a node, with contents from a folder or without.
    """

    def __init__(self, spawn: Callable[[int, Node, Path | None], RemoteActor]) -> None:
        self._spawn = spawn
        self.workers: list[Worker] = []
        self._addresses: list[str] = []
        self._coming: dict[int, _Coming] = {}

    @property
    def actors(self) -> list[RemoteActor]:
        """The processes, of which some may be starting."""
        return [worker.actor for worker in self.workers]

    def start(self, nodes: Sequence[Node], contents: Sequence[Path | None]) -> None:
        """Starts one shard on each of `nodes`; returns before they are up."""
        places = enumerate(zip(nodes, contents, strict=True))
        self.workers = [Worker(self._spawn(index, node, content)) for index, (node, content) in places]

    def await_ready(self) -> None:
        """Waits until all shards listen.

        Raises:
          ReplayRestoreError, PortTaken, ...: whatever kept a shard from being built.
        """
        self._addresses = [worker.actor.ask("address", timeout_s=2 * START_TIMEOUT_S) for worker in self.workers]

    def lost(self) -> list[tuple[int, WorkerDied]]:
        """The shards whose processes are gone, and how they ended."""
        gone = []
        for index, worker in enumerate(self.workers):
            if worker.fetch is not None and worker.fetch.done:
                try:
                    worker.fetch.result(ANSWER_TIMEOUT_S)
                except WorkerDied as loss:
                    gone.append((index, loss))
        return gone

    def replace(self, index: int, nodes: Sequence[Node], content: Path | None) -> bool:
        """Starts a lost shard anew, where the fewest are; False when there is no node for it yet.

        Args:
          index: of the shard.
          nodes: where shards may go.
          content: of the last savepoint; without, the shard starts empty.
        """
        if not nodes:
            return False
        crowded = Counter(worker.actor.node for other, worker in enumerate(self.workers) if other != index)
        self._revive(index, min(nodes, key=lambda node: (crowded[node.id], -node.cpus, node.id)), content)
        return True

    def moves(self) -> list[Move]:
        """The replaced shards that have come up since the last call, for everybody who reads and writes.

        Raises:
          Exception: whatever keeps an empty shard from being built.
        """
        made = []
        for index, (call, node, content) in [item for item in self._coming.items() if item[1].address.done]:
            del self._coming[index]
            try:
                new = call.result(ANSWER_TIMEOUT_S)
            except WorkerDied:
                continue  # it is found lost once more
            except Exception as failure:
                if content is None:
                    raise
                log.warning("replay-%d could not take the contents of the last savepoint: %s", index, failure)
                self._revive(index, node, None)
                continue
            made.append(Move(self._addresses[index], new))
            self._addresses[index] = new
        return made

    def _revive(self, index: int, node: Node, content: Path | None) -> None:
        held = "what the last savepoint holds of it" if content else "nothing"
        log.warning("replay-%d starts again on %s with %s", index, node, held)
        self.workers[index].actor.kill()
        self.workers[index] = Worker(self._spawn(index, node, content))
        self._coming[index] = _Coming(self.workers[index].actor.begin("address"), node, content)

    def kill(self) -> None:
        """Ends all shards without ceremony."""
        for worker in self.workers:
            worker.actor.kill()
        self.workers, self._coming = [], {}
