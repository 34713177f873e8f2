"""Calibration positions: random play, then recent batches."""

import numpy as np

from podzero.inference.positions import _EVERY, RecentPositions


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
    for number in range(1, 3 * _EVERY + 1):
        recent.add(np.full((4, 1), number // _EVERY, np.uint8))
    np.testing.assert_array_equal(recent.all()[:, 0], [2, 2, 3, 3, 3, 3])
