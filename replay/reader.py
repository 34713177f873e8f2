"""Reads batches of samples from all replay shards for the learner, and of states for the reanalysers.

A thread for each shard reads ahead of demand. In prioritized replay the learner's value errors become priorities
(Schaul et al. 2016, https://arxiv.org/abs/1511.05952), which another thread for each shard sets.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from queue import Empty, Queue
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from podzero.config import Experiment
from podzero.core.types import EnvSpec, Keys, PackedBatch
from podzero.core.waiting import Wait
from podzero.replay.errors import ReplayUnavailable, RequestRefused, WrongServer
from podzero.replay.intake import PRIORITY_FIELDS, Intake
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
_AHEAD_PART = 20
"""Reading ahead adds at most one such part of it to the age that samples reach in replay."""
LEAST_PRIORITY = 1e-3
"""Added to every error, so that samples with no error are still sampled sometimes."""
_QUEUE_SIZE = 8
"""Number of updates that may wait for a slow shard."""
_ANSWER_S = 10.0
"""Longest time of one update."""


def make_reader(addresses: Addresses, spec: EnvSpec, experiment: Experiment, hosts: int = 1) -> BatchReader:
    """Connects the learner's reader to replay shards; shards that do not answer are awaited when a batch is read.

    The rate limiter counts samples when Reverb hands them out, so reading ahead is bounded: of each table, fewer than
    `steps_per_dispatch * batch_size` samples, two items per shard, and what the learner takes in 50 ms are handed out
    and not yet returned by `__next__`, over all hosts. The last part is at most a twentieth of the samples that are
    drawn while the table's content is replaced once (`capacity * samples_per_insert`), so that they age hardly more
    than in replay; prioritized tables have none, since samples would be drawn by old priorities. Fresh and reanalysed
    samples come from two tables, recorded ones from files, each with its part of the batch size
    (`Experiment.batch_parts`). Each of the learner's `hosts` reads an equal part of every batch from shards of its own,
    which are those of `addresses` (none without self-play).

    Raises `WrongServer` if another server answers at an address, `ConfigError` if recorded games cannot be used.
    """
    tables, steps, shards = tables_of(experiment, spec), experiment.learner.dispatch_steps(), len(addresses())
    fresh, reanalysed, recorded = experiment.batch_parts

    def reader(table: Table, samples: int, first: int) -> ShardedReader:
        settings = table.settings
        drawn = settings.capacity * settings.samples_per_insert * shards if settings.priority_exponent is None else 0.0
        return ShardedReader(addresses, table, (steps, samples // hosts), first, int(drawn / _AHEAD_PART))

    read = [
        reader(tables[table], samples, first)
        for table, samples, first in ((SAMPLES, fresh, 0), (REANALYSED, reanalysed, shards))
        if samples
    ]
    if not recorded:
        return BatchReader(read)
    packing = tables[SAMPLES].signature.packing
    return BatchReader(read, recorded_batches(open_records(experiment, spec), packing, (steps, recorded // hosts)))


def make_state_reader(addresses: Addresses, spec: EnvSpec, experiment: Experiment) -> StateReader:
    """Connects a reader of `actors.games` states at a time, rounded up to whole items; see `make_reader`."""
    table, items = tables_of(experiment, spec)[STATES], experiment.replay.samples_per_item
    return StateReader(addresses, table, (math.ceil(experiment.actors.games / items) * items,))


class BatchReader(Iterator[PackedBatch]):
    """An endless iterator over host batches `[steps_per_dispatch, batch_size / hosts, ...]`; a `ReplayReader`.

    Each batch concatenates a fixed number of samples from each table and from recorded games.
    """

    def __init__(self, tables: Sequence[ShardedReader], recorded: Iterator[PackedBatch] | None = None) -> None:
        """Takes the readers of the tables, and batches of recorded games, which give the same kind of samples."""
        self._tables = tables
        self._parts: list[Iterator[PackedBatch]] = [*tables, recorded] if recorded else [*tables]
        self._closed = False

    def __next__(self) -> PackedBatch:
        """The next batch, with weights and keys if the tables are prioritized."""
        if self._closed:
            raise StopIteration
        parts = [next(part) for part in self._parts]
        # Parts `[S, B_i, ...]` make a batch `[S, B, ...]`.
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *fields: np.concatenate(fields, 1), *parts)

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
    """An endless iterator over batches `[*leading, ...]` of one table, to which each shard contributes equally."""

    _equal = True
    """Whether item i of the batches comes from shard i modulo the number of shards, or from any."""

    def __init__(
        self, addresses: Addresses, table: Table, leading: tuple[int, ...], first: int = 0, most_ahead: int = 0
    ) -> None:
        """Keys name the shards of this table by numbers from `first` on; `most_ahead` as in `Intake`."""
        self._addresses, self._table = addresses, table
        self._leading, self._first = leading, first
        self._closed = threading.Event()
        found = addresses()
        self._intake = Intake(table.signature, math.prod(leading), len(found), self._equal, most_ahead)
        self._streams = [self._open(index, Address.parse(address)) for index, address in enumerate(found)]

    def __next__(self) -> PackedBatch:
        """The next batch, with weights and keys if the table is prioritized."""
        wait = Wait(stage="wait_states" if self._table.name == STATES else "wait_replay")
        while not self._closed.is_set():
            self._follow_restarts()
            late = self._late()
            if not late:
                return self._take()
            if wait.message_due():
                state = "; ".join(stream.shard.explain(Limits.explain_sample) for stream in late)
                log.warning("the %s has waited %s for a batch: %s", self._table.users.reader, wait, state)
        raise StopIteration

    def update_priorities(self, keys: Keys, errors: NDArray[Any]) -> None:
        """Sets priorities of samples of this table by their absolute value errors, if finite; never waits."""
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

    def _open(self, index: int, address: Address) -> ShardStream:
        """Begins to read a shard; if it does not answer, its stream waits for it."""
        shard = Shard(address, self._table)
        # A wrong server is an error here and not in the stream's thread.
        shard.limits()
        return ShardStream(shard, index, self._intake)

    def _follow_restarts(self) -> None:
        """Replaces the streams of shards that were restarted at other addresses."""
        for index, (stream, found) in enumerate(zip(self._streams, self._addresses(), strict=True)):
            old = stream.shard.address
            if found != str(old):
                address = Address.parse(found)
                log.info("replay at %s continues at %s", old.endpoint, address.endpoint)
                stream.stop()
                self._streams[index] = self._open(index, address)

    def _late(self) -> list[ShardStream]:
        """The streams that have not given their part of the next batch within `_POLL_S`; raises what ended one."""
        intake = self._intake
        with intake.changed:
            intake.changed.wait_for(lambda: not intake.late() or intake.failure or self._closed.is_set(), _POLL_S)
            if intake.failure is not None:
                raise intake.failure
            late = [self._streams[index] for index in intake.late()]
            for stream in late:
                stream.reopen_if_silent()
        return late

    def _take(self) -> PackedBatch:
        with self._intake.changed:
            rows, fields = self._intake.take()
            number = self._intake.taken - 1
            for stream in self._streams:
                stream.ask()
        batch = PackedBatch(rows.reshape(*self._leading, rows.shape[1]))
        if self._table.settings.priority_exponent is None:
            return batch
        # An item of a prioritized table is one sample, and as in `Intake` its number tells the shard.
        shard = self._first + (number * len(rows) + np.arange(len(rows))) % len(self._streams)
        key, weight = (np.ascontiguousarray(fields[name]).reshape(self._leading) for name in ("key", "weight"))
        return batch._replace(weight=weight, keys=Keys(shard.astype(np.int32).reshape(self._leading), key))


class StateReader(ShardedReader):
    """An endless iterator over states `[games, ...]` from whichever shards have some; a lost one delays nothing."""

    _equal = False

    def __next__(self) -> Any:
        """The next states, a `StoredState` or `Window`."""
        return self._table.signature.packing.unpack(super().__next__().rows)


class ShardStream:
    """Reads from one shard what the intake expects of it, in a thread."""

    def __init__(self, shard: Shard, index: int, intake: Intake) -> None:
        """Starts the thread; the intake knows the shard by `index`."""
        self.shard = shard
        prioritized = shard.table.settings.priority_exponent is not None
        self.priorities = PriorityUpdater(shard) if prioritized else None
        self._index, self._intake = index, intake
        self._under_way = 0
        """Items asked for and not delivered; `changed` of the intake guards it, and the fields below."""
        self._stream: SampleStream | None = None
        self._heard = time.monotonic()
        """When the last items arrived, or the wait for them began."""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"replay-{shard.address.endpoint}", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Asks for the items that are due; `changed` must be held."""
        items = self._intake.due(self._index) - self._under_way
        if self._stream is not None and items > 0:
            if self._under_way == 0:
                # Nothing was asked for, so the silence begins now.
                self._heard = time.monotonic()
            self._stream.ask(items)
            self._under_way += items

    def reopen_if_silent(self) -> None:
        """Lets the thread open a new stream if the shard's node may have vanished; `changed` must be held."""
        if self._stream is not None and time.monotonic() - self._heard > _SILENCE_S:
            self._stream.close()

    def stop(self) -> None:
        """Asks the threads to end, that of priorities after the queued updates."""
        if self.priorities is not None:
            self.priorities.stop()
        with self._intake.changed:
            self._stopped = True
            if self._stream is not None:
                self._stream.close()
            self._intake.changed.notify_all()

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
            with self._intake.changed:
                if not self._stopped:
                    self._intake.failure = failure
                self._intake.changed.notify_all()

    def _read(self) -> None:
        """Reads until the limiter has blocked for some time or the stream is stopped."""
        with closing(SampleStream(self.shard.connection, self.shard.table.name)) as stream:
            with self._intake.changed:
                if self._stopped:
                    return
                self._stream, self._under_way, self._heard = stream, 0, time.monotonic()
                self.ask()
            try:
                for items in stream:
                    self._store(items)
            finally:
                with self._intake.changed:
                    self._stream = None

    def _store(self, items: Items) -> None:
        """Decompresses items into their places; those of a stream that was stopped are dropped."""
        with self._intake.changed:
            if self._stopped:
                return
            self._under_way -= len(items)
            self._heard = time.monotonic()
            numbers = self._intake.claim(self._index, len(items))
            places = self._intake.places(numbers)
        try:
            items.read(places, self.shard.table.signature.converted)
        except WrongServer as failure:
            # Also that of a stopped stream: the places that it has claimed stay empty.
            self._intake.failure = failure
            raise
        fields = None
        if self.priorities is not None:
            fields = np.empty(len(items), PRIORITY_FIELDS)
            drawn = items.drawn
            fields["key"], fields["weight"] = drawn["key"], importance(drawn["probability"], drawn["table_size"])
        with self._intake.changed:
            self._intake.complete(numbers, fields)

    def _await_shard(self, reason: ReplayUnavailable) -> None:
        """Waits until the shard answers again or the stream is stopped."""
        if not self._stopped:
            log.warning("%s; reading continues when it is back", reason)
        while not self._stopped:
            with self._intake.changed:
                self._intake.changed.wait_for(lambda: self._stopped, _RETRY_S)
            try:
                if self.shard.limits() is not None:
                    return
            except WrongServer as error:
                # The shard may have restarted, and its new identity is not known here yet.
                log.warning("%s", error)


def priorities_of(errors: NDArray[Any]) -> NDArray[np.float64]:
    """The priorities of samples with value errors `errors`, both `[N]`."""
    return np.abs(np.asarray(errors, np.float64)) + LEAST_PRIORITY


def importance(probability: NDArray[Any], size: NDArray[Any]) -> NDArray[np.float32]:
    """Importance weights `1 / (N P)`, `[n]`, which undo the bias of sampling with probabilities P from N items."""
    # The learner divides the weights by the largest of the batch. N does not cancel there: it differs between shards,
    # between new and reanalysed samples, and while a table fills.
    return np.asarray(1 / (size * np.maximum(probability, 1e-12)), np.float32)


class PriorityUpdater:
    """Sets the priorities of one shard's samples in a thread: a shard that does not answer delays only that."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._updates: Queue[list[tuple[int, float]] | None] = Queue(_QUEUE_SIZE)
        """Keys of items with their new priorities; None ends the thread."""
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
            endpoint, left = self._shard.address.endpoint, self._updates.qsize()
            log.warning("replay at %s does not take priority updates: the last %d are lost", endpoint, left)

    def _append(self, update: list[tuple[int, float]] | None) -> None:
        if self._updates.full():
            with suppress(Empty):
                self._updates.get_nowait()  # the oldest: newer errors are better
            self._lost += 1
            # Log at 1, 2, 4, 8, ... losses.
            if self._lost.bit_count() == 1:
                endpoint = self._shard.address.endpoint
                log.warning("replay at %s is slow to take priority updates: %d were left out", endpoint, self._lost)
        self._updates.put(update)

    def _run(self) -> None:
        table, connection = self._shard.table.name, self._shard.connection
        for update in iter(self._updates.get, None):
            try:
                connection.set_priorities(table, update, _ANSWER_S)
            except (ReplayUnavailable, RequestRefused, WrongServer) as error:
                log.warning("the priorities of %d samples were not updated: %s", len(update), error)
