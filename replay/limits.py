"""The rate limiter in words: who waits for whom, and why.

Reverb's SampleToInsertRatio keeps `error = inserted * samples_per_insert - sampled` within [min_diff, max_diff] once
the table holds `min_size` items: an insert that would lift the error above max_diff waits, and so does a sample that
would push it below min_diff.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple


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
    samples_per_item: int
    """Samples of one item, which come and go together: what Reverb counts."""


class Traffic(NamedTuple):
    """What goes through a table and between whom, in words."""

    what: str
    writers: str
    reader: str
    start: str
    """Where the least size comes from."""


class Limits(NamedTuple):
    """A moment in the life of a table."""

    settings: Settings
    size: int
    """Samples it holds."""
    inserted: int
    """Samples ever inserted."""
    sampled: int
    """Samples ever given out."""
    traffic: Traffic

    @property
    def insert_blocked(self) -> bool:
        """Whether the next insert waits."""
        settings = self.settings
        if self.size + settings.samples_per_item <= settings.min_size:
            return False
        return (
            self.inserted + settings.samples_per_item
        ) * settings.samples_per_insert - self.sampled > settings.max_diff

    @property
    def sample_blocked(self) -> bool:
        """Whether the next sample waits."""
        settings = self.settings
        if self.size < settings.min_size:
            return True
        return (
            self.inserted * settings.samples_per_insert - self.sampled - settings.samples_per_item < settings.min_diff
        )

    def explain_insert(self) -> str:
        """Why inserts wait, or that the limiter does not hold them."""
        ratio, (what, writers, reader, _) = self.settings.samples_per_insert, self.traffic
        if not self.insert_blocked:
            return self._passing("inserts")
        return (
            f"replay is full enough: {self.inserted:,} {what} were inserted, the {reader} has taken only "
            f"{self.sampled:,} of the {math.floor(self.inserted * ratio):,} that samples_per_insert={ratio:g} allows, "
            f"so {writers} wait for the {reader}"
        )

    def explain_sample(self) -> str:
        """Why samples wait, or that the limiter does not hold them."""
        settings, (what, writers, reader, start) = self.settings, self.traffic
        if self.size < settings.min_size:
            return (
                f"replay holds {self.size:,} of the {settings.min_size:,} {what} that the {reader} starts from "
                f"({start}), so the {reader} waits for the {writers}"
            )
        if self.sample_blocked:
            return (
                f"replay is used up: the {reader} has taken {self.sampled:,} {what}, as many as "
                f"samples_per_insert={settings.samples_per_insert:g} allows after {self.inserted:,} inserts, "
                f"so the {reader} waits for the {writers}"
            )
        return self._passing("samples")

    def _passing(self, what: str) -> str:
        return (
            f"the limiter lets {what} pass ({self.inserted:,} {self.traffic.what} inserted, {self.sampled:,} taken), "
            "so the server is slow or cannot be reached"
        )


def limits_of(info: Any, samples_per_item: int, traffic: Traffic) -> Limits:
    """The limits in a `reverb.TableInfo` of items of `samples_per_item` samples.

    `samples_per_item` is a power of two, so what was divided by it comes back exactly.
    """
    limiter, sampler = info.rate_limiter_info, info.sampler_options
    prioritized = sampler.HasField("prioritized")
    return Limits(
        settings=Settings(
            capacity=info.max_size * samples_per_item,
            min_size=limiter.min_size_to_sample * samples_per_item,
            samples_per_insert=limiter.samples_per_insert,
            min_diff=limiter.min_diff * samples_per_item,
            max_diff=limiter.max_diff * samples_per_item,
            priority_exponent=sampler.prioritized.priority_exponent if prioritized else None,
            samples_per_item=samples_per_item,
        ),
        size=info.current_size * samples_per_item,
        inserted=limiter.insert_stats.completed * samples_per_item,
        sampled=limiter.sample_stats.completed * samples_per_item,
        traffic=traffic,
    )
