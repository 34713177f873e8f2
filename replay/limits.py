"""The state of a table and its rate limiter, and messages that say who waits for whom.

Reverb's SampleToInsertRatio keeps `error = inserted * samples_per_insert - sampled` within [min_diff, max_diff] once
the table holds `min_size` items: an insert that would raise the error above max_diff blocks, and so does a sample that
would lower it below min_diff.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from podzero.replay.wire import reverb_pb2 as pb


class Settings(NamedTuple):
    """The settings of one shard's table; sizes are counted in samples."""

    capacity: int
    """The most samples that it holds; the oldest are removed first."""
    min_size: int
    """The number of samples that it must hold before any is sampled."""
    samples_per_insert: float
    min_diff: float
    max_diff: float
    priority_exponent: float | None
    """None for the uniform sampler."""
    samples_per_item: int
    """Samples of one item. Reverb counts, samples and removes whole items."""


class TableUsers(NamedTuple):
    """Who uses a table, for messages."""

    samples: str
    """What it holds, as a plural noun."""
    writers: str
    reader: str
    min_size_from: str
    """Where `Settings.min_size` comes from."""


class Limits(NamedTuple):
    """The state of a table at one time."""

    settings: Settings
    size: int
    """The number of samples that it holds."""
    inserted: int
    """The number of samples ever inserted."""
    sampled: int
    """The number of samples ever sampled."""
    users: TableUsers

    @property
    def insert_blocked(self) -> bool:
        """Whether the limiter blocks the next insert."""
        settings = self.settings
        if self.size + settings.samples_per_item <= settings.min_size:
            return False
        return (
            self.inserted + settings.samples_per_item
        ) * settings.samples_per_insert - self.sampled > settings.max_diff

    @property
    def sample_blocked(self) -> bool:
        """Whether the limiter blocks the next sample."""
        settings = self.settings
        if self.size < settings.min_size:
            return True
        return (
            self.inserted * settings.samples_per_insert - self.sampled - settings.samples_per_item < settings.min_diff
        )

    def explain_insert(self) -> str:
        """Why inserts wait, or that the limiter does not block them."""
        ratio, (samples, writers, reader, _) = self.settings.samples_per_insert, self.users
        if not self.insert_blocked:
            return self._not_blocked("inserts")
        return (
            f"replay is full enough: {self.inserted:,} {samples} were inserted, the {reader} has sampled only "
            f"{self.sampled:,} of the {math.floor(self.inserted * ratio):,} that samples_per_insert={ratio:g} allows, "
            f"so {writers} wait for the {reader}"
        )

    def explain_sample(self) -> str:
        """Why samples wait, or that the limiter does not block them."""
        settings, (samples, writers, reader, min_size_from) = self.settings, self.users
        if self.size < settings.min_size:
            return (
                f"replay holds {self.size:,} of the {settings.min_size:,} {samples} that the {reader} starts from "
                f"({min_size_from}), so the {reader} waits for the {writers}"
            )
        if self.sample_blocked:
            return (
                f"replay is used up: the {reader} has sampled {self.sampled:,} {samples}, as many as "
                f"samples_per_insert={settings.samples_per_insert:g} allows after {self.inserted:,} inserts, "
                f"so the {reader} waits for the {writers}"
            )
        return self._not_blocked("samples")

    def _not_blocked(self, calls: str) -> str:
        return (
            f"the limiter does not block {calls} ({self.inserted:,} {self.users.samples} inserted, {self.sampled:,} "
            "sampled), so the server is slow or cannot be reached"
        )


def limits_of(info: pb.TableInfo, samples_per_item: int, users: TableUsers) -> Limits:
    """Converts what a server says of a table, which counts items of `samples_per_item` samples.

    `samples_per_item` is a power of two, so multiplying undoes the division exactly.
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
        users=users,
    )
