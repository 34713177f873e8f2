"""Items in Reverb's messages: builds requests that insert rows of bytes, and unpacks the rows of answers.

An item is one row of bytes in a chunk, a tensor `[steps, bytes]` of uint8, compressed with raw Snappy. The item refers
to the chunk and its step.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import cramjam
import numpy as np
from numpy.typing import NDArray

from podzero.replay.errors import MalformedAnswer
from podzero.replay.wire import reverb_pb2 as pb

_UINT8 = 4
"""TensorFlow's number of this dtype."""
_LARGEST_CHUNK = 2**28
"""Largest size of a chunk in bytes; an answer with a larger one counts as malformed."""
KEYS = 2**64
"""Keys are integers in [0, `KEYS`)."""


class Items(NamedTuple):
    """Sampled items."""

    rows: NDArray[np.uint8]
    """`[n, item_bytes]`."""
    key: NDArray[np.uint64]
    """`[n]`, the items' keys in the table."""
    probability: NDArray[np.float64]
    """`[n]`, the probability with which the table sampled the item."""
    table_size: NDArray[np.int64]
    """`[n]`, number of items in the table at that time."""


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

    def request(self, rows: NDArray[np.uint8], priorities: NDArray[np.float64], first_key: int) -> bytes:
        """The serialized request that inserts rows, `[n, item_bytes]`, with `priorities`, `[n]`.

        `first_key` is the first item's key; the others follow, modulo 2^64.
        """
        # Protocol Buffers read concatenated messages, here of one chunk or one item each, as one.
        rows, parts = np.ascontiguousarray(rows), []
        item, piece = self._item.items[0], self._item.items[0].flat_trajectory.columns[0].chunk_slices[0]
        for index, priority in enumerate(priorities.tolist()):
            key, step = (first_key + index) % KEYS, index % self._chunk_steps
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
        shape = pb.Shape(dim=[pb.Shape.Dim(size=steps), pb.Shape.Dim(size=item_bytes)])
        chunk = pb.ChunkData(
            sequence_range=pb.SequenceRange(start=0, end=steps - 1),
            data=pb.ChunkData.Data(tensors=[pb.Tensor(dtype=_UINT8, tensor_shape=shape)]),
            data_tensors_len=1,
            data_uncompressed_size=steps * item_bytes,
        )
        self._request = pb.InsertStreamRequest(chunks=[chunk])
        self._chunk = self._request.chunks[0]
        self._range, self._tensor = self._chunk.sequence_range, self._chunk.data.tensors[0]

    def request(self, rows: NDArray[np.uint8], key: int) -> bytes:
        """The serialized request with `rows` under `key`."""
        self._chunk.chunk_key = self._range.episode_id = key
        self._tensor.tensor_content = bytes(cramjam.snappy.compress_raw(rows))
        return self._request.SerializeToString()


class Unpacker:
    """Extracts the items from the answers of one stream; an item may be spread over several answers."""

    def __init__(self, item_bytes: int) -> None:
        self._item_bytes = item_bytes
        self._begun: list[Any] = []
        """The entries so far of an incomplete item."""

    def unpack(self, answer: pb.SampleStreamResponse) -> Items:
        """The items that `answer` completes, in order."""
        items = []
        for entry in answer.entries:
            self._begun.append(entry)
            if entry.end_of_sequence:
                items.append(self._begun)
                self._begun = []
        rows = np.empty((len(items), self._item_bytes), np.uint8)
        infos = [parts[0].info for parts in items]
        for row, info, parts in zip(rows, infos, items, strict=True):
            self._read(row, info.item, [chunk for part in parts for chunk in part.data])
        return Items(
            rows,
            np.array([info.item.key for info in infos], np.uint64),
            np.array([info.probability for info in infos], np.float64),
            np.array([info.table_size for info in infos], np.int64),
        )

    def _read(self, row: NDArray[np.uint8], item: Any, chunks: list[Any]) -> None:
        """Fills `row` with an item's bytes."""
        columns = item.flat_trajectory.columns
        if len(columns) != 1:
            _refuse(f"an item of {len(columns)} columns; expected 1")
        slices = columns[0].chunk_slices
        if len(slices) == 1 and self._is_one_step(slices[0], chunks):
            # The usual case, decompressed in place without a copy.
            _decompress(chunks[0].data.tensors[0].tensor_content, row)
            return
        steps = [self._steps(piece, chunks) for piece in slices]
        content = np.concatenate(steps).ravel() if steps else row[:0]
        if len(content) != len(row):
            _refuse(f"an item of {len(content)} bytes; expected {len(row)}")
        row[:] = content

    def _is_one_step(self, piece: Any, chunks: list[Any]) -> bool:
        """Whether the item is the only step of its only chunk."""
        if len(chunks) != 1:
            return False
        chunk = chunks[0]
        return bool(
            piece.offset == 0
            and piece.length == 1
            and piece.index == 0
            and piece.chunk_key == chunk.chunk_key
            and chunk.data_uncompressed_size == self._item_bytes
            and not chunk.delta_encoded
            and len(chunk.data.tensors) == 1
        )

    def _steps(self, piece: Any, chunks: list[Any]) -> NDArray[np.uint8]:
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
        _refuse(
            f"a tensor of dtype {tensor.dtype} and shape {shape}; expected uint8 ({_UINT8}) of shape [steps, bytes]"
        )
    steps = np.empty(shape, np.uint8)
    _decompress(tensor.tensor_content, steps.reshape(-1))
    return steps


def _decompress(content: bytes, into: NDArray[np.uint8]) -> None:
    """Decompresses `content` into `into`, `[bytes]`."""
    try:
        size = cramjam.snappy.decompress_raw_into(content, into)
    except (cramjam.DecompressionError, ValueError) as error:
        _refuse(f"{len(content)} compressed bytes that are damaged or too many ({error})")
    if size != len(into):
        _refuse(f"{size} bytes; expected {len(into)}")


def _refuse(found: str) -> NoReturn:
    raise MalformedAnswer(f"replay answers with {found}")
