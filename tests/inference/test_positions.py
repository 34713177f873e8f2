"""Calibration positions: random play, then recent batches."""

import numpy as np

from podzero.inference.positions import EVERY, RecentPositions


def test_random_play_gives_positions_of_all_lengths(positions):
    stones = positions.sum(axis=(1, 2, 3))
    assert positions.shape == (128, 6, 7, 2)
    assert positions.dtype == np.bool_
    assert stones.min() <= 2
    assert stones.max() >= 15
    assert len(np.unique(positions.reshape(len(positions), -1), axis=0)) > 100
    assert not np.any(positions.all(axis=-1))


def test_recent_batches_replace_the_oldest_positions():
    recent = RecentPositions(np.zeros((6, 1), np.uint8))
    for number in range(1, 3 * EVERY + 1):
        recent.add(np.full((4, 1), number // EVERY, np.uint8))
    np.testing.assert_array_equal(recent.all()[:, 0], [2, 2, 3, 3, 3, 3])


def test_a_batch_that_is_kept_is_decoded_and_cut_to_the_ring():
    decoded = []

    def decode(rows):
        decoded.append(len(rows))
        return 10 * rows[rows.any(axis=1)]

    recent = RecentPositions(np.zeros((3, 1), np.uint8), every=2, decode=decode)
    for batch in ([[1]], [[2], [0], [3]], [[4]], [[5], [6], [7], [8]], [[9]], [[0]]):
        recent.add(np.array(batch, np.uint8))
    assert decoded == [3, 4, 1]
    np.testing.assert_array_equal(np.sort(recent.all()[:, 0]), [50, 60, 70])
