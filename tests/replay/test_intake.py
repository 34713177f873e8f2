"""Items become rows of batches by their numbers, whenever and from wherever they come."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podzero.config.samples import position_like
from podzero.core.types import EnvSpec
from podzero.envs import SamplePacking
from podzero.replay import SampleSignature, intake
from podzero.replay.intake import Intake

SPEC = EnvSpec("line", (3,), "uint8", 2)


def made(count, samples_per_item=1, shards=1, equal=True, most_ahead=0):
    return Intake(
        SampleSignature("line", SamplePacking(position_like(SPEC), SPEC), samples_per_item),
        count,
        shards,
        equal,
        most_ahead,
    )


def deliver(table, shard, items):
    """A shard gives items, whose bytes tell their number modulo 256."""
    with table.changed:
        numbers = table.claim(shard, items)
        for number, place in zip(numbers.tolist(), table.places(numbers), strict=True):
            place[:] = number % 256
        table.complete(numbers, None)
    return numbers.tolist()


@given(
    count=st.integers(1, 12), samples_per_item=st.sampled_from([1, 2, 4, 8]), shards=st.integers(1, 3),
    equal=st.booleans(), order=st.lists(st.integers(0, 2), max_size=40),
)  # fmt: skip
def test_batches_hold_the_rows_of_items_in_the_order_of_their_numbers(count, samples_per_item, shards, equal, order):
    table, taken, given_numbers = made(count, samples_per_item, shards, equal), [], set()

    def take():
        while not table.late():
            needed = range(count * len(taken) // samples_per_item, -(-count * (len(taken) + 1) // samples_per_item))
            assert given_numbers >= set(needed)
            taken.append(table.take()[0][:, 0].copy())

    for shard in order:
        given_numbers |= set(deliver(table, shard % shards, 1 + shard))
        take()
    while len(taken) < 5:
        for shard in table.late():
            given_numbers |= set(deliver(table, shard, table.due(shard)))
        take()
    found = np.concatenate(taken)
    np.testing.assert_array_equal(found, np.arange(len(found)) // samples_per_item % 256)


def test_each_shard_owes_its_part_of_the_next_batch_or_if_any_may_give_it_all_that_is_missing():
    table = made(6, shards=2)
    assert [table.due(shard) for shard in range(2)] == [3, 3]
    deliver(table, 0, 3)
    assert [table.due(shard) for shard in range(2)] == [0, 3]
    assert table.late() == [1]
    table = made(6, shards=2, equal=False)
    deliver(table, 0, 4)
    assert [table.due(shard) for shard in range(2)] == [2, 2]
    assert table.late() == [0, 1]


def test_what_devices_hold_of_a_batch_stays_when_later_ones_arrive():
    """A CPU device reads from the host array itself."""
    table = made(64)
    deliver(table, 0, 64)
    first = jax.device_put(table.take()[0])
    for _ in range(20):
        deliver(table, 0, 64)
        table.take()
    np.testing.assert_array_equal(np.asarray(first)[:, 0], np.arange(64))


@pytest.mark.parametrize(("dispatch_s", "ahead"), [(0.003, 133), (0.030, 13), (0.300, 1)])
def test_what_is_read_ahead_lasts_as_long_whatever_a_dispatch_takes(monkeypatch, dispatch_s, ahead):
    """50 ms of batches of 8 rows, but at most `most_ahead`."""
    for most in (1000, 40, 0):
        clock = iter(np.arange(100) * dispatch_s)
        monkeypatch.setattr(intake.time, "monotonic", lambda clock=clock: float(next(clock)))
        table, sampled = made(8, most_ahead=most), 0
        for batch in range(12):
            if (due := table.due(0)) > 0:
                sampled = deliver(table, 0, due)[-1] + 1
            assert sampled - 8 * batch <= 8 + min(ahead, most)
            table.take()
        assert sampled - 8 * 11 == 8 + min(ahead, most)


def test_two_batches_that_are_taken_at_once_are_no_pace(monkeypatch):
    clock = iter([0.0, 1e-4, *range(60, 70)])
    monkeypatch.setattr(intake.time, "monotonic", lambda: float(next(clock)))
    table = made(8, most_ahead=1000)
    for batch in range(12):
        assert deliver(table, 0, table.due(0))[-1] + 1 == 8 * (batch + 1)
        table.take()


def test_a_learner_that_pauses_is_read_ahead_for_as_before_within_a_few_batches(monkeypatch):
    times = [0.003 * batch + 10.0 * (batch > 9) for batch in range(24)]
    clock = iter(times)
    monkeypatch.setattr(intake.time, "monotonic", lambda: next(clock))
    table, ahead, sampled = made(8, most_ahead=1000), [], 0
    for batch in range(24):
        if (due := table.due(0)) > 0:
            sampled = deliver(table, 0, due)[-1] + 1
        ahead.append(sampled - 8 * (batch + 1))
        table.take()
    assert ahead[9] == ahead[23] == 133
