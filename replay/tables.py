"""The tables of a replay shard: their signatures, settings and users."""

from __future__ import annotations

import math
from typing import NamedTuple

from podzero.config import Experiment
from podzero.replay.limits import Settings, TableUsers
from podzero.replay.signature import SampleSignature
from podzero.samples import sample_like, stored_state_like
from podzero.types import EnvSpec

SAMPLES = "samples"
"""Samples that actors write and the learner reads."""
STATES = "states"
"""The states of the same samples, which a later search starts from: actors write them, reanalysers read them."""
REANALYSED = "reanalysed"
"""Samples whose targets come from a later search: reanalysers write them, the learner reads them."""
UNBOUNDED = 2.0**60
"""A bound that the limiter's error never reaches; as a power of two it stays exact when divided into items."""


class Table(NamedTuple):
    """One table; it is the same on every shard."""

    name: str
    signature: SampleSignature
    settings: Settings
    users: TableUsers
    """For messages."""


def tables_of(experiment: Experiment, spec: EnvSpec) -> dict[str, Table]:
    """The tables of each of the experiment's shards, by name; `STATES` and `REANALYSED` only if it reanalyses.

    Args:
      experiment: the experiment to train.
      spec: of the environment whose samples are stored.
    """
    learned = SampleSignature(spec.name, sample_like(experiment, spec), experiment.replay.samples_per_item)
    tables = [
        Table(SAMPLES, learned, _samples(experiment), TableUsers("samples", "actors", "learner", "replay.min_size")),
    ]
    if experiment.reanalyse.share:
        kept = SampleSignature(spec.name, stored_state_like(experiment, spec), experiment.replay.samples_per_item)
        tables += [
            Table(
                STATES,
                kept,
                _states(experiment),
                TableUsers("states", "actors", "reanalyser", "half of replay.min_size"),
            ),
            Table(
                REANALYSED,
                learned,
                _reanalysed(experiment),
                TableUsers(
                    "reanalysed samples", "reanalysers", "learner", "replay.tolerance / replay.samples_per_insert"
                ),
            ),
        ]
    return {table.name: table for table in tables}


def _samples(experiment: Experiment) -> Settings:
    replay = experiment.replay
    return _limited(experiment, replay.capacity, replay.min_size, experiment.replay_tolerance)


def _reanalysed(experiment: Experiment) -> Settings:
    return _limited(
        experiment, experiment.reanalyse.capacity, experiment.reanalysed_min_size, experiment.reanalysed_tolerance
    )


def _states(experiment: Experiment) -> Settings:
    """Writes never block. Reads block until a shard holds half of its part of `replay.min_size`, so that reanalysers do
    not search the first few states repeatedly.

    Half is enough to rule out a deadlock: the samples table does not block actors before all shards together hold
    `replay.min_size`. Then at least one shard holds more than half of its part, however unevenly they are filled, and
    reanalysers read from any shard.
    """
    replay = experiment.replay
    return Settings(
        capacity=_whole(replay.capacity / replay.shards, replay.samples_per_item),
        min_size=_whole(replay.min_size / replay.shards / 2, replay.samples_per_item),
        samples_per_insert=1.0,
        min_diff=-UNBOUNDED,
        max_diff=UNBOUNDED,
        priority_exponent=None,
        samples_per_item=replay.samples_per_item,
    )


def _limited(experiment: Experiment, capacity: int, min_size: int, tolerance: float) -> Settings:
    """One shard's part of a table whose limiter keeps samples per insert; sizes are rounded up to whole items."""
    replay = experiment.replay
    min_size = _whole(min_size / replay.shards, replay.samples_per_item)
    center, tolerance = replay.samples_per_insert * min_size, tolerance / replay.shards
    return Settings(
        capacity=_whole(capacity / replay.shards, replay.samples_per_item),
        min_size=min_size,
        samples_per_insert=replay.samples_per_insert,
        min_diff=center - tolerance,
        max_diff=center + tolerance,
        priority_exponent=replay.priority_exponent if replay.sampler == "prioritized" else None,
        samples_per_item=replay.samples_per_item,
    )


def _whole(samples: float, samples_per_item: int) -> int:
    """`samples` rounded up to whole items."""
    return math.ceil(samples / samples_per_item) * samples_per_item
