"""The rate limiter in words: who waits for whom, and why.

Reverb's SampleToInsertRatio keeps `error = inserted * samples_per_insert - sampled` within [min_diff, max_diff] once
the table holds `min_size` items: an insert that would lift the error above max_diff waits, and so does a sample that
would push it below min_diff.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from podzero.config import Experiment


class Settings(NamedTuple):
    """What one shard's table is built with, counted in samples."""

    capacity: int
    """Samples it holds; the oldest leave first."""
    min_size: int
    """Samples it must hold before any is given out."""
    samples_per_insert: float
    min_diff: float
    max_diff: float
    priority_exponent: float | None
    """None for the uniform sampler."""
    bundle: int
    """Samples of one item, which come and go together: what Reverb counts."""


class Limits(NamedTuple):
    """A moment in the life of a table."""

    settings: Settings
    size: int
    """Samples it holds."""
    inserted: int
    """Samples ever inserted."""
    sampled: int
    """Samples ever given out."""

    @property
    def insert_blocked(self) -> bool:
        """Whether the next insert waits."""
        settings = self.settings
        if self.size + settings.bundle <= settings.min_size:
            return False
        return (self.inserted + settings.bundle) * settings.samples_per_insert - self.sampled > settings.max_diff

    @property
    def sample_blocked(self) -> bool:
        """Whether the next sample waits."""
        settings = self.settings
        if self.size < settings.min_size:
            return True
        return self.inserted * settings.samples_per_insert - self.sampled - settings.bundle < settings.min_diff

    def explain_insert(self) -> str:
        """Why inserts wait, or that the limiter does not hold them."""
        ratio = self.settings.samples_per_insert
        if not self.insert_blocked:
            return (
                f"the limiter lets inserts pass ({self.inserted:,} samples inserted, {self.sampled:,} taken), "
                "so the server is slow or cannot be reached"
            )
        return (
            f"replay is full enough: {self.inserted:,} samples were inserted, the learner has taken only "
            f"{self.sampled:,} of the {math.floor(self.inserted * ratio):,} that samples_per_insert={ratio:g} allows, "
            "so actors wait for the learner"
        )

    def explain_sample(self) -> str:
        """Why samples wait, or that the limiter does not hold them."""
        settings = self.settings
        if self.size < settings.min_size:
            return (
                f"replay holds {self.size:,} of the {settings.min_size:,} samples that learning starts from "
                "(replay.min_size), so the learner waits for the actors"
            )
        if self.sample_blocked:
            return (
                f"replay is used up: the learner has taken {self.sampled:,} samples, as many as "
                f"samples_per_insert={settings.samples_per_insert:g} allows after {self.inserted:,} inserts, "
                "so the learner waits for the actors"
            )
        return (
            f"the limiter lets samples pass ({self.inserted:,} samples inserted, {self.sampled:,} taken), "
            "so the server is slow or cannot be reached"
        )


def shard_settings(experiment: Experiment) -> Settings:
    """One shard's part of the experiment's replay: sizes rounded up to whole items, the tolerance divided."""
    replay = experiment.replay
    bundle = replay.bundle
    min_size = _round_up(replay.min_size / replay.shards, bundle)
    middle = replay.samples_per_insert * min_size
    tolerance = experiment.replay_tolerance / replay.shards
    return Settings(
        capacity=_round_up(replay.capacity / replay.shards, bundle),
        min_size=min_size,
        samples_per_insert=replay.samples_per_insert,
        min_diff=middle - tolerance,
        max_diff=middle + tolerance,
        priority_exponent=replay.priority_exponent if replay.sampler == "prioritized" else None,
        bundle=bundle,
    )


def _round_up(samples: float, bundle: int) -> int:
    return math.ceil(samples / bundle) * bundle


def limits_of(info: Any, bundle: int) -> Limits:
    """The limits in a `reverb.TableInfo` of items of `bundle` samples.

    `bundle` is a power of two, so what was divided by it comes back exactly.
    """
    limiter, sampler = info.rate_limiter_info, info.sampler_options
    prioritized = sampler.HasField("prioritized")
    return Limits(
        settings=Settings(
            capacity=info.max_size * bundle,
            min_size=limiter.min_size_to_sample * bundle,
            samples_per_insert=limiter.samples_per_insert,
            min_diff=limiter.min_diff * bundle,
            max_diff=limiter.max_diff * bundle,
            priority_exponent=sampler.prioritized.priority_exponent if prioritized else None,
            bundle=bundle,
        ),
        size=info.current_size * bundle,
        inserted=limiter.insert_stats.completed * bundle,
        sampled=limiter.sample_stats.completed * bundle,
    )
