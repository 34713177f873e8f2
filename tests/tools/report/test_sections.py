"""The sections of a report, from known metrics and settings."""

import numpy as np
import pytest
from run_files import evaluation, line, lines_of

from podzero.config import load, parse
from podzero.evaluation.statistics import student, wilson
from podzero.files.workdir import Change, Inheritance, RecordedChange
from podzero.tools.report.figures import REST, MetricCurves
from podzero.tools.report.page import settings
from podzero.tools.report.record import History, Record
from podzero.tools.report.sections import data, games, learning, strength, throughput

# The figures of learning, replay, throughput and games, from known reports.


@pytest.fixture
def metrics():
    history = History()
    for one in lines_of(600):
        history.add_line(one)
    return MetricCurves(history)


def test_rates_are_even_if_all_actors_report_at_once():
    history = History()
    for t in range(0, 24 * 3600, 17):
        for k in range(10):
            history.add_line(line(f"actor-{k}", t, t, count__games=17.0))
    (rate,) = curves(throughput(MetricCurves(history), load("connect_four")), "Games").values()
    np.testing.assert_allclose(rate.values[1:], 3600 * 10)


def curves(section, title):
    (figure,) = [figure for figure in section.figures if figure.title == title]
    return {curve.label: curve for curve in figure.curves}


def test_rates_are_those_of_all_actors_together(metrics):
    found = curves(throughput(metrics, load("connect_four")), "Moves and samples")
    assert np.median(found["moves"].values) == pytest.approx(2 * 100 / 10)
    assert np.median(found["samples written"].values) == pytest.approx(2 * 90 / 10)
    batch = load("connect_four").learner.batch_size
    assert np.median(found["samples trained on"].values) == pytest.approx(batch / 10)


def test_shares_of_time_and_what_no_stage_measures_add_up_to_one(metrics):
    section = throughput(metrics, load("connect_four"))
    actor = curves(section, "Where the time goes: actor")
    assert list(actor) == ["search", "write", REST]
    np.testing.assert_allclose(sum(curve.known for curve in actor.values()), 1.0)
    np.testing.assert_allclose(actor["search"].known, 0.75)
    assert list(curves(section, "Where the time goes: learner")) == ["step", "wait_replay", REST]


def test_a_stage_that_a_report_lacks_took_no_time_in_it():
    history = History()
    for one in (line("actor-0", 0, 0, time__search=1.0), line("actor-0", 1, 0, time__search=0.5, time__write=0.5)):
        history.add_line(one)
    actor = curves(throughput(MetricCurves(history), load("connect_four")), "Where the time goes: actor")
    np.testing.assert_allclose(actor["search"].known, 0.75)
    np.testing.assert_allclose(actor["write"].known, 0.25)


def test_the_entropy_of_the_search_is_cross_entropy_minus_divergence(metrics):
    np.testing.assert_allclose(curves(learning(metrics), "Entropy of the policy")["search"].known, 1.5 - 0.5)


def test_a_spike_stays_in_the_band():
    history = History()
    for t in range(40_000):
        history.add_line(line("learner", 2 * t, t, learner__loss=50.0 if t == 12_345 else 1.0))
    (curve,) = curves(learning(MetricCurves(history)), "Loss").values()
    assert len(curve.values) <= 400
    assert curve.cells[2:] == ["1", "50"]


def test_quantities_of_several_actors_have_a_band_over_all_of_them(metrics):
    (plies,) = curves(games(metrics), "Length of games").values()
    assert plies.known.mean() == pytest.approx(20.5, abs=0.1)
    assert plies.cells[2:] == ["20", "21"]


def test_each_opponent_of_self_play_has_a_curve():
    history = History()
    for t in range(20):
        history.add_line(line("actor-0", 2 * t, t, selfplay__score_earlier=0.5, selfplay__score_random=1.0))
    found = curves(games(MetricCurves(history)), "Points against opponents")
    assert {name: curve.known.mean() for name, curve in found.items()} == {"earlier": 0.5, "random": 1.0}


def test_replay_and_policy_age(metrics):
    section = data(metrics, load("connect_four"))
    np.testing.assert_allclose(curves(section, "Replay ratio")["replay ratio"].known, 4.0)
    np.testing.assert_allclose(curves(section, "Policy age")["age"].known, 30.0)


def test_without_reports_there_are_no_figures():
    metrics, experiment = MetricCurves(History()), load("connect_four")
    for section in (learning(metrics), data(metrics, experiment), throughput(metrics, experiment), games(metrics)):
        assert not section


# Ratings, scores, judgement and returns with their intervals, by the step that was evaluated.


def figures_of(*lines, ladder=None, config="connect_four"):
    history = History()
    for one in [*lines_of(600), *lines]:
        history.add_line(one)
    section = strength(MetricCurves(history), load(config), ladder or {})
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


# How an experiment differs from the built-in one of its name, or from the defaults.


def of_settings(experiment, base, changes=(), inheritance=None):
    return settings(Record(experiment, base, None, History(), {}, [], {}, (), changes, inheritance))


def test_settings_that_differ_from_the_built_in_experiment():
    section = of_settings(load("connect_four", ["learner.batch_size=64", "actors.games=7"]), load("connect_four"))
    (table,) = section.tables
    held = load("connect_four")
    assert table.rows == [
        ("actors.games", f"{held.actors.games}", "7"),
        ("learner.batch_size", f"{held.learner.batch_size}", "64"),
    ]
    assert "batch_size: 64" in section.text


def test_an_unchanged_experiment_has_no_differences():
    section = of_settings(load("connect_four"), load("connect_four"))
    assert section.tables == []
    assert "none" in section.facts["differences"]


def test_what_was_changed_at_resumptions_is_listed_with_its_step():
    change = RecordedChange(1_700_000_000.0, 1200, Change("learner.optimizer.learning_rate", 0.001, 0.0005))
    section = of_settings(load("connect_four"), load("connect_four"), [change])
    ((step, _, *rest),) = section.tables[0].rows
    assert (step, *rest) == ("1,200", "learner.optimizer.learning_rate", "0.001", "0.0005")


def test_an_experiment_of_ones_own_is_compared_with_the_defaults():
    own = parse({"name": "mine", "env": {"name": "hex"}, "learner": {"batch_size": 64}}, "mine")
    (table,) = of_settings(own, None).tables
    rows = {row[0]: row[1:] for row in table.rows}
    default = type(own).model_fields["learner"].default.batch_size
    assert rows["learner.batch_size"] == (f"{default}", "64")
    assert rows["env.name"] == ("\N{EN DASH}", "hex")
    assert "learner.publish_every" not in rows


def test_inherited_settings_are_listed_with_their_files_unless_they_were_changed():
    given = {"stop.minutes": "connect_four", "network.blocks": "connect_four_int8"}
    change = RecordedChange(1_700_000_000.0, 1200, Change("stop.minutes", 20, 60))
    inheritance = Inheritance("mine.yaml extends connect_four_int8", given)
    inherited, _ = of_settings(load("connect_four"), load("connect_four"), [change], inheritance).tables
    assert inherited.rows == [("network.blocks", "3", "connect_four_int8")]
    assert "mine.yaml" in inherited.caption


def test_numbers_of_info_have_a_curve_each():
    history = History()
    for t in range(0, 600, 20):
        history.add_line(line("actor-0", t, t, acting__info_success=0.25))
    experiment = load("cartpole", ["env.metrics=[success]"])
    found = curves(strength(MetricCurves(history), experiment, {}), "Metrics of the environment")
    np.testing.assert_allclose(found["success"].known, 0.25)
