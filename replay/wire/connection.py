"""A connection to one Reverb server: questions and answers, the stream of inserts and the stream of samples."""

from __future__ import annotations

import queue
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Self

import grpc
import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from podzero.errors import PodzeroError
from podzero.replay.errors import MalformedAnswer, ReplayUnavailable, RequestRefused
from podzero.replay.wire import reverb_pb2 as pb
from podzero.replay.wire.items import KEYS, Inserter, Items, Unpacker

_SERVICE = "/deepmind.reverb.ReverbService/"
_LARGEST_MESSAGE = 300 * 2**20
"""Bytes of one message; what Reverb's own client and server allow."""
_OPTIONS = (
    ("grpc.max_send_message_length", _LARGEST_MESSAGE),
    ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
    # gRPC waits up to two minutes before it looks for a lost server again; a restarted shard is back much sooner.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),  # what one attempt may take; a busy server needs more than the pauses
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),  # shards are machines of this cluster
    ("grpc.use_local_subchannel_pool", 1),  # connections to one server do not share a socket
)
_GONE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
"""What gRPC says when a server is away, hangs, or goes; which of them depends on when and how it does."""
_UNREADABLE = "deserializ"
"""Part of what gRPC says, with the status INTERNAL, of an answer that is no message of the protocol."""


class Connection:
    """A connection to one Reverb server, made when it is first needed and again when it was lost. Thread-safe."""

    def __init__(self, endpoint: str) -> None:
        """Takes the server's `host:port`."""
        self.endpoint = endpoint
        self._channel = grpc.insecure_channel(endpoint, options=_OPTIONS)
        self._server_info = self._question("ServerInfo", pb.ServerInfoResponse)
        self._mutate_priorities = self._question("MutatePriorities", pb.MutatePrioritiesResponse)
        self._checkpoint = self._question("Checkpoint", pb.CheckpointResponse)
        self._reset = self._question("Reset", pb.ResetResponse)

    def tables(self, timeout_s: float) -> dict[str, pb.TableInfo]:
        """The server's tables by name.

        Raises:
          ReplayUnavailable: the server does not answer within `timeout_s`.
          MalformedAnswer: what answers does not speak Reverb's protocol.
        """
        with self.errors("its tables"):
            answer = self._server_info(pb.ServerInfoRequest(), timeout=timeout_s)
        return {info.name: info for info in answer.table_info}

    def set_priorities(self, table: str, priorities: Sequence[tuple[int, float]], timeout_s: float) -> None:
        """Sets the priorities of items, given by their keys; keys that the table no longer holds are ignored.

        Raises:
          ReplayUnavailable: the server does not answer within `timeout_s`.
          RequestRefused: it has no such table, or refuses a priority.
        """
        updates = [pb.KeyWithPriority(key=key, priority=priority) for key, priority in priorities]
        with self.errors("an update of priorities"):
            self._mutate_priorities(pb.MutatePrioritiesRequest(table=table, updates=updates), timeout=timeout_s)

    def checkpoint(self, timeout_s: float | None = None) -> str:
        """Lets the server write all tables into a new folder below its own; returns that folder.

        Raises:
          ReplayUnavailable: it goes meanwhile, or needs longer than `timeout_s`.
          RequestRefused: it could not write.
        """
        with self.errors("a checkpoint"):
            path: str = self._checkpoint(pb.CheckpointRequest(), timeout=timeout_s).checkpoint_path
        return path

    def reset(self, table: str, timeout_s: float) -> None:
        """Empties a table and sets its limiter to its beginning.

        Raises:
          ReplayUnavailable: the server does not answer within `timeout_s`.
          RequestRefused: it has no such table.
        """
        with self.errors("a reset"):
            self._reset(pb.ResetRequest(table=table), timeout=timeout_s)

    def insert(self, requests: Iterator[bytes]) -> Any:
        """Opens a stream of insertions, each a serialized `InsertStreamRequest`.

        The call is an iterator of `InsertStreamResponse`, to be read in `errors`.
        """
        return self._stream("InsertStream", None, pb.InsertStreamResponse)(requests)

    def sample(self, requests: Iterator[pb.SampleStreamRequest]) -> Any:
        """Opens a stream of samples; the call is an iterator of `SampleStreamResponse`, to be read in `errors`."""
        return self._stream("SampleStream", _serialized, pb.SampleStreamResponse)(requests)

    @contextmanager
    def errors(self, asked_for: str) -> Iterator[None]:
        """Turns errors of gRPC in the block into those of replay; `asked_for` names what the server was asked for.

        Raises:
          ReplayUnavailable, RequestRefused, MalformedAnswer: see their docstrings.
        """
        try:
            yield
        except grpc.RpcError as error:
            self._raise(error, asked_for)
        except ValueError as error:  # the channel was closed by another thread
            raise ReplayUnavailable(f"the connection to replay at {self.endpoint} is closed ({error})") from None

    def close(self) -> None:
        """Ends the connection and its streams; may be called twice."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _question[Answer: Message](self, name: str, answer: type[Answer]) -> Callable[..., Answer]:
        call: Callable[..., Answer] = self._channel.unary_unary(
            _SERVICE + name, request_serializer=_serialized, response_deserializer=answer.FromString
        )
        return call

    def _stream(
        self, name: str, serializer: Callable[[Message], bytes] | None, answer: type[Message]
    ) -> Callable[..., Any]:
        call: Callable[..., Any] = self._channel.stream_stream(
            _SERVICE + name, request_serializer=serializer, response_deserializer=answer.FromString
        )
        return call

    def _raise(self, error: Any, asked_for: str) -> NoReturn:
        status, details = error.code(), error.details() or ""
        if status in _GONE:
            raise ReplayUnavailable(
                f"replay at {self.endpoint} was asked for {asked_for} and does not answer ({status.name}: {details})"
            ) from None
        if status is grpc.StatusCode.UNIMPLEMENTED or _UNREADABLE in details:
            raise MalformedAnswer(
                f"what answers at {self.endpoint} does not speak Reverb's protocol, as that of 0.14 and 0.15 is "
                f"({status.name}: {details}): another program, or another version of Reverb, has the port"
            ) from None
        raise RequestRefused(f"replay at {self.endpoint} refuses {asked_for}: {status.name}: {details}") from None


def _serialized(request: Message) -> bytes:
    content: bytes = request.SerializeToString()
    return content


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
