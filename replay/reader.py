"""What is sampled from one table of all shards, ahead of demand."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from podzero.config import ReplayConfig
from podzero.replay.errors import ReplayTimeout, WrongServer
from podzero.replay.priorities import PriorityWriter, importance
from podzero.replay.shard import Address, Shard
from podzero.replay.tables import Table
from podzero.types import Keys

log = logging.getLogger(__name__)

_BLOCK = 512
"""Most items that Reverb hands over in one piece."""
_REOPEN_MS = 500
"""A dataset held back this long by the limiter ends (without an error) and is opened anew, so that what it had
gathered comes out, and its thread can see that it should stop."""
_LOOK_S = 0.1
_TAIL = np.dtype([("key", np.uint64), ("weight", np.float32)])
"""What follows the sample in a row of a prioritized table."""


class Drawn(NamedTuple):
    """What one read brings: samples of the table, whatever it holds."""

    samples: Any
    weight: NDArray[np.float32] | None
    """As in `Batch`; None from a uniform table, like `keys`."""
    keys: Keys | None
    """Their `shard` is the index of the shard."""


class ShardedReader:
    """An endless iterator over samples `[*leading, ...]` of one table, each shard giving an equal part.

    Position p of the stream comes from shard p modulo the number of shards. One thread per shard samples `ahead`
    samples in all, beyond the read that must be gathered anyway: a quarter of them lies in Reverb's own stream buffer,
    the rest in blocks that wait for `__next__`.
    """

    def __init__(
        self, addresses: Sequence[Address], table: Table, config: ReplayConfig, leading: tuple[int, ...], ahead: int
    ) -> None:
        self._table = table
        self._replay = config
        self._leading = leading
        self._count = math.prod(leading)
        self._ahead = ahead
        self._offset = 0
        self._closed = threading.Event()
        self._moves: queue.SimpleQueue[tuple[Address, Address]] = queue.SimpleQueue()
        self._streams: list[_Stream] = []
        self._priorities: PriorityWriter | None = None
        if table.settings.priority_exponent is not None:
            self._priorities = PriorityWriter(table.name, lambda index: self._streams[index].shard)
        for address in addresses:
            self._streams.append(self._open(address, len(addresses)))

    def __iter__(self) -> Iterator[Drawn]:
        return self

    def __next__(self) -> Drawn:
        """The next samples, with weights and keys if the table is prioritized.

        Raises:
          ReplayTimeout: they did not come within `replay.timeout_s`; says which limiter holds whom. What had arrived is
            kept for the next call.
          StopIteration: the reader was closed, perhaps meanwhile by another thread.
        """
        start = time.monotonic()
        warn_at = start + self._replay.warn_after_s
        while missing := self._missing():
            if self._closed.is_set():
                raise StopIteration
            self._follow_moves()
            for stream in self._streams:
                stream.raise_failure()
            waited = time.monotonic() - start
            if waited > self._replay.timeout_s:
                raise ReplayTimeout(f"no batch within {waited:.0f} s (replay.timeout_s): {_explain(missing)}")
            if time.monotonic() > warn_at:
                warn_at += self._replay.warn_after_s
                reader = self._table.traffic.reader
                log.warning("the %s has waited %.0f s for a batch: %s", reader, waited, _explain(missing))
        if self._closed.is_set():
            raise StopIteration
        return self._assemble(self._shares())

    def moved(self, old: str, new: str) -> None:
        """The shard at the address `old` has come to life again at `new`: it is read there from now on. Thread-safe."""
        self._moves.put((Address.parse(old), Address.parse(new)))

    def update_priorities(self, keys: Keys, errors: NDArray[Any]) -> None:
        """Sets the priorities of samples that a read brought, by their absolute value errors; never waits."""
        if self._priorities is not None:
            self._priorities.update(keys, errors)

    def close(self) -> None:
        """Stops prefetching and gives the connections back; ends a `__next__` that still waits. Thread-safe."""
        self._closed.set()
        if self._priorities is not None:
            self._priorities.close()
        for stream in self._streams:
            stream.stop()
        for stream in self._streams:
            stream.join()

    def _open(self, address: Address, shards: int) -> _Stream:
        """Begins to read one of `shards` shards."""
        shard = Shard(address, self._table)
        shard.wait(self._replay.timeout_s)
        per_shard = math.ceil((self._count + self._ahead) / shards)
        exponent = None if self._priorities is None else self._replay.importance_exponent
        return _Stream(shard, per_shard, self._ahead // (4 * shards), exponent)

    def _follow_moves(self) -> None:
        """Puts new streams in the place of those whose shards have moved."""
        for _ in range(self._moves.qsize()):
            old, new = self._moves.get()
            for index, stream in enumerate(self._streams):
                if stream.address == old:
                    log.info("replay at %s goes on at %s", old.endpoint, new.endpoint)
                    self._streams[index] = self._open(new, len(self._streams))
                    self._streams[index].inherit(stream)

    def _missing(self) -> list[_Stream]:
        """The streams that lack a part of the coming read, each waited for a moment."""
        shares = zip(self._streams, self._shares(), strict=True)
        return [stream for stream, share in shares if not stream.gather(len(share), _LOOK_S)]

    def _shares(self) -> list[range]:
        """Where in the coming read the samples of each stream stand."""
        shards = len(self._streams)
        return [range((index - self._offset) % shards, self._count, shards) for index in range(shards)]

    def _assemble(self, shares: Sequence[range]) -> Drawn:
        signature = self._table.signature
        rows = np.empty((self._count, self._streams[0].row_bytes), np.uint8)
        shard = np.empty(self._count, np.int32)
        for index, (stream, share) in enumerate(zip(self._streams, shares, strict=True)):
            if share:
                where = slice(share.start, share.stop, share.step)
                rows[where] = stream.take(len(share))
                shard[where] = index
        self._offset = (self._offset + self._count) % len(self._streams)
        samples = signature.unpack(rows[:, : signature.row_bytes], self._leading)
        if self._priorities is None:
            return Drawn(samples, None, None)
        tail = np.ascontiguousarray(rows[:, signature.row_bytes :]).view(_TAIL).reshape(self._leading)
        keys = Keys(shard.reshape(self._leading), np.ascontiguousarray(tail["key"]))
        return Drawn(samples, np.ascontiguousarray(tail["weight"]), keys)


class ScatteredReader(ShardedReader):
    """The same from whichever shards have something: one that is empty, or gone, holds nobody up."""

    def _missing(self) -> list[_Stream]:
        """All streams, while they have too little together; they are asked for equal parts first."""
        for wanted in (math.ceil(self._count / len(self._streams)), self._count):
            for stream in self._streams:
                stream.gather(wanted, _LOOK_S / len(self._streams))
            if sum(stream.at_hand for stream in self._streams) >= self._count:
                return []
        return self._streams

    def _shares(self) -> list[range]:
        """Those that have least give all of it, if it is not more than their equal part; the others the rest."""
        counts, left = {}, self._count
        by_wealth = sorted(self._streams, key=lambda stream: stream.at_hand)
        for behind, stream in zip(range(len(by_wealth), 0, -1), by_wealth, strict=True):
            counts[stream] = min(stream.at_hand, math.ceil(left / behind))
            left -= counts[stream]
        ends = list(accumulate(counts[stream] for stream in self._streams))
        return [range(end - counts[stream], end) for end, stream in zip(ends, self._streams, strict=True)]


class _Stream:
    """Rows sampled from one shard, ahead of demand and bounded, by a thread of its own."""

    def __init__(self, shard: Shard, ahead: int, in_flight: int, exponent: float | None) -> None:
        """Starts reading up to `ahead` rows early, of which about `in_flight` lie in Reverb's stream.

        With an `exponent` each row ends with the item's key and its importance weight.
        """
        signature = shard.table.signature
        self.shard = shard
        self._exponent = exponent
        self.row_bytes = signature.row_bytes + (0 if exponent is None else _TAIL.itemsize)
        self._signature = signature
        ahead, in_flight = (
            ahead // signature.samples_per_item,
            in_flight // signature.samples_per_item,
        )  # in items, as Reverb counts
        self._block = max(1, min(_BLOCK, ahead // 2))
        self._in_flight = max(self._block // 2, min(in_flight, 3 * self._block), 1)
        self._blocks: queue.Queue[NDArray[np.uint8]] = queue.Queue(maxsize=max(1, ahead // self._block - 1))
        self._held: list[NDArray[np.uint8]] = []
        self._failure: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"replay-{shard.address.endpoint}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> Address:
        """Of the shard."""
        return self.shard.address

    def inherit(self, other: _Stream) -> None:
        """Takes over the rows that another stream, of which no more will come, has gathered."""
        other.stop()
        self._held = other._held

    @property
    def at_hand(self) -> int:
        """Rows that were gathered and not taken."""
        return sum(map(len, self._held))

    def gather(self, rows: int, timeout_s: float) -> bool:
        """Whether `rows` rows are at hand, waiting up to `timeout_s` for each block."""
        while self.at_hand < rows:
            try:
                self._held.append(self._blocks.get(timeout=timeout_s))
            except queue.Empty:
                return False
        return True

    def take(self, rows: int) -> NDArray[np.uint8]:
        """The next `rows` rows, `[rows, row_bytes]`; they must have been gathered."""
        held = np.concatenate(self._held) if len(self._held) > 1 else self._held[0]
        self._held = [held[rows:]]
        return held[:rows]

    def raise_failure(self) -> None:
        """Raises what ended the thread."""
        if self._failure is not None:
            raise self._failure

    def _await_shard(self) -> None:
        """After the connection broke: the shard may be back, or come to life again elsewhere."""
        log.warning("replay at %s is gone; what it held is waited for", self.shard.address.endpoint)
        while not self._stopped.wait(_REOPEN_MS / 1000) and self.shard.limits() is None:
            pass

    def explain(self) -> str:
        """Why no rows come."""
        endpoint = self.shard.address.endpoint
        try:
            limits = self.shard.limits()
        except WrongServer as error:
            return str(error)
        return f"replay at {endpoint} does not answer" if limits is None else f"{endpoint}: {limits.explain_sample()}"

    def stop(self) -> None:
        """Asks the thread to end."""
        self._stopped.set()

    def join(self) -> None:
        """Waits a bounded time for the thread; it can be stuck only in a read from a server that has died."""
        self._thread.join(timeout=4 * _REOPEN_MS / 1000)
        if self._thread.is_alive():
            log.warning("the thread that reads from %s is stuck and was left behind", self.shard.address.endpoint)

    def _run(self) -> None:
        from tensorflow.errors import UnavailableError

        try:
            while not self._stopped.is_set():
                try:
                    for item in self._dataset():
                        self._put(self._rows(item))
                        if self._stopped.is_set():
                            return
                except UnavailableError:
                    self._await_shard()
        except BaseException as failure:
            self._failure = failure

    def _rows(self, item: Any) -> NDArray[np.uint8]:
        """The rows of a block of items, `[n * samples_per_item, row_bytes]`."""
        rows: NDArray[np.uint8] = item.data.reshape(-1, self._signature.row_bytes)
        if self._exponent is None:
            return rows
        tail = np.empty(len(rows), _TAIL)
        tail["key"] = item.info.key
        tail["weight"] = importance(item.info.probability, item.info.table_size, self._exponent)
        return np.concatenate([rows, tail.view(np.uint8).reshape(len(rows), -1)], axis=1)

    def _put(self, block: NDArray[np.uint8]) -> None:
        while not self._stopped.is_set():
            try:
                self._blocks.put(block, timeout=_LOOK_S)
            except queue.Full:
                continue
            return

    def _dataset(self) -> Any:
        """Blocks of items `[n, item_bytes]` until the limiter has held them back for a while."""
        import tensorflow as tf
        from reverb import TrajectoryDataset

        return (
            TrajectoryDataset(
                self.shard.address.endpoint,
                self.shard.table.name,
                dtypes=tf.uint8,
                shapes=tf.TensorShape([self._signature.item_bytes]),
                max_in_flight_samples_per_worker=self._in_flight,
                num_workers_per_iterator=1,
                rate_limiter_timeout_ms=_REOPEN_MS,
            )
            .batch(self._block)
            .as_numpy_iterator()
        )


def _explain(streams: Sequence[_Stream]) -> str:
    return "; ".join(stream.explain() for stream in streams)
