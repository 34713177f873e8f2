import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podzero.evaluation.games import MatchResult
from podzero.evaluation.ratings import Ladder, LadderError
from podzero.evaluation.statistics import ELO_PER_NAT


def pairs(wins, draws, losses):
    """Openings of which both games were won, drawn or lost."""
    return [(1.0, 1.0)] * wins + [(0.5, 0.5)] * draws + [(0.0, 0.0)] * losses


def ladder(*matches):
    result = Ladder()
    for first, second, *counts in matches:
        result.add(first, second, pairs(*counts))
    return result


def test_76_percent_are_200_elo():
    rating = ladder(("a", "random", 7597, 0, 2403)).ratings()["a"]
    assert rating.elo == pytest.approx(200, abs=0.3)
    assert rating.games == 20_000


def test_an_undefeated_player_by_hand():
    # 40.5 points against 0.5: ln 81 nats.
    rating = ladder(("a", "random", 20, 0, 0)).ratings()["a"]
    assert rating.elo == pytest.approx(ELO_PER_NAT * math.log(81), rel=1e-5)
    assert rating.low < rating.elo < rating.high


def test_the_error_is_half_of_the_interval():
    rating = ladder(("a", "random", 9, 4, 5)).ratings()["a"]
    assert rating.error == pytest.approx((rating.high - rating.low) / 2)


def test_draws_are_half_wins_but_more_certain():
    drawn, decided = (ladder(("a", "random", *n)).ratings()["a"] for n in ((15, 10, 5), (20, 0, 10)))
    assert drawn.elo == pytest.approx(decided.elo, abs=1e-3)
    assert drawn.error < decided.error


def test_the_anchor_is_zero_without_error():
    rating = ladder(("a", "b", 5, 1, 2), ("b", "random", 9, 0, 1)).ratings()["random"]
    assert (rating.elo, rating.error) == (0, 0)


def test_other_anchors():
    played = ladder(("a", "b", 50, 0, 50), ("b", "c", 50, 0, 50))
    assert played.ratings() == {}
    assert played.ratings({"c": 1500})["a"].elo == pytest.approx(1500, abs=1)
    both = played.ratings({"a": 100, "c": 300})
    assert (both["a"].elo, both["c"].elo) == (pytest.approx(100), pytest.approx(300))
    assert both["b"].elo == pytest.approx(200, abs=1)


def test_ratings_add_up_along_a_chain():
    ratings = ladder(("a", "random", 600, 0, 400), ("b", "a", 600, 0, 400)).ratings()
    assert ratings["b"].elo == pytest.approx(2 * ratings["a"].elo, rel=1e-4)
    assert ratings["b"].error == pytest.approx(math.sqrt(2) * ratings["a"].error, rel=0.1)


def test_who_wins_is_rated_higher_and_listed_first():
    ratings = ladder(("a", "b", 8, 2, 2), ("a", "random", 10, 0, 0), ("b", "random", 10, 0, 1)).ratings()
    assert list(ratings) == ["a", "b", "random"]


def test_more_games_make_the_error_smaller():
    few, many = (ladder(("a", "random", 6 * n, n, 3 * n)).ratings()["a"].error for n in (1, 16))
    assert many < few / 3


def test_who_never_met_an_anchor_even_indirectly_has_no_rating():
    assert set(ladder(("a", "random", 1, 0, 0), ("x", "y", 1, 0, 0)).ratings()) == {"a", "random"}
    assert Ladder().ratings() == {}


def test_only_the_games_among_some_players_count():
    played = ladder(("a", "random", 30, 0, 10), ("b", "random", 30, 0, 10), ("a", "b", 0, 0, 40))
    assert played.ratings(among=["a", "random"])["a"] == ladder(("a", "random", 30, 0, 10)).ratings()["a"]._replace(
        games=160
    )


counts = st.tuples(*[st.integers(0, 20)] * 3).filter(any)


@settings(max_examples=20, deadline=None)
@given(counts, counts, counts)
def test_order_and_side_of_matches_do_not_matter(one, two, three):
    forward = ladder(("a", "random", *one), ("b", "a", *two), ("b", "random", *three))
    backward = ladder(("random", "b", *three[::-1]), ("a", "b", *two[::-1]), ("random", "a", *one[::-1]))
    assert forward.to_json() == backward.to_json()
    assert forward.ratings() == backward.ratings()


def test_the_games_of_two_players_from_either_side():
    played = ladder(("a", "b", 3, 2, 1))
    assert played.meetings("a", "b") == MatchResult(6, 4, 2)
    assert played.meetings("b", "a") == MatchResult(2, 4, 6)
    assert played.meetings("a", "c") == MatchResult(0, 0, 0)


def test_a_ladder_survives_json_and_goes_on():
    matches = [("a", "random", 6, 1, 3), ("b", "a", 2, 2, 6)]
    first = ladder(*matches)
    first.rated = first.ratings()
    tree = json.loads(json.dumps(first.to_json()))
    resumed = Ladder.from_json(tree)
    resumed.add("a", "random", pairs(4, 0, 0))
    assert resumed.to_json()["results"] == ladder(*matches, ("a", "random", 4, 0, 0)).to_json()["results"]
    assert resumed.rated == first.ratings()
    assert Ladder.from_json({}).players() == []


@pytest.mark.parametrize(
    "tree",
    [
        {"results": [{"first": "a", "second": "b", "wins": 1}]},
        {"results": [{"first": "a", "second": "b", "wins": 1, "draws": 0, "losses": 1}]},
        {"results": [{"first": "a", "second": "b", "wins": 1, "draws": 0, "losses": 1, "pairs": [0, 0, 1]}]},
        {"results": [{"first": "a", "second": "b", "wins": 1, "draws": 0, "losses": 0, "pairs": [1, 0, 0, 0, 0]}]},
        {"results": [7]},
    ],
)
def test_a_damaged_ladder_is_refused(tree):
    with pytest.raises(LadderError, match="cannot be read"):
        Ladder.from_json(tree)


def test_damaged_ratings_are_refused():
    with pytest.raises(LadderError, match="cannot be read"):
        Ladder.from_json({"ratings": {"a": {"elo": "high"}}})


def test_nobody_is_rated_against_himself():
    with pytest.raises(ValueError, match="against itself"):
        ladder(("a", "a", 1, 0, 0))
