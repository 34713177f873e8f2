"""Reads batches of samples from all replay shards for the learner, and of states for the reanalysers.

A thread for each shard reads ahead of demand. In prioritized replay the learner's value errors become priorities
(Schaul et al. 2016, https://arxiv.org/abs/1511.05952), which another thread for each shard sets.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import accumulate
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from podzero.config import Experiment
from podzero.core.types import Batch, EnvSpec, Keys
from podzero.core.waiting import Wait
from podzero.replay.errors import ReplayUnavailable, RequestRefused, WrongServer
from podzero.replay.records import open_records, recorded_batches
from podzero.replay.shard import REANALYSED, SAMPLES, STATES, Address, Addresses, Limits, Shard, Table, tables_of
from podzero.replay.wire import Items, SampleStream

log = logging.getLogger(__name__)

_POLL_S = 0.1
"""How often a waiting `__next__` checks whether the reader was closed or a shard restarted."""
_RETRY_S = 0.5
"""How often to check whether a shard is back."""
_SILENCE_S = 15.0
"""A stream that is silent for this long is considered lost. While its limiter blocks, a server ends streams earlier."""
_STOP_S = 5.0
"""Longest wait for the thread of a stream that was stopped."""
CLOSE_S = 3.0
"""Longest wait for queued updates of priorities at the end."""
LEAST_PRIORITY = 1e-3
"""Added to every error, so that samples with no error are still sampled sometimes."""
_QUEUE_SIZE = 8
"""Number of updates that may wait for a slow shard."""
_ANSWER_S = 10.0
"""Longest time of one update."""
PRIORITY_FIELDS = np.dtype([("key", np.uint64), ("weight", np.float32)])
"""Appended to each row of a prioritized table: the item's key and its importance weight."""


def make_reader(addresses: Addresses, spec: EnvSpec, experiment: Experiment, hosts: int = 1) -> BatchReader:
    """Connects the learner's reader to replay shards; shards that do not answer are awaited when a batch is read.

    The rate limiter counts samples when Reverb hands them out, so prefetching is bounded: of each table, fewer than
    `steps_per_dispatch * batch_size` samples, and two items per shard, are handed out and not yet returned by
    `__next__`, over all hosts. Fresh and reanalysed samples come from two tables, recorded ones from files, each with
    its part of the batch size (`Experiment.batch_parts`). Each of the learner's `hosts` reads an equal part of every
    batch from shards of its own, which are those of `addresses` (none without self-play).

    Raises `WrongServer` if another server answers at an address, `ConfigError` if recorded games cannot be used.
    """
    tables, steps, shards = tables_of(experiment, spec), experiment.learner.steps_per_dispatch, len(addresses())
    fresh, reanalysed, recorded = experiment.batch_parts
    read = [
        ShardedReader(addresses, tables[table], (steps, samples // hosts), first)
        for table, samples, first in ((SAMPLES, fresh, 0), (REANALYSED, reanalysed, shards))
        if samples
    ]
    if not recorded:
        return BatchReader(read)
    return BatchReader(read, recorded_batches(open_records(experiment, spec), (steps, recorded // hosts)))


def make_state_reader(addresses: Addresses, spec: EnvSpec, experiment: Experiment) -> StateReader:
    """Connects a reanalyser's reader, which reads `actors.games` states at a time, rounded up to whole items; see
    `make_reader`.
    """
    table, items = tables_of(experiment, spec)[STATES], experiment.replay.samples_per_item
    return StateReader(addresses, table, (math.ceil(experiment.actors.games / items) * items,))


class BatchReader(Iterator[Batch]):
    """An endless iterator over host batches `[steps_per_dispatch, batch_size / hosts, ...]`; a `ReplayReader`.

    Each batch concatenates a fixed number of samples from each table and from recorded games.
    """

    def __init__(self, tables: Sequence[ShardedReader], recorded: Iterator[Batch] | None = None) -> None:
        """Takes the readers of the tables, and batches of recorded games, which give the same kind of samples."""
        self._tables = tables
        self._parts: list[Iterator[Batch]] = [*tables, recorded] if recorded else [*tables]
        self._closed = False

    def __next__(self) -> Batch:
        """The next batch, with weights and keys if the tables are prioritized."""
        if self._closed:
            raise StopIteration
        parts = [next(part) for part in self._parts]
        # Parts `[S, B_i, ...]` make a batch `[S, B, ...]`.
        return parts[0] if len(parts) == 1 else Batch(*jax.tree.map(lambda *fields: np.concatenate(fields, 1), *parts))

    def update_priorities(self, keys: Keys, errors: NDArray[Any]) -> None:
        """Sets the priorities of samples of earlier batches by their absolute value errors; never waits."""
        for table in self._tables:
            table.update_priorities(keys, errors)

    def close(self) -> None:
        """Stops prefetching and closes the connections; a `__next__` that waits ends. Thread-safe."""
        self._closed = True
        for table in self._tables:
            table.close()


class ShardedReader(Iterator[Any]):
    """An endless iterator over batches `[*leading, ...]` of one table, to which each shard contributes equally.

    Sample p of the stream comes from shard p modulo the number of shards. Fewer samples than one batch and two items
    per shard have been sampled and not yet returned.
    """

    def __init__(self, addresses: Addresses, table: Table, leading: tuple[int, ...], first: int = 0) -> None:
        """Keys name the shards of this table by numbers from `first` on."""
        self._addresses = addresses
        self._table = table
        self._leading = leading
        self._first = first
        self._count = math.prod(leading)
        self._offset = 0
        self._closed = threading.Event()
        found = addresses()
        self._wanted = self._largest_share(len(found))
        self._streams = [self._open(Address.parse(address)) for address in found]

    def __next__(self) -> Batch:
        """The next batch, with weights and keys if the table is prioritized."""
        wait = Wait()
        while not self._closed.is_set():
            self._follow_restarts()
            missing = self._missing()
            if not missing:
                return self._assemble()
            if wait.message_due():
                log.warning("the %s has waited %s for a batch: %s", self._table.users.reader, wait, _explain(missing))
        raise StopIteration

    def update_priorities(self, keys: Keys, errors: NDArray[Any]) -> None:
        """Sets the priorities of the samples of this table by their absolute value errors, if these are finite; never
        waits.
        """
        errors = np.asarray(errors)
        for number, stream in enumerate(self._streams, self._first):
            mine = (keys.shard == number) & np.isfinite(errors)
            if stream.priorities is not None and mine.any():
                stream.priorities.put(keys.key[mine], priorities_of(errors[mine]))

    def close(self) -> None:
        """Stops prefetching and closes the connections; a `__next__` that waits ends. Thread-safe."""
        self._closed.set()
        for stream in self._streams:
            stream.stop()
        until = time.monotonic() + CLOSE_S
        for stream in self._streams:
            stream.join(until)

    def _open(self, address: Address) -> ShardStream:
        """Begins to read a shard; if it does not answer, its stream waits for it."""
        shard = Shard(address, self._table)
        # A wrong server is an error here and not in the stream's thread.
        shard.limits()
        return ShardStream(shard, self._wanted)

    def _largest_share(self, shards: int) -> int:
        """The largest number of samples of a batch that come from one of `shards` shards."""
        return math.ceil(self._count / shards)

    def _follow_restarts(self) -> None:
        """Replaces the streams of shards that were restarted at other addresses."""
        for index, (stream, found) in enumerate(zip(self._streams, self._addresses(), strict=True)):
            old = stream.shard.address
            if found != str(old):
                address = Address.parse(found)
                log.info("replay at %s continues at %s", old.endpoint, address.endpoint)
                self._streams[index] = self._open(address)
                self._streams[index].inherit(stream)

    def _missing(self) -> list[ShardStream]:
        """The streams whose share of the next batch has not arrived; waits up to `_POLL_S` for each."""
        shares = zip(self._streams, self._shares(), strict=True)
        return [stream for stream, share in shares if not stream.gather(len(share), _POLL_S)]

    def _shares(self) -> list[range]:
        """The positions in the next batch that each stream fills."""
        # The turns of the shards continue across batches, so that none contributes more over time.
        shards = len(self._streams)
        return [range((index - self._offset) % shards, self._count, shards) for index in range(shards)]

    def _assemble(self) -> Batch:
        signature = self._table.signature
        rows = np.empty((self._count, self._streams[0].row_bytes), np.uint8)
        shard = np.empty(self._count, np.int32)
        for index, (stream, share) in enumerate(zip(self._streams, self._shares(), strict=True)):
            if share:
                where = slice(share.start, share.stop, share.step)
                rows[where] = stream.take(len(share))
                shard[where] = self._first + index
        self._offset = (self._offset + self._count) % len(self._streams)
        samples = signature.unpack(rows[:, : signature.row_bytes], self._leading)
        if self._table.settings.priority_exponent is None:
            return Batch(samples)
        fields = np.ascontiguousarray(rows[:, signature.row_bytes :]).view(PRIORITY_FIELDS).reshape(self._leading)
        keys = Keys(shard.reshape(self._leading), np.ascontiguousarray(fields["key"]))
        return Batch(samples, np.ascontiguousarray(fields["weight"]), keys)


class StateReader(ShardedReader):
    """An endless iterator over states `[games, ...]` from whichever shards have some, so that an empty or
    lost shard delays nothing.
    """

    def __next__(self) -> Any:
        """The next states, a `StoredState` or `Window`."""
        return super().__next__().samples

    def _largest_share(self, shards: int) -> int:
        return self._count

    def _missing(self) -> list[ShardStream]:
        """All streams while they have too few samples together, else none."""
        # First ask all streams for equal shares, then any of them for the whole batch.
        for wanted in (math.ceil(self._count / len(self._streams)), self._count):
            for stream in self._streams:
                stream.gather(wanted, _POLL_S / len(self._streams))
            if sum(stream.at_hand for stream in self._streams) >= self._count:
                return []
        return self._streams

    def _shares(self) -> list[range]:
        """Consecutive positions for each stream, as equal in number as the samples at hand allow."""
        counts, left = {}, self._count
        by_supply = sorted(self._streams, key=lambda stream: stream.at_hand)
        for remaining, stream in zip(range(len(by_supply), 0, -1), by_supply, strict=True):
            counts[stream] = min(stream.at_hand, math.ceil(left / remaining))
            left -= counts[stream]
        ends = list(accumulate(counts[stream] for stream in self._streams))
        return [range(end - counts[stream], end) for end, stream in zip(ends, self._streams, strict=True)]


def _explain(streams: Sequence[ShardStream]) -> str:
    return "; ".join(stream.shard.explain(Limits.explain_sample) for stream in streams)


class ShardStream:
    """Rows sampled from one shard; those not yet taken are fewer than `wanted` plus the rows of two items.

    Rows of a prioritized table end with `PRIORITY_FIELDS`.
    """

    def __init__(self, shard: Shard, wanted: int) -> None:
        """Starts the thread; `wanted` is the largest number of rows that one `take` asks for."""
        table = shard.table
        self.shard = shard
        prioritized = table.settings.priority_exponent is not None
        self.priorities = PriorityUpdater(shard) if prioritized else None
        self._signature = table.signature
        self.row_bytes = table.signature.row_bytes + (PRIORITY_FIELDS.itemsize if prioritized else 0)
        # More room made no reader faster, also with one step per dispatch and shards 4 ms away; it only ages samples.
        self._room = wanted + 2 * table.signature.samples_per_item - 1
        """Largest number of rows at hand or under way."""
        self._blocks = [np.empty((0, self.row_bytes), np.uint8)]
        self._under_way = 0
        """Items that the open stream was asked for and has not delivered."""
        self._stream: SampleStream | None = None
        self._heard = time.monotonic()
        """When the last items arrived, or the wait for them began."""
        self._changed = threading.Condition()
        """Guards the fields from `_blocks` on."""
        self._stopped = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"replay-{shard.address.endpoint}", daemon=True)
        self._thread.start()

    @property
    def at_hand(self) -> int:
        """The number of rows that can be taken without waiting."""
        return sum(map(len, self._blocks))

    def gather(self, rows: int, timeout_s: float) -> bool:
        """Whether at least `rows` rows are at hand; waits for them up to `timeout_s`. Raises what ended the thread."""
        with self._changed:
            self._changed.wait_for(lambda: self.at_hand >= rows or self._failure or self._stopped, timeout_s)
            if self._failure is not None:
                raise self._failure
            enough = self.at_hand >= rows
            if not enough and self._stream is not None and time.monotonic() - self._heard > _SILENCE_S:
                # The shard's node may have vanished. The thread then opens a new stream.
                self._stream.close()
            return enough

    def take(self, rows: int) -> NDArray[np.uint8]:
        """Removes and returns the oldest `rows` rows, `[rows, row_bytes]`; they must be at hand."""
        with self._changed:
            at_hand = np.concatenate(self._blocks)
            self._blocks = [at_hand[rows:]]
            self._ask()
            return at_hand[:rows]

    def inherit(self, other: ShardStream) -> None:
        """Stops another stream and takes over its rows at hand."""
        other.stop()
        self._append(other.take(other.at_hand), 0)

    def stop(self) -> None:
        """Asks the threads to end, that of priorities after the queued updates."""
        if self.priorities is not None:
            self.priorities.stop()
        with self._changed:
            self._stopped = True
            if self._stream is not None:
                self._stream.close()
            self._changed.notify_all()

    def join(self, until: float) -> None:
        """Waits for the threads to end, then closes the connection: up to `_STOP_S` for that of the stream, and up to
        `until` on the monotonic clock for that of priorities.
        """
        if self.priorities is not None:
            self.priorities.join(until)
        self._thread.join(_STOP_S)
        self.shard.close()

    def _run(self) -> None:
        try:
            while not self._stopped:
                try:
                    self._read()
                except ReplayUnavailable as error:
                    self._await_shard(error)
        except BaseException as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _read(self) -> None:
        """Reads until the limiter has blocked for some time or the stream is stopped."""
        table = self.shard.table
        with closing(SampleStream(self.shard.connection, table.name, self._signature.item_bytes)) as stream:
            with self._changed:
                if self._stopped:
                    return
                self._stream, self._under_way, self._heard = stream, 0, time.monotonic()
                self._ask()
            try:
                for items in stream:
                    self._append(self._unpack(items), len(items.key))
            finally:
                with self._changed:
                    self._stream = None

    def _ask(self) -> None:
        """Asks for as many items as there is room for; `_changed` must be held."""
        items = (self._room - self.at_hand) // self._signature.samples_per_item - self._under_way
        if self._stream is not None and items > 0:
            if self._under_way == 0:
                # Nothing was asked for, so the silence begins now.
                self._heard = time.monotonic()
            self._stream.ask(items)
            self._under_way += items

    def _append(self, rows: NDArray[np.uint8], items: int) -> None:
        """Adds rows, which come from `items` items that were under way."""
        with self._changed:
            self._blocks.append(rows)
            self._under_way -= items
            self._heard = time.monotonic()
            self._changed.notify_all()

    def _await_shard(self, reason: ReplayUnavailable) -> None:
        """Waits until the shard answers again or the stream is stopped."""
        if not self._stopped:
            log.warning("%s; reading continues when it is back", reason)
        while not self._stopped:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, _RETRY_S)
            try:
                if self.shard.limits() is not None:
                    return
            except WrongServer as error:
                # The shard may have restarted, and its new identity is not known here yet.
                log.warning("%s", error)

    def _unpack(self, items: Items) -> NDArray[np.uint8]:
        """The rows of a block of items, `[n * samples_per_item, row_bytes]`."""
        rows = items.rows.reshape(-1, self._signature.row_bytes)
        if self.priorities is None:
            return rows
        fields = np.empty(len(rows), PRIORITY_FIELDS)
        fields["key"] = items.key
        fields["weight"] = importance(items.probability, items.table_size)
        return np.concatenate([rows, fields.view(np.uint8).reshape(len(rows), -1)], axis=1)


def priorities_of(errors: NDArray[Any]) -> NDArray[np.float64]:
    """The priorities of samples with value errors `errors`, both `[N]`."""
    return np.abs(np.asarray(errors, np.float64)) + LEAST_PRIORITY


def importance(probability: NDArray[Any], size: NDArray[Any]) -> NDArray[np.float32]:
    """Importance weights `1 / (N P)`, `[n]`, which undo the bias of sampling with probabilities P from N items."""
    # The learner divides the weights by the largest of the batch. N does not cancel there: it differs between shards,
    # between new and reanalysed samples, and while a table fills.
    return np.asarray(1 / (size * np.maximum(probability, 1e-12)), np.float32)


class PriorityUpdater:
    """Sets the priorities of one shard's samples in a thread, so that the learner never waits and a shard that does not
    answer blocks only its own thread.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._updates: deque[list[tuple[int, float]] | None] = deque(maxlen=_QUEUE_SIZE)
        """Keys of items with their new priorities; None ends the thread."""
        self._changed = threading.Condition()
        self._lost = 0
        name = f"replay-priorities-{shard.address.endpoint}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, keys: NDArray[np.uint64], priorities: NDArray[np.float64]) -> None:
        """Queues new priorities, both `[n]`."""
        self._append(list(zip(keys.tolist(), priorities.tolist(), strict=True)))

    def stop(self) -> None:
        """Asks the thread to end after the queued updates."""
        self._append(None)

    def join(self, until: float) -> None:
        """Waits until the thread has ended, at most until `until` on the monotonic clock."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            log.warning(
                "replay at %s does not take priority updates: the last %d are lost",
                self._shard.address.endpoint,
                len(self._updates),
            )

    def _append(self, update: list[tuple[int, float]] | None) -> None:
        with self._changed:
            if len(self._updates) == _QUEUE_SIZE:
                self._lost += 1
                # Log at 1, 2, 4, 8, ... losses.
                if self._lost.bit_count() == 1:
                    log.warning(
                        "replay at %s is slow to take priority updates: %d were left out",
                        self._shard.address.endpoint,
                        self._lost,
                    )
            # If the queue is full, this removes the oldest: newer errors are better.
            self._updates.append(update)
            self._changed.notify()

    def _next(self) -> list[tuple[int, float]] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._updates)
            return self._updates.popleft()

    def _run(self) -> None:
        table, connection = self._shard.table.name, self._shard.connection
        while (update := self._next()) is not None:
            try:
                connection.set_priorities(table, update, _ANSWER_S)
            except (ReplayUnavailable, RequestRefused, WrongServer) as error:
                log.warning("the priorities of %d samples were not updated: %s", len(update), error)
