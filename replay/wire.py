"""Reverb's wire protocol without Reverb: items in its messages, and a client of one server.

An item is a row of bytes in a chunk, a tensor `[steps, bytes]` of uint8 in raw Snappy; it refers to chunk and step.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import cramjam
import grpc
import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from podzero.core.errors import PodzeroError
from podzero.replay import reverb_pb2 as pb
from podzero.replay.errors import ReplayUnavailable, RequestRefused, WrongServer

_UINT8 = 4
"""TensorFlow's number of this dtype."""
_LARGEST_CHUNK = 2**28
"""Largest size of a chunk in bytes; an answer with a larger one counts as malformed."""
_LARGEST_ARENA = 2**18
"""Bytes after which a message that is filled in repeatedly is built anew: what it held before is freed only with it."""
DRAWN = np.dtype([("key", np.uint64), ("probability", np.float64), ("table_size", np.int64)])
"""An item's key in its table, the probability with which the table sampled it, and its number of items at that time."""
Converted = Callable[[NDArray[np.uint8]], NDArray[np.uint8] | None]
"""Maps the bytes of an older item to those of one of today, and others to None."""


class Items:
    """Sampled items, in order; their bytes are decompressed only where they are needed, by `read`."""

    def __init__(self, entries: list[list[Any]]) -> None:
        """Takes the entries of each item: the first holds its description, all together its chunks."""
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def read(self, places: Sequence[NDArray[np.uint8]], converted: Converted = lambda content: None) -> None:
        """Decompresses each item into its place, `[item_bytes]`; those of another size as they are `converted`."""
        for place, entries in zip(places, self._entries, strict=True):
            chunks = entries[0].data if len(entries) == 1 else [chunk for entry in entries for chunk in entry.data]
            _read(place, entries[0].info.item, chunks, converted)

    @property
    def drawn(self) -> NDArray[Any]:
        """`[n]` of `DRAWN`."""
        infos = [entries[0].info for entries in self._entries]
        return np.array([(info.item.key, info.probability, info.table_size) for info in infos], DRAWN)


class Inserter:
    """Builds the requests that insert rows of bytes as items of one table. Not thread-safe."""

    def __init__(self, table: str, item_bytes: int, chunk_steps: int) -> None:
        """`chunk_steps` rows are compressed together; the server sends all of them for every item that is read."""
        self._chunk_steps = chunk_steps
        # Filling in and serializing the same messages takes half the time of building new ones.
        column = pb.FlatTrajectory.Column(chunk_slices=[pb.FlatTrajectory.ChunkSlice(length=1)], squeeze=True)
        item = pb.PrioritizedItem(table=table, flat_trajectory=pb.FlatTrajectory(columns=[column]))
        self._item = pb.InsertStreamRequest(items=[item])
        self._chunks = [_Chunk(steps, item_bytes) for steps in range(1, chunk_steps + 1)]
        """The messages of chunks of one row, two rows, and so on."""

    def request(self, rows: NDArray[np.uint8], priorities: NDArray[np.float64], keys: Sequence[int]) -> bytes:
        """The serialized request that inserts rows (`[n, item_bytes]`) with `priorities` (`[n]`) and n keys."""
        # Protocol Buffers read concatenated messages, here of one chunk or one item each, as one.
        rows, parts = np.ascontiguousarray(rows), []
        item, piece = self._item.items[0], self._item.items[0].flat_trajectory.columns[0].chunk_slices[0]
        for index, (key, priority) in enumerate(zip(keys, priorities.tolist(), strict=True)):
            step = index % self._chunk_steps
            if step == 0:
                steps = rows[index : index + self._chunk_steps]
                parts.append(self._chunks[len(steps) - 1].request(steps, key))
                piece.chunk_key = key
            item.key, item.priority, piece.offset = key, priority, step
            parts.append(self._item.SerializeToString())
        return b"".join(parts)


class _Chunk:
    """The message of one chunk, which is filled in repeatedly."""

    def __init__(self, steps: int, item_bytes: int) -> None:
        self._steps, self._item_bytes = steps, item_bytes
        self._build()

    def request(self, rows: NDArray[np.uint8], key: int) -> bytes:
        """The serialized request with `rows` under `key`."""
        if self._held > _LARGEST_ARENA:
            self._build()
        self._chunk.chunk_key = self._range.episode_id = key
        self._tensor.tensor_content = content = bytes(cramjam.snappy.compress_raw(rows))
        self._held += len(content)
        return self._request.SerializeToString()

    def _build(self) -> None:
        shape = pb.Shape(dim=[pb.Shape.Dim(size=self._steps), pb.Shape.Dim(size=self._item_bytes)])
        chunk = pb.ChunkData(
            sequence_range=pb.SequenceRange(start=0, end=self._steps - 1),
            data=pb.ChunkData.Data(tensors=[pb.Tensor(dtype=_UINT8, tensor_shape=shape)]),
            data_tensors_len=1,
            data_uncompressed_size=self._steps * self._item_bytes,
        )
        self._request = pb.InsertStreamRequest(chunks=[chunk])
        self._chunk = self._request.chunks[0]
        self._range, self._tensor = self._chunk.sequence_range, self._chunk.data.tensors[0]
        self._held = 0


def items_of(answers: Iterable[pb.SampleStreamResponse]) -> Iterator[Items]:
    """The items that each answer of a stream completes, in order; an item may be spread over several answers."""
    begun: list[Any] = []
    for answer in answers:
        items = []
        for entry in answer.entries:
            begun.append(entry)
            if entry.end_of_sequence:
                items.append(begun)
                begun = []
        yield Items(items)


def _read(place: NDArray[np.uint8], item: Any, chunks: Sequence[Any], converted: Converted) -> None:
    """Fills `place` with an item's bytes."""
    columns = item.flat_trajectory.columns
    if len(columns) != 1:
        _refuse(f"an item of {len(columns)} columns; expected 1")
    slices = columns[0].chunk_slices
    if len(slices) == 1 and _is_one_step(slices[0], chunks, len(place)):
        # The usual case, decompressed in place without a copy.
        _decompress(chunks[0].data.tensors[0].tensor_content, place)
        return
    steps = [_steps(piece, chunks) for piece in slices]
    content = np.concatenate(steps).ravel() if steps else place[:0]
    made = content if len(content) == len(place) else converted(content)
    if made is None:
        _refuse(f"an item of {len(content)} bytes; expected {len(place)}")
    place[:] = made


def _is_one_step(piece: Any, chunks: Sequence[Any], item_bytes: int) -> bool:
    """Whether the item is the only step of its only chunk."""
    return bool(
        len(chunks) == 1
        and (piece.offset, piece.length, piece.index, piece.chunk_key) == (0, 1, 0, chunks[0].chunk_key)
        and chunks[0].data_uncompressed_size == item_bytes
        and not chunks[0].delta_encoded
        and len(chunks[0].data.tensors) == 1
    )


def _steps(piece: Any, chunks: Sequence[Any]) -> NDArray[np.uint8]:
    """The steps of a chunk that belong to an item, `[length, bytes]`."""
    chunk = next((chunk for chunk in chunks if chunk.chunk_key == piece.chunk_key), None)
    if chunk is None:
        _refuse(f"an item without its chunk {piece.chunk_key}")
    if not 0 <= piece.index < len(chunk.data.tensors):
        _refuse(f"a chunk of {len(chunk.data.tensors)} tensors; an item names number {piece.index}")
    tensor = chunk.data.tensors[piece.index]
    steps = _tensor(tensor)
    if chunk.delta_encoded:
        steps = np.cumsum(steps, axis=0, dtype=np.uint8)
    if piece.offset < 0 or piece.length < 1 or piece.offset + piece.length > len(steps):
        _refuse(f"a chunk of {len(steps)} steps; an item names {piece.length} from {piece.offset} on")
    return steps[piece.offset : piece.offset + piece.length]


def _tensor(tensor: pb.Tensor) -> NDArray[np.uint8]:
    """A tensor of uint8, `[steps, bytes]`."""
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.dtype != _UINT8 or len(shape) != 2 or min(shape) < 1 or shape[0] * shape[1] > _LARGEST_CHUNK:
        _refuse(f"a tensor of dtype {tensor.dtype} and shape {shape}; expected uint8 ({_UINT8}), [steps, bytes]")
    steps = np.empty(shape, np.uint8)
    _decompress(tensor.tensor_content, steps.reshape(-1))
    return steps


def _decompress(content: bytes, into: NDArray[np.uint8]) -> None:
    try:
        size = cramjam.snappy.decompress_raw_into(content, into)
    except (cramjam.DecompressionError, ValueError) as error:
        _refuse(f"{len(content)} compressed bytes that are damaged or too many ({error})")
    if size != len(into):
        _refuse(f"{size} bytes; expected {len(into)}")


def _refuse(found: str) -> NoReturn:
    raise WrongServer(f"replay answers with {found}")


_SERVICE = "/deepmind.reverb.ReverbService/"
_LARGEST_MESSAGE = 300 * 2**20
"""Largest size of a message in bytes, as in Reverb's own client and server."""
_OPTIONS = (
    ("grpc.max_send_message_length", _LARGEST_MESSAGE),
    ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
    # By default gRPC pauses up to two minutes between attempts to reconnect; a restarted shard is back much sooner.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # In spite of its name, the time that one attempt may take; a busy server needs longer than the pauses above.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Shards are machines of this cluster, behind no proxy.
    ("grpc.enable_http_proxy", 0),
    # Connections to one server must not share a socket.
    ("grpc.use_local_subchannel_pool", 1),
)
_CONFIRMING = (
    *_OPTIONS,
    # Space for so few bytes of unread confirmations makes the server put dozens of keys into one message. By default it
    # sends most keys alone, and Python's cost for each message limits the rate of insertions.
    ("grpc.http2.lookahead_bytes", 64),
    ("grpc.http2.bdp_probe", 0),
)
"""Options of the channel for insertions."""
_GONE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
"""Status codes of a server that is away, hangs or disappears; which one depends on the moment."""
_UNREADABLE = "deserializ"
"""Part of gRPC's message, with the status INTERNAL, about an answer that cannot be parsed."""


class Connection:
    """A connection to one Reverb server, opened when first needed and reopened when lost. Thread-safe.

    Raises ReplayUnavailable without an answer in time, RequestRefused if refused, WrongServer for another program.
    """

    def __init__(self, endpoint: str) -> None:
        """Takes the server's `host:port`."""
        self.endpoint = endpoint
        self._channel = grpc.insecure_channel(endpoint, options=_OPTIONS)
        self._inserting = grpc.insecure_channel(endpoint, options=_CONFIRMING)

    def state(self, timeout_s: float) -> tuple[str, dict[str, pb.TableInfo]]:
        """The server's identity, a random number that changes with each start of a server, and its tables by name."""
        request = pb.ServerInfoRequest()
        answer = self._ask("ServerInfo", request, pb.ServerInfoResponse, "its tables", timeout_s)
        number = answer.tables_state_id
        return f"{number.high:016x}{number.low:016x}", {info.name: info for info in answer.table_info}

    def set_priorities(self, table: str, priorities: Sequence[tuple[int, float]], timeout_s: float) -> None:
        """Sets the priorities of items by key; keys that the table no longer holds are ignored."""
        updates = [pb.KeyWithPriority(key=key, priority=priority) for key, priority in priorities]
        request = pb.MutatePrioritiesRequest(table=table, updates=updates)
        self._ask("MutatePriorities", request, pb.MutatePrioritiesResponse, "an update of priorities", timeout_s)

    def checkpoint(self, timeout_s: float | None = None) -> str:
        """Lets the server write all tables into a new folder in its checkpoint folder; returns that folder."""
        request = pb.CheckpointRequest()
        return self._ask("Checkpoint", request, pb.CheckpointResponse, "a checkpoint", timeout_s).checkpoint_path

    def insert(self, requests: Iterator[bytes]) -> Any:
        """Opens a stream of serialized requests; returns an iterator over `InsertStreamResponse`, see `sample`."""
        read = pb.InsertStreamResponse.FromString
        return self._inserting.stream_stream(f"{_SERVICE}InsertStream", response_deserializer=read)(requests)

    def sample(self, requests: Iterator[pb.SampleStreamRequest]) -> Any:
        """Opens a stream of samples; returns an iterator over `SampleStreamResponse`, to be read inside `errors`."""
        call = self._channel.stream_stream(
            f"{_SERVICE}SampleStream",
            request_serializer=pb.SampleStreamRequest.SerializeToString,
            response_deserializer=pb.SampleStreamResponse.FromString,
        )
        return call(requests)

    @contextmanager
    def errors(self, asked_for: str) -> Iterator[None]:
        """Turns gRPC's errors into those of replay; `asked_for` names in messages what was requested."""
        try:
            yield
        except grpc.RpcError as error:
            status, details = error.code(), error.details() or ""
            if status in _GONE:
                raise ReplayUnavailable(
                    f"replay at {self.endpoint} was asked for {asked_for} and does not answer "
                    f"({status.name}: {details})"
                ) from None
            if status is grpc.StatusCode.UNIMPLEMENTED or _UNREADABLE in details:
                raise WrongServer(
                    f"what answers at {self.endpoint} does not speak Reverb's protocol, as that of 0.14 and 0.15 is "
                    f"({status.name}: {details}): another program, or another version of Reverb, has the port"
                ) from None
            raise RequestRefused(f"replay at {self.endpoint} refuses {asked_for}: {status.name}: {details}") from None
        except ValueError as error:
            # Another thread closed the channel.
            raise ReplayUnavailable(f"the connection to replay at {self.endpoint} is closed ({error})") from None

    def close(self) -> None:
        """Ends the connection and its streams; may be called twice."""
        self._channel.close()
        self._inserting.close()

    def _ask[Answer: Message](
        self, method: str, request: Message, answer: type[Answer], asked_for: str, timeout_s: float | None
    ) -> Answer:
        """The answer to one request; `asked_for` as in `errors`."""
        call = self._channel.unary_unary(
            _SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        with self.errors(asked_for):
            answered: Answer = call(request, timeout=timeout_s)
        return answered


_BLOCKED_MS = 5_000
"""A server whose limiter blocks ends a stream after this time; after a much longer silence it is lost."""
_JOIN_S = 5.0
"""Longest wait for a thread whose call was cancelled."""


Sent = tuple[bytes, set[int]]
"""A request for insertions, and the keys of those of its items that the server has not confirmed."""


class InsertStream:
    """Inserts items into one table and keeps track of those that the server has confirmed.

    After a break, `resume` opens it again and resends unconfirmed items, with their keys: none is inserted twice.
    """

    def __init__(self, server: Connection, table: str, item_bytes: int, chunk_steps: int, *unconfirmed: Sent) -> None:
        """Opens the stream; sends what one before a restart has left `unconfirmed`; `chunk_steps` as in `Inserter`."""
        self._connection = server
        self._inserter = Inserter(table, item_bytes, chunk_steps)
        self._changed = threading.Condition()
        """Guards the fields below."""
        self._sent = deque(unconfirmed)
        """Requests, beginning with the first that has unconfirmed items."""
        self.pending = sum(len(keys) for _, keys in self._sent)
        """Number of unconfirmed items."""
        self._confirmed = 0
        self._moving = True
        """Whether items were confirmed since the last request."""
        self._failure: PodzeroError | None = None
        self._call = self._open()

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of items that were confirmed and of those that were not yet, at one moment."""
        with self._changed:
            return self._confirmed, self.pending

    @property
    def broken(self) -> bool:
        """Whether the stream has ended, so that it needs `resume`."""
        return self._failure is not None

    def send(self, rows: NDArray[np.uint8], priorities: NDArray[np.float64], keys: Sequence[int]) -> None:
        """Sends items (`[n, item_bytes]`) with their priorities (`[n]`) and keys, without waiting for confirmation."""
        request = self._inserter.request(rows, priorities, keys)
        with self._changed:
            self._moving = False
            self._sent.append((request, set(keys)))
            self.pending += len(keys)
        self._requests.put(request)

    def wait(self, timeout_s: float, at_most: int = 0) -> bool:
        """Waits up to `timeout_s`, or until the stream breaks, for confirmations; returns whether they came.

        All items must be confirmed, or all but `at_most` if the server takes more.
        """

        def came() -> bool:
            # If some items were confirmed since the last request, the limiter does not block.
            return not self.pending or (self._moving and self.pending <= at_most)

        with self._changed:
            self._changed.wait_for(lambda: came() or self._failure, timeout_s)
            if self._failure is not None and not isinstance(self._failure, ReplayUnavailable):
                raise self._failure
            return came()

    def resume(self) -> None:
        """Opens a broken stream again and resends the unconfirmed items."""
        self.close()
        with self._changed:
            self._failure = None
        self._call = self._open()

    def close(self) -> list[Sent]:
        """Ends the stream; returns the unconfirmed items, which may or may not be inserted. May be called twice."""
        self._requests.put(None)
        self._call.cancel()
        self._thread.join(_JOIN_S)
        with self._changed:
            return list(self._sent)

    def _open(self) -> Any:
        """Opens the stream and sends the unconfirmed items."""
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        for request, _ in self._sent:
            self._requests.put(request)
        call = self._connection.insert(iter(self._requests.get, None))
        name = f"replay-confirmations-{self._connection.endpoint}"
        self._thread = threading.Thread(target=self._gather, args=(call,), name=name, daemon=True)
        self._thread.start()
        return call

    def _gather(self, call: Any) -> None:
        """Reads confirmations until the stream ends; runs in the thread."""
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
            pending = 0
            for _, keys in self._sent:
                keys.difference_update(answer.keys)
                pending += len(keys)
            self._confirmed += self.pending - pending
            self.pending = pending
            self._moving = True
            while self._sent and not self._sent[0][1]:
                self._sent.popleft()
            self._changed.notify_all()


class SampleStream:
    """An iterator over blocks of sampled items, as many as were asked for.

    It ends after `close`, or if the table's limiter has blocked for `_BLOCKED_MS`.
    """

    def __init__(self, connection: Connection, table: str) -> None:
        """Opens the stream; nothing is sampled before `ask`."""
        self._connection = connection
        self._table = table
        self._requests: queue.SimpleQueue[pb.SampleStreamRequest | None] = queue.SimpleQueue()
        self._call = connection.sample(iter(self._requests.get, None))
        self._closed = False

    def ask(self, items: int) -> None:
        """Asks for `items` more items, at least one. Thread-safe."""
        timeout = pb.Timeout(milliseconds=_BLOCKED_MS)
        self._requests.put(pb.SampleStreamRequest(table=self._table, num_samples=items, rate_limiter_timeout=timeout))

    def __iter__(self) -> Iterator[Items]:
        """Blocks of items in the order in which they were sampled."""
        with self._connection.errors("samples"):
            try:
                yield from items_of(self._call)
            except grpc.RpcError:
                # The call itself has no deadline, so this one means that the limiter blocks.
                if not self._closed and self._call.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise

    def close(self) -> None:
        """Ends the stream and the wait of a thread that reads it. May be called twice, by any thread."""
        self._closed = True
        self._requests.put(None)
        self._call.cancel()
