"""The table of choices takes its differences and intervals from the results."""

import pytest

from podzero.benchmarks.ablations_page import VALUE_WRONG, ablations_page


def trained(variant, seed, share, limit="stop.minutes=10", setting=""):
    """A result of benchmarks/ablations.py."""
    command = f"podzero train connect_four actors.inference=int8 {setting} seed={seed} {limit}"
    judged = [{"simulations": 32, "keeps_value": share}]
    return {"variant": variant, "also": ["actors.inference=int8"], "limit": limit, "seed": seed, "cores": 1,
            "positions": "distinct", "judged": judged, "command": command}  # fmt: skip


BASELINE = [trained("baseline", seed, share) for seed, share in enumerate((0.87, 0.88, 0.89))]


def search(rule, wrong, simulations=32, reason="never visited"):
    errors = [{"position": position, "reason": reason} for position in wrong]
    return {"rule": rule, "settings": {"rule": rule}, "simulations": simulations, "positions": 100, "errors": errors}


def horizon(targets, elo, low, high, steps=1600):
    return {"targets": targets, "elo": elo, "low": low, "high": high, "steps": steps}


def returned(kind, seed, mean):
    return {"experiment": "lander", "root_value": kind, "seed": seed, "mean_return": mean}


@pytest.fixture
def results():
    """Everything that the page shows, as small as possible."""
    judged = {"keeps_value": 0.9, "simulations": 8}
    weights = {"1.0": {"correlation": 0.36}, "0.9": {"correlation": 0.6}, "0.0": {"correlation": 0.55}}
    values = [{"bands": {"0 to 9": 0.7}}]
    larger = {"trained": "2 hours", "result": {"simulations": [judged | {"simulations": 2048}]}}
    found = {"solver at the leaves": [judged], "values": values, "targets": [{"bands": {"0 to 9": weights}}]}
    return {
        "ablations": dict(enumerate(BASELINE)),
        "inner_nodes": {"agent": "zoo:x", "searches": {"first": search("first", [1, 2])}},
        "inner_nodes_2048": {"agent": "zoo:x", "searches": {"first": search("first", [1, 2], 2048)}},
        "othello_horizon": {"minutes": 25, "players": [horizon("first", 0.0, 0.0, 0.0)]},
        "root_values": {"runs": []},
        "paired": {"comparisons": [], "matches": []},
        "diagnosis": {"result": found, "larger": [larger]},
        "ceiling": {"networks": [{"result": {"values": [{"bands": {"0 to 9": 0.15}}]}}]},
    }


def test_a_variant_differs_from_the_mean_of_the_baseline_by_an_interval_from_the_spread_between_seeds(results):
    """Three seeds of 87, 88 and 89% have a deviation of one point; t with two degrees of freedom is 4.303.

    4.303 * sqrt(1 + 1 / 3) = 4.97, and 4.303 * sqrt(2) = 6.1 for two single runs. Of 1 + 0.842 / 1.960 = 1.43 times the
    former 80% of such comparisons are found.
    """
    greedy = trained("greedy", 0, 0.9, setting="actors.temperature=0.0")
    results["ablations"] |= {"a": trained("worse", 0, 0.87), "b": greedy}
    page = ablations_page(results)
    row = "| greedy | `actors.temperature=0.0` | +2.0 points (-3.0 to +7.0) | 7.1 | connect four, 10 minutes |"
    assert row in page
    assert page.index("| greedy |") < page.index("| worse |")
    assert "Seeds differ by 1.0 points" in page
    assert "more than 6 points" in page


def test_runs_of_other_lengths_have_a_baseline_of_their_own(results):
    limit = "stop.steps=2000"
    results["ablations"] |= {"a": trained("baseline", 0, 0.5, limit), "b": trained("greedy", 0, 0.6, limit)}
    assert "| +10.0 points (+3.9 to +16.1) | 8.7 | connect four, 2,000 steps |" in ablations_page(results)


def test_without_seeds_there_is_no_interval(results):
    results["ablations"] = {"a": trained("baseline", 0, 0.5), "b": trained("greedy", 0, 0.6)}
    assert "| +10.0 points |  | connect four" in ablations_page(results)


def test_rules_are_paired_with_the_first_one_at_the_most_simulations_that_both_have(results):
    """The second rule is right in eight of 100 positions in which the first errs: 8 +- 1.96 * sqrt(8 - 0.64)."""
    searches = [
        search("first", range(10)), search("second", [8, 9]),
        search("first", [1], 64), search("third", [1], 64), search("third", [5], 32), search("third", [5], 128),
    ]  # fmt: skip
    results["inner_nodes"]["searches"] = dict(enumerate(searches))
    page = ablations_page(results)
    second, third = (line for line in page.splitlines() if line.startswith("| search:"))
    assert second.endswith(
        "| `rule=second` | +8.0 points (+2.7 to +13.3) | 7.6 | `zoo:x`, 32 simulations, 100 positions |"
    )
    assert third.endswith(
        "| `rule=third` | +0.0 points (+0.0 to +0.0) | 0.0 | `zoo:x`, 64 simulations, 100 positions |"
    )


def test_rules_with_settings_that_were_removed_are_left_out(results):
    searches = [search("first", range(10)), search("kept", [8]), search("gone", [8])]
    searches[2]["settings"] = {"inner_selection": "puct"}
    results["inner_nodes"]["searches"] = dict(enumerate(searches))
    page = ablations_page(results)
    assert ["search: kept" in page, "search: gone" in page] == [True, False]


def test_targets_are_rated_and_the_untrained_player_is_left_out(results):
    results["othello_horizon"]["players"] += [
        horizon("lambda 1.0", -63.2, -135.1, 6.3), horizon("mcts:200", -560.0, -658.0, -485.0, steps=None)
    ]  # fmt: skip
    page = ablations_page(results)
    assert "| value target | lambda 1.0 | -63 Elo (-135 to +6) | 101 | Othello, 25 minutes |" in page
    assert "mcts:200" not in page


def test_root_values_are_compared_by_means_over_seeds(results):
    """Two seeds each, one apart: t with two degrees of freedom, times 0.71 for the difference of two means."""
    seeds = {"mean": (10.0, 11.0), "policy": (8.0, 9.0)}
    results["root_values"]["runs"] = [
        returned(kind, seed, mean) for kind, means in seeds.items() for seed, mean in enumerate(means)
    ]
    assert "| `search.root_value=mean` | +2.0 return (-1.0 to +5.0) | 4.3 | `lander` |" in ablations_page(results)


def test_sentences_take_their_figures_from_the_results(results):
    results["inner_nodes"]["searches"]["wrong"] = search("first", [7], 64, VALUE_WRONG)
    page = ablations_page(results)
    assert "simulations keeps the game's value in 90.0% of positions" in page
    assert "off by 0.70 on average after self-play, and by 0.15 after" in page
    assert "correlates by 0.36" in page
    assert "0.55 to 0.60" in page
    assert "2 hours: 90.0% with 2,048" in page
    assert "1 of 3 errors" in page


def test_variants_of_settings_that_were_removed_are_left_out(results):
    results["ablations"]["a"] = trained("resignation", 0, 0.87, setting="actors.resignation=true")
    assert "resignation" not in ablations_page(results)


def test_pairs_of_runs_have_the_interval_of_their_differences(results):
    """Differences of 1, 2 and 3 points: a mean of 2, and 4.303 * 1 / sqrt(3) = 2.48 with two degrees of freedom."""
    pairs = [{"default": {"score": 80.0}, "choice": {"score": 80.0 + gain}} for gain in (1, 2, 3)]
    comparison = {"choice": "fewer", "setting": "search.simulations=12", "unit": "points", "on": "x", "pairs": pairs}
    results["paired"]["comparisons"] = [comparison]
    row = "| fewer | `search.simulations=12` | +2.0 points (-0.5 to +4.5) | 3.6 | x, 3 paired seeds |"
    assert row in ablations_page(results)


def test_a_match_has_its_points_above_one_half_with_the_interval(results):
    match = {"choice": "resigns", "setting": "actors.resign_value=-0.9", "on": "x", "games": 200}
    results["paired"]["matches"] = [match | {"score": 0.625, "interval": [0.5625, 0.6875]}]
    row = (
        "| resigns | `actors.resign_value=-0.9` | +12.5 points of 100 games (+6.2 to +18.8) | 8.9 | x, then a match of "
    )
    assert f"{row}200 games |" in ablations_page(results)
