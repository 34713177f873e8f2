"""Ratings, scores, judgement and returns with their intervals, by the step that was evaluated."""

import numpy as np
import pytest
from run_files import evaluation, lines_of

from podzero.config import load
from podzero.intervals import student, wilson
from podzero.tools.report.curves import Metrics
from podzero.tools.report.history import History
from podzero.tools.report.strength import strength


def figures_of(*lines, ladder=None, config="connect_four"):
    history = History()
    for one in [*lines_of(600), *lines]:
        history.add_line(one)
    section = strength(Metrics(history), load(config), ladder or {})
    return {figure.title: figure for figure in section.figures}, section


def test_a_rating_stands_at_the_step_that_was_evaluated():
    figures, _ = figures_of(
        evaluation(400, 20, elo=100.0, elo_error=30.0), evaluation(500, 30, elo=200.0, elo_error=40.0)
    )
    (curve,) = figures["Rating"].curves
    np.testing.assert_array_equal(curve.values, [100, 200])
    np.testing.assert_array_equal(curve.low, [70, 160])
    np.testing.assert_array_equal(curve.high, [130, 240])
    axes = figures["Rating"].axes
    np.testing.assert_array_equal(axes.steps, [20, 30])
    np.testing.assert_allclose(axes.hours, [200 / 3600, 300 / 3600])
    np.testing.assert_allclose(axes.games, [205, 305])


def test_the_ladder_replaces_older_ratings_and_intervals_keep_their_length():
    ladder = {"ratings": {"@20": {"elo": 150.0, "error": 10.0, "games": 40}, "random": {"elo": 0.0, "error": 0.0}}}
    lines = evaluation(400, 20, elo=100.0, elo_error=30.0), evaluation(500, 30, elo=200.0, elo_error=40.0)
    figures, _ = figures_of(*lines, ladder=ladder)
    (curve,) = figures["Rating"].curves
    np.testing.assert_array_equal(curve.values, [150, 200])
    np.testing.assert_array_equal(curve.low, [120, 160])


def test_matches_are_listed_with_the_newest_snapshot_first():
    results = [
        {"first": "@5", "second": "random", "wins": 1, "draws": 2, "losses": 1},
        {"first": "@20", "second": "@5", "wins": 3, "draws": 0, "losses": 1},
        {"first": "@20"},
        None,
    ]
    _, section = figures_of(ladder={"results": results})
    (table,) = section.tables
    assert table.rows == [["@20", "@5", "3", "0", "1", "75.0%"], ["@5", "random", "1", "2", "1", "50.0%"]]


@pytest.mark.parametrize("ladder", [{"ratings": 3, "results": 4}, {"ratings": {"@20": [1]}}, {"ratings": {"@20": {}}}])
def test_a_damaged_ladder_leaves_the_reported_ratings(ladder):
    figures, section = figures_of(evaluation(400, 20, elo=100.0, elo_error=30.0), ladder=ladder)
    assert figures["Rating"].curves[0].values.tolist() == [100.0]
    assert section.tables == []


def test_the_judgement_has_an_interval_by_band():
    judged = {"keeps_value": 0.9, "keeps_value_0_9": 0.8, "positions_0_9": 50.0, "keeps_value_10_19": 1.0}
    figures, _ = figures_of(evaluation(400, 20, **judged, positions_10_19=20.0))
    whole, opening, middle = figures["Moves that keep the value"].curves
    assert [whole.label, opening.label, middle.label] == ["all plies", "plies 0 to 9", "plies 10 to 19"]
    positions = load("connect_four").evaluation.positions
    assert (whole.low[0], whole.high[0]) == wilson(0.9 * positions, positions)
    assert (opening.low[0], opening.high[0]) == wilson(40.0, 50)
    assert (middle.low[0], middle.high[0]) == wilson(20.0, 20)


def test_scores_have_an_interval_by_opponent():
    figures, _ = figures_of(evaluation(400, 20, **{"score_mcts:100": 0.75}), evaluation(500, 30, score_random=1.0))
    mcts, random = figures["Scores against opponents"].curves
    assert [mcts.label, random.label] == ["mcts:100", "random"]
    np.testing.assert_array_equal(mcts.values, [0.75, np.nan])
    games = load("connect_four").evaluation.games
    assert (mcts.low[0], mcts.high[0]) == wilson(0.75 * games, games)


def test_scores_have_the_interval_of_the_games_that_were_played():
    told = {"score_mcts:100": 0.75, "games_mcts:100": 8.0, "score_earlier": 0.5, "games_earlier": 2.0}
    figures, _ = figures_of(evaluation(400, 20, **told))
    earlier, mcts = figures["Scores against opponents"].curves
    assert (mcts.low[0], mcts.high[0]) == wilson(6, 8)
    assert (earlier.low[0], earlier.high[0]) == wilson(1, 2)


def test_returns_have_the_interval_of_their_mean():
    lines = (
        evaluation(400, 20, mean_return=100.0, std_return=10.0, episodes=20.0),
        evaluation(500, 30, mean_return=120.0),
    )
    figures, _ = figures_of(*lines, config="cartpole")
    (curve,) = figures["Returns in evaluation"].curves
    assert (curve.low[0], curve.high[0]) == student(100.0, 10.0, 20)
    assert np.isnan(curve.low[1])
