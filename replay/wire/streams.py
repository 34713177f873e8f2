"""The two streams of a Reverb server: items that go in, with their confirmations, and items that come out."""

from __future__ import annotations

import queue
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from podzero.errors import PodzeroError
from podzero.replay.errors import ReplayUnavailable
from podzero.replay.wire import reverb_pb2 as pb
from podzero.replay.wire.connection import Connection
from podzero.replay.wire.items import KEYS, Inserter, Items, Unpacker

_BLOCKED_MS = 5_000
"""After this long without a sample the server ends a stream, because its limiter blocks; so a stream on which nothing
comes for much longer has lost its server."""
_JOIN_S = 5.0
"""Longest wait for a thread whose call was cancelled."""


class InsertStream:
    """Inserts items into one table; knows which of them the server has confirmed.

    A stream that breaks is opened again by `resume`, which sends the unconfirmed items once more. They keep their keys,
    so that one which the server has already is not inserted twice.
    """

    def __init__(self, connection: Connection, table: str, item_bytes: int, chunk_steps: int) -> None:
        """Opens the stream.

        Args:
          connection: to the server.
          table: the name of the table.
          item_bytes: the bytes of an item.
          chunk_steps: see `Inserter`.
        """
        self._connection = connection
        self._inserter = Inserter(table, item_bytes, chunk_steps)
        self._next_key = secrets.randbits(64)
        self._changed = threading.Condition()
        """Guards what follows."""
        self._unconfirmed: dict[int, None] = {}
        """The keys that have been sent and not confirmed, in order."""
        self._sent: deque[tuple[bytes, list[int]]] = deque()
        """The requests, each with its keys, from the first that has unconfirmed items on."""
        self._moving = True
        """Whether anything was confirmed since the last request."""
        self._failure: PodzeroError | None = None
        self._call = self._open()

    @property
    def pending(self) -> int:
        """The number of items that are not confirmed."""
        return len(self._unconfirmed)

    @property
    def broken(self) -> bool:
        """Whether the stream has ended and `resume` is due."""
        return self._failure is not None

    def send(self, rows: NDArray[np.uint8], priorities: NDArray[np.float64]) -> None:
        """Sends items without waiting for their confirmation.

        Args:
          rows: `[n, item_bytes]`.
          priorities: `[n]`.
        """
        request = self._inserter.request(rows, priorities, self._next_key)
        keys = [key % KEYS for key in range(self._next_key, self._next_key + len(rows))]
        self._next_key = (self._next_key + len(rows)) % KEYS
        with self._changed:
            self._moving = False
            self._sent.append((request, keys))
            self._unconfirmed.update(dict.fromkeys(keys))
        self._requests.put(request)

    def wait(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` for all confirmations; whether they have come. Ends early when the stream breaks.

        Raises:
          RequestRefused, MalformedAnswer: the server does not take the items, and will not when they are sent again.
        """
        return self._wait(lambda: not self._unconfirmed, timeout_s)

    def wait_for_room(self, timeout_s: float, at_most: int) -> bool:
        """Waits up to `timeout_s` until the server takes more; whether it does.

        It does when nothing is unconfirmed, or at most `at_most` items are and some were confirmed since the last
        request: then its limiter does not block, and another request keeps it busy. Errors are those of `wait`.
        """
        return self._wait(lambda: not self._unconfirmed or (self._moving and self.pending <= at_most), timeout_s)

    def resume(self) -> None:
        """Opens a broken stream again and sends the unconfirmed items once more."""
        self.close()
        with self._changed:
            self._failure = None
            requests = [request for request, _ in self._sent]
        self._call = self._open()
        for request in requests:
            self._requests.put(request)

    def close(self) -> None:
        """Ends the stream; items that are unconfirmed may or may not be inserted. May be called twice."""
        self._requests.put(None)
        self._call.cancel()
        self._thread.join(_JOIN_S)

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._failure, timeout_s)
            if self._failure is not None and not isinstance(self._failure, ReplayUnavailable):
                raise self._failure
            return condition()

    def _open(self) -> Any:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = self._connection.insert(iter(self._requests.get, None))
        name = f"replay-confirmations-{self._connection.endpoint}"
        self._thread = threading.Thread(target=self._gather, args=(call,), name=name, daemon=True)
        self._thread.start()
        return call

    def _gather(self, call: Any) -> None:
        """The thread: takes confirmations until the stream ends."""
        try:
            with self._connection.errors("an insertion"):
                for answer in call:
                    self._confirm(answer)
            raise ReplayUnavailable(f"replay at {self._connection.endpoint} has ended the stream of insertions")
        except PodzeroError as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _confirm(self, answer: pb.InsertStreamResponse) -> None:
        with self._changed:
            for key in answer.keys:
                self._unconfirmed.pop(key, None)
            self._moving = True
            while self._sent and not any(key in self._unconfirmed for key in self._sent[0][1]):
                self._sent.popleft()
            self._changed.notify_all()


class SampleStream:
    """An iterator over blocks of items that one table gives out: as many as were asked for, and no more.

    It ends when nothing has come for some seconds because the table's limiter blocks, and after `close`.
    """

    def __init__(self, connection: Connection, table: str, item_bytes: int) -> None:
        """Opens the stream; nothing is sampled before `ask`.

        Args:
          connection: to the server.
          table: the name of the table.
          item_bytes: the bytes of an item.
        """
        self._connection = connection
        self._table = table
        self._unpacker = Unpacker(item_bytes)
        self._requests: queue.SimpleQueue[pb.SampleStreamRequest | None] = queue.SimpleQueue()
        self._call = connection.sample(iter(self._requests.get, None))
        self._closed = False

    def ask(self, items: int) -> None:
        """Asks for `items` more, at least one. Thread-safe."""
        timeout = pb.Timeout(milliseconds=_BLOCKED_MS)
        self._requests.put(pb.SampleStreamRequest(table=self._table, num_samples=items, rate_limiter_timeout=timeout))

    def __iter__(self) -> Iterator[Items]:
        """Blocks of items in the order in which they were sampled.

        Raises:
          ReplayUnavailable: the server has gone.
          RequestRefused: it has no such table.
          MalformedAnswer: it answers with something else.
        """
        with self._connection.errors("samples"):
            try:
                for answer in self._call:
                    yield self._unpacker.unpack(answer)
            except grpc.RpcError:
                # The call has no deadline of its own: this one is the limiter's.
                if not self._closed and self._call.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise

    def close(self) -> None:
        """Ends the stream, also for a thread that waits for items. May be called twice, by any thread."""
        self._closed = True
        self._requests.put(None)
        self._call.cancel()
