"""The tables of a replay shard: what each one holds, who writes and reads it, and with which limits."""

from __future__ import annotations

import math
from typing import NamedTuple

from podzero.config import Experiment
from podzero.replay.limits import Settings, Traffic
from podzero.replay.signature import SampleSignature
from podzero.samples import sample_like, stored_state_like
from podzero.types import EnvSpec

SAMPLES = "samples"
"""What actors write and the learner reads."""
STATES = "states"
"""What a later search needs of the same samples: actors write it, reanalysers read it."""
REANALYSED = "reanalysed"
"""Samples whose targets come from a later search: reanalysers write them, the learner reads them."""
UNBOUNDED = 2.0**60
"""An error of the limiter that is never reached, and that survives being counted in items: a power of two."""


class Table(NamedTuple):
    """One table, the same on every shard."""

    name: str
    signature: SampleSignature
    settings: Settings
    traffic: Traffic
    """For messages."""


def tables_of(experiment: Experiment, spec: EnvSpec) -> dict[str, Table]:
    """The tables of each of the experiment's shards, by name: the last two only where old positions are searched again.

    Args:
      experiment: what is trained.
      spec: of the environment whose samples are kept.
    """
    learned = SampleSignature(spec.name, sample_like(experiment, spec), experiment.replay.samples_per_item)
    tables = [
        Table(SAMPLES, learned, _fresh(experiment), Traffic("samples", "actors", "learner", "replay.min_size")),
    ]
    if experiment.reanalyse.share:
        kept = SampleSignature(spec.name, stored_state_like(experiment, spec), experiment.replay.samples_per_item)
        tables += [
            Table(
                STATES,
                kept,
                _states(experiment),
                Traffic("past samples", "actors", "reanalyser", "half of replay.min_size"),
            ),
            Table(
                REANALYSED,
                learned,
                _reanalysed(experiment),
                Traffic("refreshed samples", "reanalysers", "learner", "as replay.tolerance asks for"),
            ),
        ]
    return {table.name: table for table in tables}


def _fresh(experiment: Experiment) -> Settings:
    replay = experiment.replay
    return _limited(experiment, replay.capacity, replay.min_size, experiment.replay_tolerance)


def _reanalysed(experiment: Experiment) -> Settings:
    return _limited(
        experiment, experiment.reanalyse.capacity, experiment.reanalysed_min_size, experiment.reanalysed_tolerance
    )


def _states(experiment: Experiment) -> Settings:
    """Nobody is ever held back who writes; who reads waits for half of what learning starts from, lest the first few
    positions be searched again and again.

    Half, because actors are held back by the fresh samples only when all of `replay.min_size` is there, in whichever
    shards: some shard has then more than its half of the past, however unevenly it was spread, and readers take what
    they get from any.
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
    """One shard's part of a table that holds writers and readers together: sizes rounded up to whole items, the
    tolerance divided.
    """
    replay = experiment.replay
    least = _whole(min_size / replay.shards, replay.samples_per_item)
    middle, off = replay.samples_per_insert * least, tolerance / replay.shards
    return Settings(
        capacity=_whole(capacity / replay.shards, replay.samples_per_item),
        min_size=least,
        samples_per_insert=replay.samples_per_insert,
        min_diff=middle - off,
        max_diff=middle + off,
        priority_exponent=replay.priority_exponent if replay.sampler == "prioritized" else None,
        samples_per_item=replay.samples_per_item,
    )


def _whole(samples: float, samples_per_item: int) -> int:
    """At least `samples`, in whole items."""
    return math.ceil(samples / samples_per_item) * samples_per_item
