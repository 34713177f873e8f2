"""A small version of what `benchmarks/results/tournaments.json` holds."""

import json
from functools import partial

import numpy as np
import pytest

from podzero.benchmarks.pages import RESULTS
from podzero.benchmarks.tournaments import SAVINGS, SCENARIOS, Scenario, Simulation, coverage, fisher, played, saving
from podzero.evaluation.statistics import estimate


def test_intervals_hold_the_truth():
    """Of 120 tournaments with three ratings each; the standard error of the share is below 0.02."""
    scenario = Scenario("four players", 4, 250, 8)
    found = coverage(scenario, 120, {"used": partial(estimate, replicates=300)})["used"]
    assert 0.90 <= found["coverage"] <= 0.99


def test_very_unequal_players_need_more_than_the_fisher_information():
    scenario = next(one for one in SCENARIOS if one.name.startswith("four very unequal"))
    found = coverage(scenario, 60, {"used": partial(estimate, replicates=300), "fisher": fisher})
    assert found["used"]["coverage"] >= 0.90
    assert found["fisher"]["coverage"] < found["used"]["coverage"]


def test_choosing_who_plays_saves_games():
    found = saving(Scenario("eight players", 8, 400, 200), 2, until=160)
    assert found["ratio"] <= 0.8


def test_simulated_games_have_the_expected_score_and_correlation():
    simulation = Simulation(Scenario("two", 2, 200, 1, openings=20_000, draws=0.3, correlation=-0.5), seed=0)
    simulation.play(0, 1)
    results = simulation.results
    score = (results.points * results.count).sum() / (2 * results.count.sum())
    chance = 1 / (1 + 10 ** (simulation.truth[1] / 400))
    assert score == pytest.approx(chance, abs=0.01)
    variance = np.average((results.points - 2 * score) ** 2, weights=results.count)
    assert variance < 2 * chance * (1 - chance) * 0.8, "draws and negative correlation"


def test_a_simulation_is_repeatable():
    one, same = (played(SCENARIOS[0], seed=3).results for _ in range(2))
    np.testing.assert_array_equal(one.count, same.count)


def test_the_published_intervals_hold_the_truth_and_games_are_saved():
    result = json.loads((RESULTS / "tournaments.json").read_text())["result"]
    assert result["tournaments"] >= 1000
    shares = [kind["methods"]["used"]["coverage"] for kind in result["intervals"].values()]
    assert len(shares) == len(SCENARIOS)
    assert 0.93 <= min(shares) <= max(shares) <= 0.97
    ratios = {name: kind["ratio"] for name, kind in result["saving"].items()}
    assert set(ratios) == {scenario.name for scenario in SAVINGS}
    assert max(ratio for name, ratio in ratios.items() if "four very" not in name) <= 0.7
    assert max(ratios.values()) <= 0.75, "four players with one wide gap: half of all pairs bridge it anyway"
