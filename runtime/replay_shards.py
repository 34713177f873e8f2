"""The replay shards of a run: a shard that dies is restarted, and its readers and writers are told its new address."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from podzero.errors import ClusterError
from podzero.runtime.checkpoints import SavedShard
from podzero.runtime.cluster.placement import Node
from podzero.runtime.cluster.remote import BUILD_TIMEOUT_S, START_TIMEOUT_S, Call, RemoteActor, WorkerDied
from podzero.runtime.worker import ANSWER_TIMEOUT_S, Worker, await_answers

log = logging.getLogger(__name__)

MOVE_ATTEMPTS = 3
"""How often a worker is told that a shard has moved before it counts as failed."""
MOVE_TIMEOUT_S = START_TIMEOUT_S
"""Longest wait for a worker to confirm a move: it answers only when it is built."""


class Move(NamedTuple):
    """A shard that was restarted at another address."""

    old: str
    """The address that readers and writers know."""
    new: str


class _Restart(NamedTuple):
    """A shard that is being restarted."""

    address: Call
    node: Node
    deadline: float
    """On the monotonic clock."""


class ReplayShards:
    """All replay shards, by index.

    Args:
      spawn: starts the process of a shard, given its index, on a node, with the first contents that are whole.
    """

    def __init__(self, spawn: Callable[[int, Node, Sequence[SavedShard]], RemoteActor]) -> None:
        self._spawn = spawn
        self.workers: list[Worker] = []
        self._addresses: list[str] = []
        self._restarts: dict[int, _Restart] = {}

    @property
    def actors(self) -> list[RemoteActor]:
        """The remote actors of the shards, some of which may be starting."""
        return [worker.actor for worker in self.workers]

    def start(self, nodes: Sequence[Node], contents: Sequence[Sequence[SavedShard]]) -> None:
        """Starts one shard on each of `nodes`, with the first of its `contents` that is whole; returns at once."""
        places = enumerate(zip(nodes, contents, strict=True))
        self.workers = [Worker(self._spawn(index, node, found)) for index, (node, found) in places]

    def await_ready(self) -> None:
        """Waits until all shards listen.

        Raises:
          ReplayMismatch, PortTaken, ...: whatever kept a shard from being built; the first such error of any.
        """
        calls = [(worker, worker.actor.begin("address")) for worker in self.workers]
        self._addresses = await_answers(calls, BUILD_TIMEOUT_S)

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

    def moves(self) -> list[Move]:
        """The restarted shards that have begun to listen since the last call.

        One that has failed, or does not listen in time, is `lost` again.
        """
        moves = []
        for index, restart in list(self._restarts.items()):
            if restart.address.done:
                del self._restarts[index]
                moves += self._finish(index, restart)
            elif time.monotonic() >= restart.deadline:
                del self._restarts[index]
                self.workers[index].failure = ClusterError(
                    f"replay-{index} has not listened for {BUILD_TIMEOUT_S:.0f} s since it was restarted on "
                    f"{restart.node}: is the node overloaded, or without the CPUs or memory that it reserves "
                    "(replay.cpus, replay.memory_gib)?"
                )
        return moves

    def kill(self) -> None:
        """Ends all shards at once."""
        for worker in self.workers:
            worker.actor.kill()
        self.workers, self._restarts = [], {}

    def _finish(self, index: int, restart: _Restart) -> list[Move]:
        """The move of a shard that has answered where it listens; none if it failed."""
        try:
            new = restart.address.result(ANSWER_TIMEOUT_S)
        except Exception as failure:
            self.workers[index].failure = failure
            return []
        move = Move(self._addresses[index], new)
        self._addresses[index] = new
        return [move]

    def _restart(self, index: int, node: Node, contents: Sequence[SavedShard]) -> None:
        held = f"the contents of {contents[0].folder}" if contents else "no contents"
        log.warning("replay-%d restarts on %s with %s", index, node, held)
        self.workers[index].actor.kill()
        self.workers[index] = Worker(self._spawn(index, node, contents))
        address = self.workers[index].actor.begin("address")
        self._restarts[index] = _Restart(address, node, time.monotonic() + BUILD_TIMEOUT_S)


class _Announcement(NamedTuple):
    """A move of which a worker is being told."""

    worker: Worker
    move: Move
    call: Call
    attempt: int
    deadline: float


class MoveAnnouncer:
    """Tells workers that shards have moved, and reads whether each has understood."""

    def __init__(self) -> None:
        self._pending: list[_Announcement] = []

    def announce(self, moves: Iterable[Move], workers: Sequence[Worker]) -> None:
        """Tells all `workers` of all `moves`; returns at once."""
        self._pending += [_tell(worker, move) for move in moves for worker in workers]

    def failures(self) -> list[tuple[Worker, Exception]]:
        """The workers that could not be told of a move in `MOVE_ATTEMPTS` attempts, and why; repeats failed attempts.

        A worker that died meanwhile is not among them: whoever takes its place asks the shards for their addresses.
        """
        announcements, self._pending, failures = self._pending, [], []
        for announcement in announcements:
            worker, move, call, attempt, deadline = announcement
            if not call.done and time.monotonic() < deadline:
                self._pending.append(announcement)
                continue
            try:
                call.result(ANSWER_TIMEOUT_S if call.done else 0.0)
            except WorkerDied:
                continue
            except Exception as failure:
                log.warning("%s did not learn that replay moved to %s", worker.actor.name, move.new, exc_info=failure)
                if attempt < MOVE_ATTEMPTS:
                    self._pending.append(_tell(worker, move, attempt + 1))
                else:
                    failures.append((worker, failure))
        return failures


def _tell(worker: Worker, move: Move, attempt: int = 1) -> _Announcement:
    call = worker.actor.begin("moved", move.old, move.new)
    return _Announcement(worker, move, call, attempt, time.monotonic() + MOVE_TIMEOUT_S)
