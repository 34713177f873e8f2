from collections import Counter
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from podzero.evaluation.arena import Interrupted
from podzero.evaluation.evaluator import BATCH_OPENINGS, ENOUGH_ELO, RATED_TOGETHER, RatingRound, relevant
from podzero.evaluation.games import PlayedGame, PlayedPair
from podzero.evaluation.ratings import Ladder


class Strengths:
    """An arena in which players of known ratings meet; it remembers who did."""

    def __init__(self, elo, openings=1_000_000):
        self.elo, self.matches, self._openings, self._random = elo, [], openings, np.random.default_rng(0)

    def pairs(self, first, second, openings, key, opening_plies, keep_going, known):
        if not keep_going():
            raise Interrupted
        self.matches.append((first.name, second.name))
        chance = 1 / (1 + 10 ** ((self.elo[second.name] - self.elo[first.name]) / 400))
        new = list(map(str, range(len(known), min(len(known) + openings, self._openings))))
        won = self._random.random((len(new), 2)) < chance
        return [
            PlayedPair(
                PlayedGame(first.name, second.name, (0,), float(opened), 0, name),
                PlayedGame(second.name, first.name, (0,), float(not replied), 0, name),
            )
            for name, (opened, replied) in zip(new, won, strict=True)
        ]


ELO = {"random": 0, "mcts:100": 150, "@10": 100, "@20": 200}


def make(elo, newest="@20", games=400, ladder=None, arena=None):
    players = {name: SimpleNamespace(name=name) for name in elo}
    return RatingRound(arena or Strengths(elo), players, newest, ladder or Ladder(), games)


def games_by_opponent(matches):
    """How many games the newest snapshot has played against each opponent."""
    return Counter(
        other for game in matches.games for other in (game.first, game.second) if other != "@20" and "@20" in game[:2]
    )


def play(matches):
    matches.play(jax.random.key(0), lambda: True)
    return matches.rate()


def test_a_round_ends_when_the_newest_rating_is_certain():
    matches = make(ELO)
    rating = play(matches)
    assert rating.error < ENOUGH_ELO
    assert rating.low < 200 < rating.high
    assert games_by_opponent(matches).total() < 3 * 400


def test_a_round_ends_when_its_games_are_spent():
    arena = Strengths(ELO)
    assert play(make(ELO, games=40, arena=arena)).error > ENOUGH_ELO
    assert len(arena.matches) == 3 * 40 / (2 * BATCH_OPENINGS)


def test_every_opponent_is_met_even_if_the_result_is_known():
    matches = make({"random": 0, "mcts:100": 150, "@10": -900, "@20": 200}, games=8)
    play(matches)
    assert games_by_opponent(matches) == {"random": 8, "mcts:100": 8, "@10": 8}


def test_the_interval_is_that_of_the_difference_from_the_snapshot_before():
    """Random play lost all its games against the snapshot before, so nobody knows how far below it lies."""
    ladder = Ladder()
    ladder.add("@10", "random", [(1.0, 1.0)] * 20)
    matches = make({"random": 0, "@10": 1000, "@20": 1100}, ladder=ladder, games=200)
    rating = play(matches)
    assert rating.error < ENOUGH_ELO
    assert matches.ladder.ratings()["@20"].error > 300
    before = matches.ladder.ratings()["@10"]
    assert rating.low < before.elo + 100 < rating.high
    assert rating.elo == matches.ladder.ratings()["@20"].elo


def test_the_first_snapshot_is_compared_with_random_play():
    matches = make({"random": 0, "@20": 100})
    assert play(matches) == matches.ladder.ratings()["@20"]


def test_opponents_meet_where_that_makes_the_newest_rating_more_certain():
    """It wins almost every game against random play; against the search it wins some, and so does the search there."""
    elo = {"random": 0, "mcts:100": 350, "@20": 700}
    arena = Strengths(elo)
    play(make(elo, arena=arena))
    assert {frozenset(pair) for pair in arena.matches} >= {frozenset(("random", "mcts:100"))}
    assert all(pair[0] == "@20" for pair in arena.matches if "@20" in pair)


def test_earlier_snapshots_do_not_meet_each_other():
    elo = {"random": 0, "@5": 50, "@10": 100, "@20": 150}
    arena = Strengths(elo)
    play(make(elo, games=100, arena=arena))
    assert ("@10", "@5") not in arena.matches
    assert ("@5", "@10") not in arena.matches


def test_without_the_anchor_all_games_are_played_for_their_scores():
    matches = make({"@10": 0, "@20": 0}, games=40)
    matches.play(jax.random.key(0), lambda: True)
    assert games_by_opponent(matches) == {"@10": 40}


def test_a_pair_without_new_openings_is_left_alone():
    """All ends as soon as nobody has an opening left."""
    matches = make({"random": 0, "@20": 100}, arena=Strengths(ELO, 10))
    play(matches)
    assert games_by_opponent(matches) == {"random": 20}


def test_the_ladder_of_the_rounds_before_is_not_changed():
    ladder = Ladder()
    matches = make(ELO, ladder=ladder, games=8)
    play(matches)
    assert ladder.players() == []
    assert matches.ladder.players() == sorted(ELO)


def test_an_interrupted_round_stops():
    with pytest.raises(Interrupted):
        make(ELO).play(jax.random.key(0), lambda: False)


def test_old_snapshots_count_only_if_they_play():
    ladder = Ladder()
    for step in range(RATED_TOGETHER + 5):
        ladder.add(f"@{step}", "random", [(1.0, 0.0)])
    assert len(relevant(ladder, {})) == RATED_TOGETHER + 1
    assert {"@4", "@5"} & set(relevant(ladder, {})) == {"@5"}
    assert "@0" in relevant(ladder, {"@0": None})
