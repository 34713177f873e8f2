import math
from collections import Counter

import numpy as np
import pytest

from podzero.evaluation.statistics import (
    ELO_PER_NAT,
    PairResults,
    Unit,
    connected,
    covariance,
    effective_units,
    estimate,
    expected_reductions,
    firth,
    maximum_likelihood,
    next_pair,
)

NAN = math.nan


def matrix(players, *pairs):
    """Points of each against each other from `(i, j, points of i, points of j)`."""
    points = np.zeros((players, players))
    for i, j, won, lost in pairs:
        points[i, j], points[j, i] = won, lost
    return points


def test_two_players_by_hand():
    # Half a win and half a loss are added: ln(8.5 / 2.5) nats.
    ratings, leverages = firth(matrix(2, (1, 0, 8, 2)), np.array([0, NAN]))
    np.testing.assert_allclose(ratings, [0, math.log(8.5 / 2.5)], atol=1e-6)
    np.testing.assert_allclose(leverages, [[0, 1], [1, 0]], atol=1e-6)


def test_an_undefeated_player_has_a_finite_rating():
    ratings, _ = firth(matrix(2, (1, 0, 40, 0)), np.array([0, NAN]))
    assert ratings[1] == pytest.approx(math.log(81), abs=1e-6)


def test_the_added_results_are_as_many_as_the_ratings():
    points = matrix(4, (0, 1, 9, 3), (1, 2, 5, 5), (2, 3, 1, 7), (0, 2, 4, 2))
    _, leverages = firth(points, np.array([0, NAN, NAN, NAN]))
    assert np.triu(leverages).sum() == pytest.approx(3, abs=1e-5)
    assert leverages[0, 3] == 0, "pairs without games get nothing"


def test_the_likelihood_is_maximized_as_by_choix():
    import choix  # here, because it imports scipy.stats, which takes each process of the tests half a second

    points = matrix(4, (0, 1, 9, 3), (1, 2, 5, 5), (2, 3, 1, 7), (0, 2, 4, 2), (0, 3, 6, 5))
    expected = choix.ilsr_pairwise_dense(points)
    found = maximum_likelihood(points, np.array([0, NAN, NAN, NAN]))
    np.testing.assert_allclose(found, expected - expected[0], atol=1e-5)


def test_all_anchors_keep_their_ratings_and_the_others_lie_between():
    ratings, _ = firth(matrix(3, (2, 0, 50, 50), (2, 1, 50, 50)), np.array([0, 2, NAN]))
    np.testing.assert_allclose(ratings, [0, 2, 1], atol=1e-5)


def test_76_percent_are_200_elo():
    found = estimate(PairResults.of(Counter({Unit(0, 1, 2.0): 3799, Unit(0, 1, 0.0): 1201})), np.array([NAN, 0]))
    assert found.elo[0] == pytest.approx(200, abs=0.5)
    assert found.low[0] < 200 < found.high[0]


def test_the_interval_of_independent_games_is_that_of_jeffreys():
    # Beta(60.5, 40.5) has the quantiles 0.5024 and 0.6918 (scipy.stats.beta.ppf).
    games = Counter({Unit(0, 1, 1.0, 1): 60, Unit(0, 1, 0.0, 1): 40})
    found = estimate(PairResults.of(games), np.array([NAN, 0]), replicates=20_000)
    low, high = (ELO_PER_NAT * math.log(p / (1 - p)) for p in (0.5024, 0.6918))
    np.testing.assert_allclose([found.low[0], found.high[0]], [low, high], atol=7)


def test_openings_that_decide_the_game_say_as_much_as_their_pairs_of_games():
    """Every opening is lost by one side: 1 to 1 each time. Single games of the same score are less certain."""
    anchors = np.array([0, NAN])
    paired = estimate(PairResults.of(Counter({Unit(0, 1, 1.0): 50})), anchors)
    single = estimate(PairResults.of(Counter({Unit(0, 1, 1.0, 1): 50, Unit(0, 1, 0.0, 1): 50})), anchors)
    assert paired.error[1] < single.error[1] / 3


def test_an_interval_reaches_further_where_nothing_was_lost():
    found = estimate(PairResults.of(Counter({Unit(0, 1, 0.0): 20})), np.array([0, NAN]))
    assert found.high[1] - found.elo[1] > 3 * (found.elo[1] - found.low[1])


def test_anchors_have_no_interval():
    found = estimate(PairResults.of(Counter({Unit(0, 1, 0.5): 4})), np.array([123.0, NAN]))
    assert found.low[0] == found.elo[0] == found.high[0] == pytest.approx(123)


def test_few_units_count_as_few():
    results = PairResults.of(Counter({Unit(0, 1, 1.0): 9, Unit(1, 2, 1.0): 3}))
    covariances = np.array([[0, 0, 0], [0, 1, 1], [0, 1, 4.0]])
    # Player 1 depends on 9 equal units; player 2 on these and on 3 units of weight (1 - 4)^2 = 9 each:
    # (9 + 27)^2 / (9 + 3 * 81).
    np.testing.assert_allclose(effective_units(results, np.zeros(3), covariances), [0, 9, 36**2 / 252])


def test_games_and_known_ratings_connect():
    points, fixed = matrix(5, (0, 2, 1, 0)), np.array([NAN, 0, NAN, NAN, 9])
    assert connected(points, fixed, 2).tolist() == [0, 2]
    assert connected(points, fixed, 3).tolist() == [3]
    assert connected(points, fixed, 4).tolist() == [1, 4]


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
    assert next_pair(points, np.array([0, NAN, NAN]), 16, among=[2], excluded=[(0, 2)]) == (0, 1)


def test_excluded_pairs_do_not_play():
    fixed = np.array([0, NAN, NAN])
    assert next_pair(np.zeros((3, 3)), fixed, 16, excluded=[(0, 1), (0, 2)]) == (1, 2)
    assert next_pair(np.zeros((3, 3)), fixed, 16, excluded=[(0, 1), (0, 2), (1, 2)]) is None
