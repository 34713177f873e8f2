"""The learner's reader, whose batches mix fresh, reanalysed and recorded samples, and the reanalysers' reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import NDArray

from podzero.config import Experiment
from podzero.protocols import ReplayReader
from podzero.replay.reader import AnyShardReader, ShardedReader
from podzero.replay.records import RecordsReader
from podzero.replay.shard import Addresses
from podzero.replay.tables import REANALYSED, SAMPLES, STATES, tables_of
from podzero.types import Batch, EnvSpec, Keys, StoredState, Window


def make_reader(addresses: Addresses, spec: EnvSpec, experiment: Experiment, hosts: int = 1) -> BatchReader:
    """Connects the learner's reader to replay shards; shards that do not answer are awaited when a batch is read.

    The rate limiter counts samples when Reverb hands them out, so prefetching is bounded: of each table, fewer than
    `(steps_per_dispatch + 1) * batch_size` samples are handed out and not yet returned by `__next__`, over all hosts,
    which have equal parts; the one batch beyond a dispatch is at least two items per shard. Fresh and reanalysed
    samples come from two tables, recorded ones from files, each with its part of the batch size
    (`Experiment.batch_parts`).

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
        return ShardedReader(addresses, tables[table], experiment.replay, leading, ahead=samples // hosts)

    parts: list[ReplayReader] = []
    if fresh:
        parts.append(part(SAMPLES, fresh))
    if reanalysed:
        parts.append(part(REANALYSED, reanalysed))
    if recorded:
        parts.append(RecordsReader(experiment, spec, (steps, recorded // hosts)))
    return BatchReader(parts, len(addresses()))


def make_state_reader(addresses: Addresses, spec: EnvSpec, experiment: Experiment) -> StateReader:
    """Connects a reanalyser's reader, which reads `reanalyse.games` states at a time; see `make_reader`."""
    table, games = tables_of(experiment, spec)[STATES], experiment.reanalyse.games
    return StateReader(AnyShardReader(addresses, table, experiment.replay, (games,), ahead=games))


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

        Raises:
          ReplayTimeout: `replay.timeout_s` is set and no batch came within it; the message says which limiter blocks
            whom. What has arrived is kept for the next call.
          StopIteration: the reader was closed, before or during this call.
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
        """The next states.

        Raises:
          ReplayTimeout: as in `BatchReader`.
          StopIteration: the reader was closed.
        """
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
