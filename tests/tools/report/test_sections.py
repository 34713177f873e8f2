"""The figures of learning, replay, throughput and games, from known reports."""

import numpy as np
import pytest
from run_files import line, lines_of

from podzero.config import load
from podzero.tools.report.curves import REST, Metrics
from podzero.tools.report.history import History
from podzero.tools.report.throughput import throughput
from podzero.tools.report.training import data, games, learning


@pytest.fixture
def metrics():
    history = History()
    for one in lines_of(600):
        history.add_line(one)
    return Metrics(history)


def test_rates_are_even_if_all_actors_report_at_once():
    history = History()
    for t in range(0, 24 * 3600, 17):
        for k in range(10):
            history.add_line(line(f"actor-{k}", t, t, count__games=17.0))
    (rate,) = curves(throughput(Metrics(history), load("connect_four")), "Games").values()
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
    actor = curves(throughput(Metrics(history), load("connect_four")), "Where the time goes: actor")
    np.testing.assert_allclose(actor["search"].known, 0.75)
    np.testing.assert_allclose(actor["write"].known, 0.25)


def test_the_entropy_of_the_search_is_cross_entropy_minus_divergence(metrics):
    np.testing.assert_allclose(curves(learning(metrics), "Entropy of the policy")["search"].known, 1.5 - 0.5)


def test_a_spike_stays_in_the_band():
    history = History()
    for t in range(40_000):
        history.add_line(line("learner", 2 * t, t, learner__loss=50.0 if t == 12_345 else 1.0))
    (curve,) = curves(learning(Metrics(history)), "Loss").values()
    assert len(curve.values) <= 400
    assert curve.greatest == 50.0
    assert curve.least == 1.0


def test_quantities_of_several_actors_have_a_band_over_all_of_them(metrics):
    (plies,) = curves(games(metrics), "Length of games").values()
    assert plies.known.mean() == pytest.approx(20.5, abs=0.1)
    assert (plies.least, plies.greatest) == (20.0, 21.0)


def test_replay_and_policy_age(metrics):
    section = data(metrics, load("connect_four"))
    np.testing.assert_allclose(curves(section, "Replay ratio")["replay ratio"].known, 4.0)
    np.testing.assert_allclose(curves(section, "Policy age")["age"].known, 30.0)


def test_without_reports_there_are_no_figures():
    metrics, experiment = Metrics(History()), load("connect_four")
    for section in (learning(metrics), data(metrics, experiment), throughput(metrics, experiment), games(metrics)):
        assert section.empty
