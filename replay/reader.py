"""Reads batches of samples from all replay shards for the learner, and of states for the reanalysers."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import NDArray

from podzero.config import Experiment, ReplayConfig
from podzero.core.protocols import ReplayReader
from podzero.core.types import Batch, EnvSpec, Keys, StoredState, Window
from podzero.core.waiting import Wait
from podzero.replay.episodes import RecordedEpisodes
from podzero.replay.errors import ReplayTimeout
from podzero.replay.priorities import PriorityWriter
from podzero.replay.records import RecordedPositions, RecordsReader
from podzero.replay.shard import Address, Addresses, Shard
from podzero.replay.stream import PRIORITY_FIELDS, ShardStream
from podzero.replay.tables import REANALYSED, SAMPLES, STATES, Table, tables_of

log = logging.getLogger(__name__)

_POLL_S = 0.1
"""How often a waiting `__next__` checks whether the reader was closed or a shard restarted."""


def make_reader(addresses: Addresses, spec: EnvSpec, experiment: Experiment, hosts: int = 1) -> BatchReader:
    """Connects the learner's reader to replay shards; shards that do not answer are awaited when a batch is read.

    The rate limiter counts samples when Reverb hands them out, so prefetching is bounded: of each table, fewer than
    `steps_per_dispatch * batch_size` samples, and two items per shard, are handed out and not yet returned by
    `__next__`, over all hosts, which have equal parts. Fresh and reanalysed samples come from two tables, recorded ones
    from files, each with its part of the batch size (`Experiment.batch_parts`).

    Args:
      addresses: returns the addresses of this host's shards; none without self-play.
      spec: the environment's specification.
      experiment: the experiment to train.
      hosts: number of learner hosts; each reads its part of every batch from its own shards.

    Raises:
      WrongServer: another server answers at an address.
      ConfigError: the recorded games cannot be used.
    """
    tables, steps = tables_of(experiment, spec), experiment.learner.steps_per_dispatch
    fresh, reanalysed, recorded = experiment.batch_parts

    def part(table: str, samples: int) -> ShardedReader:
        leading = (steps, samples // hosts)
        return ShardedReader(addresses, tables[table], experiment.replay, leading)

    parts: list[ReplayReader] = []
    if fresh:
        parts.append(part(SAMPLES, fresh))
    if reanalysed:
        parts.append(part(REANALYSED, reanalysed))
    if recorded:
        records = (RecordedEpisodes if experiment.learns_model else RecordedPositions)(experiment, spec)
        parts.append(RecordsReader(records, (steps, recorded // hosts)))
    return BatchReader(parts, len(addresses()))


def make_state_reader(addresses: Addresses, spec: EnvSpec, experiment: Experiment) -> StateReader:
    """Connects a reanalyser's reader, which reads `reanalyse.games` states at a time; see `make_reader`."""
    table, games = tables_of(experiment, spec)[STATES], experiment.reanalyse.games
    return StateReader(AnyShardReader(addresses, table, experiment.replay, (games,)))


class BatchReader:
    """An endless iterator over host batches `[steps_per_dispatch, batch_size / hosts, ...]`; a `ReplayReader`.

    Each batch concatenates a fixed number of samples from each table and from recorded games.
    """

    def __init__(self, parts: Sequence[ReplayReader], shards: int) -> None:
        """Takes the readers of the parts, which give the same kind of samples, and the number of shards."""
        self._parts = parts
        self._shards = shards
        self._read: list[Batch] = []
        """The parts of the next batch that have been read, kept if a timeout interrupts the rest."""

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch (`[steps_per_dispatch, batch_size, ...]` on every field), with weights and keys if the tables
        are prioritized.
        """
        while len(self._read) < len(self._parts):
            self._read.append(next(self._parts[len(self._read)]))
        read, self._read = self._read, []
        parts = [part._replace(keys=self._global(part.keys, index)) for index, part in enumerate(read)]
        return parts[0] if len(parts) == 1 else Batch(*jax.tree.map(_concatenated, *parts))

    def update_priorities(self, keys: Keys, errors: NDArray[Any]) -> None:
        """Sets the priorities of samples of earlier batches by their absolute value errors; never waits."""
        source, shard = np.divmod(keys.shard, self._shards)
        for index, part in enumerate(self._parts):
            mine = source == index
            part.update_priorities(Keys(shard[mine], keys.key[mine]), np.asarray(errors)[mine])

    def close(self) -> None:
        """Stops prefetching and closes the connections; a `__next__` that waits ends. Thread-safe."""
        for part in self._parts:
            part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _global(self, keys: Keys | None, part: int) -> Keys | None:
        """Keys whose `shard` counts through the shards of all parts."""
        return None if keys is None else keys._replace(shard=keys.shard + np.int32(part * self._shards))


class StateReader:
    """An endless iterator over states `[reanalyse.games, ...]`, sampled from all shards."""

    def __init__(self, reader: AnyShardReader) -> None:
        self._reader = reader

    def __iter__(self) -> Iterator[StoredState | Window]:
        return self

    def __next__(self) -> StoredState | Window:
        """The next states."""
        # `Batch` is typed for the learner's tables; this one holds states.
        samples: Any = next(self._reader).samples
        states: StoredState | Window = samples
        return states

    def close(self) -> None:
        """Stops prefetching and closes the connections; a `__next__` that waits ends. Thread-safe."""
        self._reader.close()


def _concatenated(*parts: NDArray[Any]) -> NDArray[Any]:
    """Concatenates parts `[S, B_i, ...]` of a batch to `[S, B, ...]`."""
    return np.concatenate(parts, axis=1)


class ShardedReader:
    """An endless iterator over batches `[*leading, ...]` of one table, to which each shard contributes equally.

    Sample p of the stream comes from shard p modulo the number of shards. Fewer samples than one batch and two items
    per shard have been sampled and not yet returned.
    """

    def __init__(self, addresses: Addresses, table: Table, config: ReplayConfig, leading: tuple[int, ...]) -> None:
        self._addresses = addresses
        self._table = table
        self._replay = config
        self._leading = leading
        self._count = math.prod(leading)
        self._offset = 0
        self._closed = threading.Event()
        self._streams: list[ShardStream] = []
        self._priorities: PriorityWriter | None = None
        if table.settings.priority_exponent is not None:
            self._priorities = PriorityWriter(table.name, lambda index: self._streams[index].shard)
        found = addresses()
        for address in found:
            self._streams.append(self._open(Address.parse(address), len(found)))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch, with weights and keys if the table is prioritized; `keys.shard` is the index of the shard."""
        self._follow_restarts()
        wait = Wait(self._replay.warn_after_s, self._replay.timeout_s)
        while missing := self._missing():
            if self._closed.is_set():
                raise StopIteration
            self._follow_restarts()
            if wait.over:
                raise ReplayTimeout(f"no batch within {wait.seconds:.0f} s (replay.timeout_s): {_explain(missing)}")
            if wait.message_due():
                log.warning("the %s has waited %s for a batch: %s", self._table.users.reader, wait, _explain(missing))
        if self._closed.is_set():
            raise StopIteration
        return self._assemble(self._shares())

    def update_priorities(self, keys: Keys, errors: NDArray[Any]) -> None:
        """Sets the priorities of samples read earlier by their absolute value errors; never waits."""
        if self._priorities is not None:
            self._priorities.update(keys, errors)

    def close(self) -> None:
        """Stops prefetching and closes the connections; a `__next__` that waits ends. Thread-safe."""
        self._closed.set()
        if self._priorities is not None:
            self._priorities.close()
        for stream in self._streams:
            stream.stop()
        for stream in self._streams:
            stream.join()

    def _open(self, address: Address, shards: int) -> ShardStream:
        """Begins to read one of `shards` shards; if it does not answer, its stream waits for it."""
        shard = Shard(address, self._table)
        # Find a wrong server here and not in the stream's thread.
        shard.limits()
        # With the exponent 1, the weights fully undo the bias of prioritized sampling.
        exponent = None if self._priorities is None else 1.0
        return ShardStream(shard, self._largest_share(shards), exponent)

    def _largest_share(self, shards: int) -> int:
        """The largest number of samples of a batch that come from one of `shards` shards."""
        return math.ceil(self._count / shards)

    def _follow_restarts(self) -> None:
        """Replaces the streams of shards that were restarted at other addresses."""
        for index, (stream, found) in enumerate(zip(self._streams, self._addresses(), strict=True)):
            if found != str(stream.address):
                address = Address.parse(found)
                log.info("replay at %s continues at %s", stream.address.endpoint, address.endpoint)
                self._streams[index] = self._open(address, len(self._streams))
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

    def _assemble(self, shares: Sequence[range]) -> Batch:
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
            return Batch(samples)
        fields = np.ascontiguousarray(rows[:, signature.row_bytes :]).view(PRIORITY_FIELDS).reshape(self._leading)
        keys = Keys(shard.reshape(self._leading), np.ascontiguousarray(fields["key"]))
        return Batch(samples, np.ascontiguousarray(fields["weight"]), keys)


class AnyShardReader(ShardedReader):
    """Reads from whichever shards have samples, so that an empty or lost shard delays no batch."""

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
    return "; ".join(stream.explain() for stream in streams)
