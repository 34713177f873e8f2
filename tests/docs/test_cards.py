"""The comments at the top of the built-in experiments agree with their settings and with the stored results."""

import json
import re
from pathlib import Path

import pytest

from podzero.config import builtin_configs, load

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def card(name):
    return builtin_configs()[name].read_text().partition("\nenv:")[0]


@pytest.mark.parametrize("name", builtin_configs())
def test_the_time_of_a_card_is_that_of_its_stop_section(name):
    stop = load(name).stop
    time = f"{stop.minutes:g} minutes" if stop.minutes else "until it is stopped"
    assert re.findall(r"Time: +(.*)\.", card(name)) == [time]


@pytest.mark.parametrize("name", builtin_configs())
def test_a_card_tells_a_result_where_one_is_stored(name):
    assert "Result: " in card(name)
    assert ("Result:   none yet." in card(name)) != (RESULTS / f"{name}.json").exists()


@pytest.mark.parametrize("name", [path.stem for path in RESULTS.glob("*.json") if path.stem in builtin_configs()])
def test_the_numbers_of_a_card_are_in_the_stored_result(name):
    """As they are, in percent, as minutes of seconds, or as part of a command."""
    (said,) = re.findall(r"Result: +(.*?)\n# (?:Run|Hardware):", card(name), re.S)
    stored = [*leaves(json.loads((RESULTS / f"{name}.json").read_text()))]
    for number in re.findall(r"-?\d[\d,]*(?:\.\d+)?", said):
        digits = len(number.partition(".")[2])
        value = float(number.replace(",", ""))
        shown = {round(found, digits) for one in stored for found in (one, 100 * one, one / 60)}
        assert value in shown, number


def leaves(tree):
    """All numbers in a tree, those in its strings included."""
    match tree:
        case dict() | list():
            for child in tree.values() if isinstance(tree, dict) else tree:
                yield from leaves(child)
        case str():
            yield from (float(number) for number in re.findall(r"\d+(?:\.\d+)?", tree))
        case int() | float():
            yield float(tree)
