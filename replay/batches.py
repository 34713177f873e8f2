"""The ways out of replay: the learner's, fresh and refreshed samples in one batch, and the reanalysers'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import NDArray

from podzero.config import Experiment
from podzero.replay.reader import Drawn, ScatteredReader, ShardedReader
from podzero.replay.shard import Address
from podzero.replay.tables import REANALYSED, SAMPLES, STATES, tables_of
from podzero.types import Batch, EnvSpec, Keys, StoredState, Window


def make_reader(addresses: Sequence[str], spec: EnvSpec, experiment: Experiment, hosts: int = 1) -> BatchReader:
    """The learner's reader; connects to the shards at `addresses` (`ReplayServer.address()`), all of which must answer.

    What is sampled ahead counts as sampled for the rate limiter although nobody has learned from it, so it is kept
    within half of the limiter's tolerance, beyond the one dispatch that must be gathered anyway:

        ahead = clamp(tolerance / 2 - dispatch, batch_size, (prefetch - 1) * dispatch)

    samples over all shards, where dispatch = steps_per_dispatch * batch_size, and of all three only this host's part;
    for fresh and refreshed samples by themselves, of which a batch holds `Experiment.batch_parts`.

    Args:
      addresses: the shards of this host.
      spec: of the environment whose samples are kept.
      experiment: what is trained.
      hosts: machines that train together; each reads its part of every batch from shards of its own.

    Raises:
      ReplayTimeout: a shard does not answer within `replay.timeout_s`.
      WrongServer: another server answers at an address.
    """
    tables, parsed = tables_of(experiment, spec), [Address.parse(address) for address in addresses]
    fresh, reanalysed = experiment.batch_parts

    def part(table: str, samples: int, tolerance: float) -> ShardedReader:
        leading = (experiment.learner.steps_per_dispatch, samples // hosts)
        ahead = _samples_ahead(experiment, samples, tolerance) // hosts
        return ShardedReader(parsed, tables[table], experiment.replay, leading, ahead)

    parts = [part(SAMPLES, fresh, experiment.replay_tolerance)]
    if reanalysed:
        parts.append(part(REANALYSED, reanalysed, experiment.reanalysed_tolerance))
    return BatchReader(parts, len(parsed))


def make_state_reader(addresses: Sequence[str], spec: EnvSpec, experiment: Experiment) -> StateReader:
    """A reanalyser's reader, of `reanalyse.games` past samples at a time; arguments and errors as of `make_reader`."""
    parsed, games = [Address.parse(address) for address in addresses], experiment.reanalyse.games
    table = tables_of(experiment, spec)[STATES]
    return StateReader(ScatteredReader(parsed, table, experiment.replay, (games,), ahead=games))


class BatchReader:
    """An endless iterator over host batches `[steps_per_dispatch, batch_size / hosts, ...]`; a `ReplayReader`.

    Each batch holds the parts' samples one after the other, in the same numbers at all times.
    """

    def __init__(self, parts: Sequence[ShardedReader], shards: int) -> None:
        """Takes readers of tables with the same samples, on the same `shards` shards."""
        self._parts = parts
        self._shards = shards
        self._drawn: list[Drawn] = []
        """What was read of the coming batch."""

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch (`[steps_per_dispatch, batch_size, ...]` on every field), with weights and keys if the tables
        are prioritized.

        Raises:
          ReplayTimeout: none came within `replay.timeout_s`; says which limiter holds whom. What had arrived is kept
            for the next call.
          StopIteration: the reader was closed, perhaps meanwhile by another thread.
        """
        while len(self._drawn) < len(self._parts):
            self._drawn.append(next(self._parts[len(self._drawn)]))
        drawn, self._drawn = self._drawn, []
        named = [part._replace(keys=self._named(part.keys, index)) for index, part in enumerate(drawn)]
        return Batch(*named[0]) if len(named) == 1 else Batch(*jax.tree.map(_joined, *named))

    def moved(self, old: str, new: str) -> None:
        """The shard at the address `old` has come to life again at `new`: it is read there from now on. Thread-safe."""
        for part in self._parts:
            part.moved(old, new)

    def update_priorities(self, keys: Keys, errors: NDArray[Any]) -> None:
        """Sets the priorities of samples that a batch brought, by their absolute value errors; never waits."""
        source, shard = np.divmod(keys.shard, self._shards)
        for index, part in enumerate(self._parts):
            mine = source == index
            part.update_priorities(Keys(shard[mine], keys.key[mine]), np.asarray(errors)[mine])

    def close(self) -> None:
        """Stops prefetching and gives the connections back; ends a `__next__` that still waits. Thread-safe."""
        for part in self._parts:
            part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _named(self, keys: Keys | None, part: int) -> Keys | None:
        """Keys whose `shard` says the part as well."""
        return None if keys is None else keys._replace(shard=keys.shard + np.int32(part * self._shards))


class StateReader:
    """An endless iterator over past samples `[reanalyse.games, ...]`, drawn at random from all shards; a
    `podzero.protocols.StateReader`.
    """

    def __init__(self, reader: ScatteredReader) -> None:
        self._reader = reader

    def __iter__(self) -> Iterator[StoredState | Window]:
        return self

    def __next__(self) -> StoredState | Window:
        """The next of them.

        Raises:
          ReplayTimeout: as of `BatchReader`.
          StopIteration: the reader was closed.
        """
        samples: StoredState | Window = next(self._reader).samples
        return samples

    def moved(self, old: str, new: str) -> None:
        """The shard at the address `old` has come to life again at `new`: it is read there from now on. Thread-safe."""
        self._reader.moved(old, new)

    def close(self) -> None:
        """Stops prefetching and gives the connections back; ends a `__next__` that still waits. Thread-safe."""
        self._reader.close()


def _joined(*parts: NDArray[Any]) -> NDArray[Any]:
    """Parts `[S, B_i, ...]` of a batch as `[S, B, ...]`."""
    return np.concatenate(parts, axis=1)


def _samples_ahead(experiment: Experiment, batch: int, tolerance: float) -> int:
    """Samples that all hosts together hold beyond the dispatch that is being gathered, `batch` to each step."""
    config = experiment.learner
    dispatch = batch * config.steps_per_dispatch
    within_tolerance = int(tolerance / 2) - dispatch
    return max(batch, min(within_tolerance, (config.prefetch - 1) * dispatch))
