"""The table of choices takes its differences and intervals from the results."""

import pytest

from podzero.benchmarks.ablations_page import ablations_page


def search(rule, wrong, simulations=32, reason="never visited"):
    errors = [{"position": position, "reason": reason} for position in wrong]
    return {"rule": rule, "settings": {"q_scale": rule}, "simulations": simulations, "positions": 100, "errors": errors}


def paired(choice, gains):
    """A comparison whose default scores 81, 82, ..."""
    pairs = [
        {"default": {"score": 81.0 + seed}, "choice": {"score": 81.0 + seed + gain}} for seed, gain in enumerate(gains)
    ]
    return {"choice": choice, "setting": "search.simulations=12", "unit": "points", "on": "x", "pairs": pairs}


@pytest.fixture
def results():
    """Everything that the page shows, as small as possible."""
    judged = {"keeps_value": 0.9, "simulations": 8}
    weights = {"1.0": {"correlation": 0.36}, "0.9": {"correlation": 0.6}, "0.0": {"correlation": 0.55}}
    values = [{"bands": {"0 to 9": 0.7}}]
    found = {"solver at the leaves": [judged], "values": values, "targets": [{"bands": {"0 to 9": weights}}]}
    return {
        "inner_nodes": {"agent": "zoo:x", "searches": {"first": search("first", [1, 2])}},
        "inner_nodes_2048": {"agent": "zoo:x", "searches": {"first": search("first", [1, 2], 2048)}},
        "paired": {"comparisons": [paired("fewer", (1, 2, 3))], "matches": []},
        "diagnosis": {"result": found},
        "ceiling": {"networks": [{"result": {"values": [{"bands": {"0 to 9": 0.15}}]}}]},
    }


def test_rules_are_paired_with_the_first_one_at_the_most_simulations_that_both_have(results):
    """The second rule is right in eight of 100 positions in which the first errs: 8 +- 1.96 * sqrt(8 - 0.64)."""
    searches = [
        search("first", range(10)), search("second", [8, 9]),
        search("first", [1], 64), search("third", [1], 64), search("third", [5], 32), search("third", [5], 128),
    ]  # fmt: skip
    results["inner_nodes"]["searches"] = dict(enumerate(searches))
    page = ablations_page(results)
    second, third = (line for line in page.splitlines() if line.startswith("| search |"))
    assert second.endswith(
        "| `search.q_scale=second` | +8.0 points (+2.7 to +13.3) | 7.6 | `zoo:x`, 32 simulations, 100 positions |"
    )
    assert third.endswith(
        "| `search.q_scale=third` | +0.0 points (+0.0 to +0.0) | 0.0 | `zoo:x`, 64 simulations, 100 positions |"
    )


def test_rules_with_settings_that_were_removed_are_left_out(results):
    searches = [search("first", range(10)), search("kept", [8]), search("gone", [8])]
    searches[2]["settings"] = {"inner_selection": "puct"}
    results["inner_nodes"]["searches"] = dict(enumerate(searches))
    page = ablations_page(results)
    assert ["search.q_scale=kept" in page, "inner_selection" in page] == [True, False]


def test_sentences_take_their_figures_from_the_results(results):
    page = ablations_page(results)
    assert "simulations keeps the game's value in 90.0% of positions" in page
    assert "off by 0.70 on average after self-play, and by 0.15 after" in page
    assert "correlates by 0.36" in page
    assert "0.55 to 0.60" in page


def test_pairs_of_runs_have_the_interval_of_their_differences(results):
    """Differences of 1, 2 and 3 points: a mean of 2, and 4.303 * 1 / sqrt(3) = 2.48 with two degrees of freedom.

    Of 1 + 0.842 / 1.960 = 1.43 times the latter 80% of such comparisons are found. Those of the default got 81, 82, 83.
    """
    page = ablations_page(results)
    assert "| fewer | `search.simulations=12` | +2.0 points (-0.5 to +4.5) | 3.6 | x, 3 paired seeds |" in page
    assert "Seeds differ by 1.0 points (standard deviation of 3 default runs of x)" in page


def test_a_match_has_its_points_above_one_half_with_the_interval(results):
    match = {"choice": "resigns", "setting": "actors.resign_value=-0.9", "on": "x", "games": 200}
    results["paired"]["matches"] = [match | {"score": 0.625, "interval": [0.5625, 0.6875]}]
    row = (
        "| resigns | `actors.resign_value=-0.9` | +12.5 points of 100 games (+6.2 to +18.8) | 8.9 | x, then a match of "
    )
    assert f"{row}200 games |" in ablations_page(results)
