"""Positions for calibration and comparison: random play, then recent batches."""

import numpy as np

from podzero.inference.agreement import EVERY, CalibrationPositions, RecentPositions


def numbered(numbers):
    """Positions whose observations are the numbers, and whose legal actions are their two lowest bits."""
    column = np.array(numbers, np.uint8).reshape(-1, 1)
    return CalibrationPositions(column, np.concatenate([column & 1, column & 2], axis=1) > 0)


def all_of(recent):
    """All positions, those held back at the end."""
    return np.concatenate([part.observation[:, 0] for part in recent.split()])


def test_random_play_gives_positions_of_all_lengths(positions):
    stones = positions.sum(axis=(1, 2, 3))
    assert positions.shape == (128, 6, 7, 2)
    assert positions.dtype == np.bool_
    assert stones.min() <= 2
    assert stones.max() >= 15
    assert len(np.unique(positions.reshape(len(positions), -1), axis=0)) > 100
    assert not np.any(positions.all(axis=-1))


def test_the_legal_actions_are_those_of_the_positions(played):
    """A column of connect four is open while it holds fewer than six stones."""
    stones = played.observation.any(axis=-1).sum(axis=1)
    np.testing.assert_array_equal(played.legal, stones < 6)
    assert not played.legal.all()


def test_recent_batches_replace_the_oldest_positions():
    recent = RecentPositions(numbered([0] * 6))
    for number in range(1, 3 * EVERY + 1):
        recent.add(numbered([number // EVERY] * 4))
    np.testing.assert_array_equal(np.sort(all_of(recent)), [2, 2, 3, 3, 3, 3])


def test_every_fourth_place_is_held_back_as_long_as_its_position_stays():
    recent = RecentPositions(numbered(range(8)), every=1)
    recent.add(numbered([10, 11, 12, 13]))
    calibration, held_back = recent.split()
    np.testing.assert_array_equal(calibration.observation[:, 0], [10, 11, 12, 4, 5, 6])
    np.testing.assert_array_equal(held_back.observation[:, 0], [13, 7])
    np.testing.assert_array_equal(held_back.legal, [[True, False], [True, True]])


def test_a_batch_that_is_kept_is_decoded_and_cut_to_the_ring():
    decoded = []

    def decode(rows):
        decoded.append(len(rows))
        return numbered(10 * rows[rows.any(axis=1)])

    recent = RecentPositions(numbered([0] * 3), every=2, decode=decode)
    for batch in ([[1]], [[2], [0], [3]], [[4]], [[5], [6], [7], [8]], [[9]], [[0]]):
        recent.add(np.array(batch, np.uint8))
    assert decoded == [3, 4, 1]
    np.testing.assert_array_equal(np.sort(all_of(recent)), [50, 60, 70])
