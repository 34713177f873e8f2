"""A shard of replay as its users see it: tables with their settings, and a client that asks for their state.

Reverb's SampleToInsertRatio keeps `error = inserted * samples_per_insert - sampled` within [min_diff, max_diff] once
the table holds `min_size` items: an insert blocks that would raise it above, and a sample that would lower it below.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from podzero.config import Experiment, ReplayConfig
from podzero.core.types import EnvSpec
from podzero.envs import sample_packing, state_packing
from podzero.replay import reverb_pb2 as pb
from podzero.replay.errors import ReplayTimeout, ReplayUnavailable, WrongServer
from podzero.replay.signature import SampleSignature
from podzero.replay.wire import Connection


class TableSettings(NamedTuple):
    """The settings of one shard's table; sizes are counted in samples."""

    capacity: int
    """Largest number of samples; the oldest are removed first."""
    min_size: int
    """Number of samples that the table must hold before any is sampled."""
    samples_per_insert: float
    min_diff: float
    max_diff: float
    priority_exponent: float | None
    """Exponent of the prioritized sampler; None for the uniform one."""
    samples_per_item: int
    """Number of samples in one item. Reverb counts, samples and removes whole items."""


class TableUsers(NamedTuple):
    """Names of a table's content and users, for messages."""

    samples: str
    """The content, as a plural noun."""
    writers: str
    reader: str
    min_size_from: str
    """The settings that determine `TableSettings.min_size`."""


class Limits(NamedTuple):
    """The state of a table and its limiter at one time."""

    settings: TableSettings
    size: int
    """Number of samples in the table."""
    inserted: int
    """Number of samples inserted so far."""
    sampled: int
    """Number of samples sampled so far."""
    users: TableUsers

    @property
    def insert_blocked(self) -> bool:
        """Whether the limiter blocks the next insert."""
        settings, item = self.settings, self.settings.samples_per_item
        # Reverb's limiter blocks no insert before the table holds `min_size`.
        if self.size + item <= settings.min_size:
            return False
        return (self.inserted + item) * settings.samples_per_insert - self.sampled > settings.max_diff

    @property
    def sample_blocked(self) -> bool:
        """Whether the limiter blocks the next sample."""
        settings, item = self.settings, self.settings.samples_per_item
        if self.size < settings.min_size:
            return True
        return self.inserted * settings.samples_per_insert - self.sampled - item < settings.min_diff

    def explain_insert(self) -> str:
        """The reason why inserts wait; says so if the limiter does not block them."""
        ratio, (samples, writers, reader, _) = self.settings.samples_per_insert, self.users
        if not self.insert_blocked:
            return self._not_blocked("inserts")
        return (
            f"replay is full enough: {self.inserted:,} {samples} were inserted, the {reader} has sampled only "
            f"{self.sampled:,} of the {math.floor(self.inserted * ratio):,} that samples_per_insert={ratio:g} allows, "
            f"so {writers} wait for the {reader}"
        )

    def explain_sample(self) -> str:
        """The reason why samples wait; says so if the limiter does not block them."""
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
    """Converts a server's description of a table, which counts items, to samples."""
    # `samples_per_item` is a power of two, so these products undo the division of floats exactly.
    limiter, sampler = info.rate_limiter_info, info.sampler_options
    prioritized = sampler.HasField("prioritized")
    return Limits(
        settings=TableSettings(
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


SAMPLES = "samples"
"""The table of samples, which actors write and the learner reads."""
STATES = "states"
"""The table of the same samples as states to search from: actors write them, reanalysers read them."""
REANALYSED = "reanalysed"
"""The table of samples with new targets, which reanalysers write and the learner reads."""
UNBOUNDED = 2.0**60
"""A bound that the limiter's error never reaches; a power of two, so that dividing it into items is exact."""


class Table(NamedTuple):
    """One table, the same on every shard."""

    name: str
    signature: SampleSignature
    settings: TableSettings
    users: TableUsers


def tables_of(experiment: Experiment, spec: EnvSpec) -> dict[str, Table]:
    """The tables of each shard by name; `STATES` and `REANALYSED` only if the experiment reanalyses."""
    replay, reanalyse = experiment.replay, experiment.reanalyse
    learned = SampleSignature(spec.name, sample_packing(experiment, spec), replay.samples_per_item)
    settings = _settings(replay, replay.capacity, replay.min_size, experiment.replay_tolerance)
    tables = [Table(SAMPLES, learned, settings, TableUsers("samples", "actors", "learner", "replay.min_size"))]
    if reanalyse.share:
        stored = SampleSignature(spec.name, state_packing(experiment, spec), replay.samples_per_item)
        # Writes of states never block. Below `min_size`, reanalysers would search the first few states again and again.
        # Half of it rules out a deadlock: the table of samples blocks no actor before all shards together hold
        # `replay.min_size`; then at least one shard holds half of its part, and reanalysers read from any shard.
        settings = _settings(replay, replay.capacity, replay.min_size / 2, 0.0)._replace(
            samples_per_insert=1.0, min_diff=-UNBOUNDED, max_diff=UNBOUNDED, priority_exponent=None
        )
        users = TableUsers("states", "actors", "reanalyser", "half of replay.min_size")
        tables.append(Table(STATES, stored, settings, users))
        parts = reanalyse.capacity, experiment.reanalysed_min_size, experiment.reanalysed_tolerance
        starts_from = "replay.tolerance / replay.samples_per_insert"
        users = TableUsers("reanalysed samples", "reanalysers", "learner", starts_from)
        tables.append(Table(REANALYSED, learned, _settings(replay, *parts), users))
    return {table.name: table for table in tables}


def _settings(replay: ReplayConfig, capacity: int, min_size: float, tolerance: float) -> TableSettings:
    """One shard's part of a table whose limiter keeps `replay.samples_per_insert`; sizes are whole items."""

    def whole(samples: float) -> int:
        return math.ceil(samples / replay.shards / replay.samples_per_item) * replay.samples_per_item

    center, tolerance = replay.samples_per_insert * whole(min_size), tolerance / replay.shards
    return TableSettings(
        capacity=whole(capacity),
        min_size=whole(min_size),
        samples_per_insert=replay.samples_per_insert,
        min_diff=center - tolerance,
        max_diff=center + tolerance,
        priority_exponent=replay.priority_exponent if replay.sampler == "prioritized" else None,
        samples_per_item=replay.samples_per_item,
    )


_POLL_S = 0.05
"""How often to ask a server that does not answer yet."""

ANSWER_S = 2.0
"""Longest wait for one answer."""


Addresses = Callable[[], Sequence[str]]
"""Returns the addresses of all shards (`ReplayServer.address()`), always in the same order; never waits.

A shard that was restarted has a new address; one that is away keeps its last one.
"""


class Address(NamedTuple):
    """The address and identity of a shard; as text `host:port#identity`."""

    endpoint: str
    identity: str
    """As in `Connection.state`: no writer or reader of another run, or of an earlier start, reaches it by mistake."""

    def __str__(self) -> str:
        return f"{self.endpoint}#{self.identity}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parses `host:port#identity`; other text is a ValueError."""
        endpoint, mark, identity = text.partition("#")
        if not mark or ":" not in endpoint:
            raise ValueError(f"replay address '{text}': expected host:port#identity, as ReplayServer.address() gives")
        return cls(endpoint, identity)


class Shard:
    """A client of one table of a shard; every request has a timeout."""

    def __init__(self, address: Address, table: Table) -> None:
        """Without an identity in `address`, that of the first answer is taken."""
        self.address = address
        self.connection = Connection(address.endpoint)
        self.table = table

    def limits(self) -> Limits | None:
        """The state of the table, or None if the server does not answer within `ANSWER_S`.

        Raises `WrongServer` if another server answers, or its table holds other samples.
        """
        try:
            identity, tables = self.connection.state(ANSWER_S)
        except ReplayUnavailable:
            return None
        self.address = self.address._replace(identity=self.address.identity or identity)
        if identity != self.address.identity or self.table.name not in tables:
            raise WrongServer(
                f"replay server {identity} with the tables {', '.join(tables)} answers at {self.address.endpoint}, "
                f"expected {self.address.identity}: it was restarted, or another run's server has the port"
            )
        found, expected = tables[self.table.name], self.table.signature
        layout = ", ".join(found.signature.dict_value.fields)
        if layout not in expected.readable:
            raise WrongServer(f"replay at {self.address.endpoint} holds '{layout}'; expected '{expected.layout}'")
        return limits_of(found, expected.samples_per_item, self.table.users)

    def explain(self, reason: Callable[[Limits], str]) -> str:
        """Why the server does not give or accept samples: the `reason` in its limits, or what is wrong with it."""
        try:
            limits = self.limits()
        except WrongServer as error:
            return str(error)
        if limits is None:
            return f"replay at {self.address.endpoint} does not answer; if it is gone, the driver is restarting it"
        return f"{self.address.endpoint}: {reason(limits)}"

    def wait(self, timeout_s: float) -> Limits:
        """The state of the table; asks repeatedly until the server answers."""
        until = time.monotonic() + timeout_s
        while (limits := self.limits()) is None:
            if time.monotonic() >= until:
                raise ReplayTimeout(f"replay at {self.address.endpoint} did not answer within {timeout_s:g} s")
            time.sleep(_POLL_S)
        return limits

    def close(self) -> None:
        """Ends the connection and its streams; may be called twice."""
        self.connection.close()
