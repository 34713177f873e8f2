import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podzero.evaluation.arena import MatchResult
from podzero.evaluation.ratings import ELO_PER_NAT, Ladder, LadderError


def ladder(*matches):
    result = Ladder()
    for first, second, *counts in matches:
        result.add(first, second, MatchResult(*counts))
    return result


def test_76_percent_are_200_elo():
    rating = ladder(("a", "random", 7597, 0, 2403)).ratings()["a"]
    assert rating.elo == pytest.approx(200, abs=0.3)


def test_error_by_hand():
    # 99 games and the imagined draw at even chances: information 100 / 4, deviation 0.2 nats.
    rating = ladder(("a", "random", 0, 99, 0)).ratings()["a"]
    assert rating.elo == pytest.approx(0, abs=1e-6)
    assert rating.error == pytest.approx(1.959964 * 0.2 * 400 / math.log(10), rel=1e-5)


def test_an_undefeated_player_by_hand():
    # 40.5 points against 0.5: ln 81 nats.
    rating = ladder(("a", "random", 40, 0, 0)).ratings()["a"]
    assert rating.elo == pytest.approx(ELO_PER_NAT * math.log(81), rel=1e-6)


def test_draws_are_half_wins():
    assert ladder(("a", "random", 30, 20, 10)).ratings() == ladder(("a", "random", 40, 0, 20)).ratings()


def test_the_anchor_is_zero_without_error():
    rating = ladder(("a", "b", 5, 1, 2), ("b", "random", 9, 0, 1)).ratings()["random"]
    assert (rating.elo, rating.error) == (0, 0)


def test_ratings_add_up_along_a_chain():
    ratings = ladder(("a", "random", 60, 0, 40), ("b", "a", 60, 0, 40)).ratings()
    assert ratings["b"].elo == pytest.approx(2 * ratings["a"].elo, rel=1e-6)
    assert ratings["b"].error == pytest.approx(math.sqrt(2) * ratings["a"].error, rel=1e-6)


def test_who_wins_is_rated_higher_and_listed_first():
    ratings = ladder(("a", "b", 8, 2, 2), ("a", "random", 10, 0, 0), ("b", "random", 10, 0, 1)).ratings()
    assert list(ratings) == ["a", "b", "random"]


def test_more_games_make_the_error_smaller():
    few, many = (ladder(("a", "random", 6 * n, n, 3 * n)).ratings()["a"].error for n in (1, 16))
    assert many < few / 3


def test_who_never_met_random_even_indirectly_has_no_rating():
    assert set(ladder(("a", "random", 1, 0, 0), ("x", "y", 1, 0, 0)).ratings()) == {"a", "random"}
    assert Ladder().ratings() == {}


counts = st.tuples(*[st.integers(0, 60)] * 3)


@settings(max_examples=40, deadline=None)
@given(counts, counts, counts)
def test_order_and_side_of_matches_do_not_matter(one, two, three):
    forward = ladder(("a", "random", *one), ("b", "a", *two), ("b", "random", *three))
    backward = ladder(("random", "b", *three[::-1]), ("a", "b", *two[::-1]), ("random", "a", *one[::-1]))
    assert forward.to_json() == backward.to_json()


def test_a_ladder_survives_json_and_goes_on():
    matches = [("a", "random", 6, 1, 3), ("b", "a", 2, 2, 6)]
    resumed = Ladder.from_json(json.loads(json.dumps(ladder(*matches).to_json())))
    resumed.add("a", "random", MatchResult(4, 0, 0))
    assert resumed.to_json() == ladder(*matches, ("a", "random", 4, 0, 0)).to_json()
    assert Ladder.from_json({}).players() == []


def test_a_damaged_ladder_is_refused():
    with pytest.raises(LadderError, match="cannot be read"):
        Ladder.from_json({"results": [{"first": "a", "second": "b", "wins": 1}]})


def test_nobody_is_rated_against_himself():
    with pytest.raises(ValueError, match="against itself"):
        ladder(("a", "a", 1, 0, 0))
