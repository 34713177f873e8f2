"""The cache beside the function whose results it keeps."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from podzero.inference.evaluation_cache import EvaluationCache, hashes


class Counting:
    """Evaluates a row as its sum, and its sum plus a number."""

    def __init__(self, number=0.0):
        self.number, self.rows = number, []

    def __call__(self, rows):
        self.rows += rows.tolist()
        total = rows.sum(axis=1, dtype=np.float32)
        return np.stack([total, total + self.number], axis=1)


boards = hnp.arrays(np.bool_, st.tuples(st.integers(1, 40), st.just(6)))


@given(st.lists(boards, max_size=6), st.sampled_from([0.0, 0.0001, 1.0]))
def test_cached_evaluations_are_those_of_the_function(batches, mebibytes):
    """Also in tables of two slots, in which nearly all positions collide."""
    cache, evaluate = EvaluationCache(mebibytes, 2), Counting(0.5)
    for batch in batches:
        np.testing.assert_array_equal(cache(1, batch, evaluate), Counting(0.5)(batch))


def test_a_hash_depends_on_every_part_its_place_and_the_seed():
    board = np.arange(32, dtype=np.float32)
    rows = [board, board[::-1].copy()] + [np.where(np.arange(32) == place, 7.5, board) for place in range(32)]
    found = np.concatenate([hashes(np.stack(rows).astype(np.float32), seed) for seed in (0, 1)])
    assert len(np.unique(found)) == 2 * len(rows)
    np.testing.assert_array_equal(hashes(board[None], 0), found[:1])


def test_a_position_is_evaluated_once_in_a_batch_and_once_in_a_version():
    cache, evaluate = EvaluationCache(1.0, 2), Counting()
    rows = np.array([[1, 0], [0, 1], [1, 0]], bool)
    cache(1, rows, evaluate)
    cache(1, rows[::-1], evaluate)
    assert sorted(evaluate.rows) == [[False, True], [True, False]]
    assert (cache.asked, cache.found) == (6, 3)


def test_versions_do_not_share_evaluations():
    cache, rows = EvaluationCache(1.0, 2), np.eye(4, dtype=bool)
    for version in (1, 2, 1):
        np.testing.assert_array_equal(cache(version, rows, Counting(version)), Counting(version)(rows))


def test_the_table_stays_within_its_memory():
    tracemalloc.start()
    cache = EvaluationCache(0.5, 9)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del cache
    assert 2**18 < size <= 2**19


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float32])
def test_hashes_of_different_rows_differ_and_spread(dtype):
    """Of 20,000 different rows, each of 1,024 slots gets 20 on average, with a standard deviation of 4.4."""
    rows = (np.arange(20_000)[:, None] >> np.arange(85) % 15 & 1).astype(dtype)
    rows = np.unique(rows, axis=0)
    found = hashes(rows, seed=3)
    assert len(np.unique(found)) == len(rows)
    assert np.bincount((found >> np.uint64(54)).astype(int), minlength=1024).max() < 3 * len(rows) / 1024
    assert not np.any(found == hashes(rows, seed=4))
