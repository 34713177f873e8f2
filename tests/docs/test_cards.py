"""The comments at the top of the built-in experiments agree with their settings and with the stored results."""

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
