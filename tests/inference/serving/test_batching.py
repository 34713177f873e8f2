"""The queue of a server: laws over random arrivals, and when a batch starts."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from podzero.inference.serving.batching import RUNNING, Batcher, Request

SIZES = (4, 8, 16)


def request(number, positions, arrived=0.0, client=b"a"):
    rows = np.full((positions, 2), number, np.uint8)
    rows[:, 1] = np.arange(positions)
    return Request(client, number, rows, arrived)


def evaluated(rows):
    """Numbers by which a position is recognized."""
    return rows.astype(np.float32) * 2 + 1


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_every_position_is_evaluated_once_and_every_request_answered_in_order(lengths):
    batcher, requests = Batcher(SIZES, 0.0), [request(number, length) for number, length in enumerate(lengths)]
    for one in requests:
        batcher.add(one)
    complete, places, filled = [], 0, 0
    while batch := batcher.take(1.0, 0, others_may_ask=False):
        assert batch.size in SIZES
        assert 0 < batch.filled <= batch.size
        places, filled = places + batch.size, filled + batch.filled
        complete += batch.answer(len(complete), evaluated(batch.rows()))
    assert filled == sum(lengths)
    assert batcher.queued == 0
    assert [one.number for one in complete] == list(range(len(lengths)))
    for one in complete:
        np.testing.assert_array_equal(one.evaluations, evaluated(one.rows))
    assert places - filled < SIZES[0] + 0.25 / 0.75 * filled + 1  # at least three quarters of each batch but the least


def test_an_answer_has_the_oldest_of_its_versions():
    batcher, one = Batcher(SIZES, 0.0), request(7, 20)
    batcher.add(one)
    for version in (5, 4):
        batch = batcher.take(1.0, 0, others_may_ask=False)
        complete = batch.answer(version, evaluated(batch.rows()))
    assert complete == [one]
    assert one.version == 4


def test_an_idle_device_waits_for_the_deadline_while_others_may_ask():
    batcher = Batcher(SIZES, deadline_s=0.5)
    batcher.add(request(0, 5, arrived=10.0))
    assert batcher.take(10.4, 0, others_may_ask=True) is None
    assert abs(batcher.wait_s(10.4, 0) - 0.1) < 1e-9
    assert batcher.take(10.5, 0, others_may_ask=True).filled > 0


def test_nobody_left_to_wait_for_starts_a_batch_at_once():
    batcher = Batcher(SIZES, deadline_s=0.5)
    batcher.add(request(0, 4, arrived=10.0))
    assert batcher.take(10.0, 0, others_may_ask=False).size == 4


def test_a_full_batch_starts_at_once_and_a_busy_device_waits_for_full_ones():
    batcher = Batcher(SIZES, deadline_s=0.5)
    batcher.add(request(0, 21, arrived=10.0))
    assert batcher.take(10.0, 0, others_may_ask=True).filled == 16
    assert batcher.take(99.0, 1, others_may_ask=True) is None  # the device is busy: waiting costs nothing
    assert batcher.wait_s(99.0, 1) == math.inf
    batcher.add(request(1, 40, arrived=99.0))
    assert batcher.take(99.0, 1, others_may_ask=True).filled == 16
    assert batcher.take(99.0, RUNNING, others_may_ask=False) is None  # as many are on the device as may be
    assert batcher.take(99.0, 1, others_may_ask=False).filled == 16


def test_dropping_a_client_leaves_the_others():
    batcher = Batcher(SIZES, 0.0)
    for number, client in enumerate((b"a", b"b", b"a")):
        batcher.add(request(number, 3, client=client))
    batcher.drop(b"a")
    assert batcher.queued == 3
    assert [piece.request.number for piece in batcher.take(1.0, 0, others_may_ask=False).pieces] == [1]
