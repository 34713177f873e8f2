"""Where sampled items are decompressed: straight into the arrays that become the learner's batches."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from podzero.replay.signature import SampleSignature

_AHEAD_S = 0.05
"""Beside the next batch, as many rows are read ahead as were lately taken in this time: many batches of a dispatch that
takes milliseconds, none where it takes a second."""
_RECENT = 8
"""The number of batches that tell how fast they are taken."""
PRIORITY_FIELDS = np.dtype([("key", np.uint64), ("weight", np.float32)])
"""What a prioritized table tells of each item, which holds one sample there: its key and its importance weight."""


class _Block(NamedTuple):
    """The fewest batches that consist of whole items, `n` of them."""

    items: NDArray[np.uint8]
    """`[n, item_bytes]`."""
    fields: NDArray[Any]
    """`[n]` of `PRIORITY_FIELDS`."""
    arrived: NDArray[np.bool_]
    """`[n]`, which items are complete."""


class Intake:
    """The next batches of one table, which a stream of each shard fills.

    Items are numbered endlessly: item i becomes the rows from `i * samples_per_item` on, and batch t consists of the
    rows from `t * count` on. Callers hold `changed`, but not while they fill the places of items.
    """

    # Every block has arrays of its own, and nobody writes into those of a batch that was taken: devices may read them.

    def __init__(self, signature: SampleSignature, count: int, shards: int, equal: bool, most_ahead: int) -> None:
        """Batches have `count` rows, and at most `most_ahead` rows are read beside the next one.

        If `equal`, item i comes from shard i modulo `shards`, else from any shard.
        """
        self._signature, self._count = signature, count
        self._shards, self._equal = shards, equal
        self._most_ahead, self._ahead = most_ahead, 0
        self._claimed = np.zeros(shards, np.int64)
        """The number of items that each shard has given."""
        self._batches = signature.samples_per_item // gcd(count, signature.samples_per_item)
        """Batches of a block."""
        self._items = self._batches * count // signature.samples_per_item
        """Items of a block."""
        self._blocks: deque[_Block] = deque()
        self._first = 0
        """The number of the first block that is kept."""
        self.taken = 0
        """The number of batches taken so far."""
        self._times: deque[float] = deque(maxlen=_RECENT)
        """When the last of them were taken."""
        self.failure: BaseException | None = None
        """What has ended a stream."""
        self.changed = threading.Condition()

    def due(self, shard: int) -> int:
        """The number of items that a shard should still give: of the next batch, and of those after it."""
        end = self._item((self.taken + 1) * self._count + self._ahead)
        if self._equal:
            return len(range(shard, end, self._shards)) - int(self._claimed[shard])
        return end - int(self._claimed.sum())

    def claim(self, shard: int, items: int) -> NDArray[np.int64]:
        """The ascending numbers of the next items of a shard."""
        before = int(self._claimed[shard])
        self._claimed[shard] += items
        if self._equal:
            return shard + self._shards * np.arange(before, before + items)
        return np.arange(-items, 0) + self._claimed.sum()

    def places(self, numbers: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Where the items with these numbers belong, `[item_bytes]` each."""
        return [block.items[one] for block, _, index in self._parts(numbers) for one in index.tolist()]

    def complete(self, numbers: NDArray[np.int64], fields: NDArray[Any] | None) -> None:
        """Records that items are in their places, with their `PRIORITY_FIELDS` if the table has any."""
        for block, part, index in self._parts(numbers):
            block.arrived[index] = True
            if fields is not None:
                block.fields[index] = fields[part]
        self.changed.notify_all()

    def late(self) -> list[int]:
        """The shards that have not given their part of the next batch."""
        start = self.taken * self._count
        first, end = start // self._signature.samples_per_item, self._item(start + self._count)
        arrived = self._block(self._first).arrived[first % self._items :][: end - first]
        if arrived.all():
            return []
        missing = first + np.flatnonzero(~arrived)
        return np.unique(missing % self._shards).tolist() if self._equal else list(range(self._shards))

    def take(self) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """The rows of the next batch, `[count, row_bytes]`, which must all be there, and the fields of its items."""
        block, start = self._blocks[0], self.taken % self._batches * self._count
        part = slice(start, start + self._count)
        self.taken += 1
        if self.taken % self._batches == 0:
            self._blocks.popleft()
            self._first += 1
        self._times.append(time.monotonic())
        # The first two are taken at once: one for the learner, and one that waits while its program is compiled.
        if len(self._times) == _RECENT and (lasted := self._times[-1] - self._times[0]) > 0:
            self._ahead = min(int(_AHEAD_S * self._count * (_RECENT - 1) / lasted), self._most_ahead)
        return block.items.reshape(-1, self._signature.row_bytes)[part], block.fields[part]

    def _item(self, row: int) -> int:
        """The number of items that cover all rows before this one."""
        return -(-row // self._signature.samples_per_item)

    def _parts(self, numbers: NDArray[np.int64]) -> Iterator[tuple[_Block, NDArray[np.bool_], NDArray[np.int64]]]:
        """For each block of these items: the block, which of them are in it, and their places there."""
        blocks, index = np.divmod(numbers, self._items)
        for number in np.unique(blocks).tolist():
            part = blocks == number
            yield self._block(number), part, index[part]

    def _block(self, number: int) -> _Block:
        while number - self._first >= len(self._blocks):
            items = np.empty((self._items, self._signature.item_bytes), np.uint8)
            fields = np.empty(self._items, PRIORITY_FIELDS)
            self._blocks.append(_Block(items, fields, np.zeros(self._items, np.bool_)))
        return self._blocks[number - self._first]
