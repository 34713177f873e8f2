import math

import numpy as np

from podzero.evaluation.bradley_terry import covariance, expected_reductions, next_pair

NAN = math.nan


def level(players, games):
    """Everyone has drawn so many games with everyone."""
    return games / 2 * (1 - np.eye(players))


def test_the_player_with_the_fewest_games_is_next():
    points = level(4, 20)
    points[3, :] = points[:, 3] = 0
    assert 3 in next_pair(points, np.array([0, NAN, NAN, NAN]), 16)


def test_equals_are_paired_rather_than_those_whose_game_is_decided():
    """Player 2 has few games; it is level with player 1, and far above the anchor."""
    points = np.array([[0, 4, 0.5], [96, 0, 4], [7.5, 4, 0]])
    assert next_pair(points, np.array([0, NAN, NAN]), 16) == (1, 2)


def test_every_player_is_met_before_anyone_is_well_known():
    points, fixed = np.zeros((6, 6)), np.array([0] + [NAN] * 5)
    for _ in range(6):
        i, j = next_pair(points, fixed, 16)
        points[i, j] += 8
        points[j, i] += 8
    assert ((points + points.T).sum(axis=1) > 0).all()


def test_the_reduction_is_what_the_inverse_information_says():
    """The match itself is added to the information, and the sums of fourth powers compared; the imagined games are
    too few to matter."""
    points, fixed = level(3, 5000), np.array([0, NAN, NAN])
    before = np.diagonal(covariance(np.zeros(3), points, fixed))
    points_after = points.copy()
    points_after[0, 1] += 500
    points_after[1, 0] += 500
    after = np.diagonal(covariance(np.zeros(3), points_after, fixed))
    expected = (before**4).sum() - (after**4).sum()
    np.testing.assert_allclose(expected_reductions(points, fixed, 1000)[0, 1], expected, rtol=0.01)


def test_only_the_players_that_matter_are_looked_at():
    """Player 2 is hardly known, but player 1 is asked for; games with player 2 tell nothing about it."""
    points = level(3, 40)
    points[2, :] = points[:, 2] = 0
    assert next_pair(points, np.array([0, NAN, NAN]), 16) in ((0, 2), (1, 2))
    assert next_pair(points, np.array([0, NAN, NAN]), 16, among=[1]) == (0, 1)


def test_a_match_of_others_is_chosen_if_it_tells_more():
    """Player 2 is known well relative to player 1, which is hardly known relative to the anchor."""
    points = np.array([[0, 2, 0], [2, 0, 500], [0, 500, 0.0]])
    assert next_pair(points, np.array([0, NAN, NAN]), 16, among=[2]) in ((0, 1), (0, 2))
    assert next_pair(points, np.array([0, NAN, NAN]), 16, among=[2], barred=[(0, 2)]) == (0, 1)


def test_barred_pairs_do_not_play():
    fixed = np.array([0, NAN, NAN])
    assert next_pair(np.zeros((3, 3)), fixed, 16, barred=[(0, 1), (0, 2)]) == (1, 2)
    assert next_pair(np.zeros((3, 3)), fixed, 16, barred=[(0, 1), (0, 2), (1, 2)]) is None
