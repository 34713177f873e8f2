import math
from collections import Counter

import numpy as np
import pytest

from podzero.evaluation.bradley_terry import Unit, connected, cycles, dispersion, results_of, surprises

NAN = math.nan


def decided(first, second, won, lost):
    """Openings of which a player wins both games, or loses both."""
    return {Unit(first, second, 2.0): won, Unit(first, second, 0.0): lost}


def results(*matches):
    counts = Counter()
    for match in matches:
        counts.update(match)
    return results_of(counts)


CYCLE = results(decided(0, 1, 30, 10), decided(1, 2, 30, 10), decided(0, 2, 10, 30))
FIXED = np.array([0, NAN, NAN])


def test_a_cycle_is_flagged_and_named():
    found = surprises(CYCLE, FIXED)
    assert {frozenset((one.first, one.second)) for one in found} == {frozenset(p) for p in ((0, 1), (1, 2), (0, 2))}
    assert cycles(CYCLE, found, 3) == [(0, 1, 2)]
    assert cycles(CYCLE, [], 3) == []


def test_the_surprise_says_what_was_expected():
    first = next(one for one in surprises(CYCLE, FIXED) if {one.first, one.second} == {0, 2})
    assert (first.first, first.second, first.score) == (2, 0, 0.75)
    # By the other games 0 is above 1 and 1 above 2, each by about ln 3: 2 scores 1 / (1 + 9).
    assert first.expected == pytest.approx(0.1, abs=0.01)


def test_results_that_the_ratings_explain_are_not_flagged():
    """Log-odds of ln 3 each add up to ln 9."""
    assert surprises(results(decided(0, 1, 30, 10), decided(1, 2, 30, 10), decided(0, 2, 36, 4)), FIXED) == []


def test_few_games_are_not_enough():
    assert surprises(results(decided(0, 1, 3, 1), decided(1, 2, 3, 1), decided(0, 2, 1, 3)), FIXED) == []


def test_a_chain_of_players_cannot_contradict_itself():
    assert surprises(results(decided(0, 1, 30, 0), decided(1, 2, 0, 30)), FIXED) == []


def test_anchors_can_contradict_the_games():
    """Both are known to be equal, but one beats the other through a third, who loses to one and beats the other."""
    played = results(decided(0, 1, 30, 10), decided(1, 2, 30, 10))
    assert surprises(played, FIXED) == []
    assert {one.first for one in surprises(played, np.array([0, NAN, 0.0]))} == {0, 1}


def test_openings_that_favour_a_side_vary_less_and_others_more():
    assert dispersion(results({Unit(0, 1, 1.0): 20})) == 0
    assert dispersion(results(decided(0, 1, 10, 10))) == pytest.approx(2 * 20 / 19)


def test_connection():
    met = np.zeros((4, 4), bool)
    met[0, 2] = met[2, 0] = True
    assert connected(met, 2).tolist() == [0, 2]
    assert connected(met, 3).tolist() == [3]
