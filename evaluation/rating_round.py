"""One round of a run's evaluator: the matches that tell how much stronger the newest snapshot is than the one before.

The interval of a rating in a run is that of its difference from the rating of the snapshot before it. How far random
play lies below the first snapshots is uncertain by hundreds of Elo points, because it loses nearly every game; but that
shifts the ratings of all snapshots alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from itertools import combinations

import jax

from podzero.evaluation.arena import Arena
from podzero.evaluation.games import MatchResult, PlayedGame, match_result
from podzero.evaluation.pairing import next_pair
from podzero.evaluation.players import Contestant
from podzero.evaluation.ratings import ANCHOR, Ladder, Rating, fixed_ratings
from podzero.types import Array

ENOUGH_ELO = 60.0
"""A round ends when half of the interval of the newest rating is below this."""
BATCH_OPENINGS = 4
"""The most openings in a match of a round; each is played from both sides."""
RATED_TOGETHER = 24
"""The newest snapshots whose games count in a round; older ratings stay as they are, so that the work of a round does
not grow with the length of a run."""


class RatingRound:
    """The matches of one round, which may be those of two opponents with each other: they too may make the newest
    rating more certain.
    """

    def __init__(
        self, arena: Arena, players: Mapping[str, Contestant], newest: str, ladder: Ladder, games: int
    ) -> None:
        """Plays nothing yet.

        Args:
          arena: of the game.
          players: all who may play, by name, the newest snapshot and at least one opponent among them.
          newest: the name of the newest snapshot.
          ladder: of the rounds before; it is not changed.
          games: the most games for each opponent; an odd number is rounded up.
        """
        self._arena = arena
        self._players = players
        self._newest = newest
        self._openings = min(BATCH_OPENINGS, -(-games // 2))
        opponents = [name for name in players if name != newest]
        earlier = [int(name[1:]) for name in opponents if name.startswith("@")]
        self._before = snapshot_name(max(earlier)) if earlier else ANCHOR
        self._most = -(-games // (2 * self._openings)) * len(opponents)
        self._barred: set[frozenset[str]] = set()
        self.ladder = deepcopy(ladder)
        """With the games of this round."""
        self.results = dict.fromkeys(opponents, MatchResult(0, 0, 0))
        """Of the newest snapshot against each opponent in this round."""
        self.games: list[PlayedGame] = []
        """Of this round, in the order of play."""

    def play(self, key: Array, keep_going: Callable[[], bool]) -> None:
        """Plays one match against each opponent, then those that are chosen by uncertainty, until the interval of the
        newest rating is short enough or all games are spent. `key` is consumed.

        Raises:
          Interrupted: `keep_going` returned False.
        """
        known: dict[frozenset[str], list[str]] = {}
        for number in range(self._most):
            pair = self._choose(number)
            if pair is None:
                return
            one, other = (self._players[name] for name in pair)
            met, match_key = frozenset(pair), jax.random.fold_in(key, number)
            before = known.setdefault(met, [])
            played = self._arena.pairs(one, other, self._openings, match_key, None, keep_going, before)
            if not played:
                self._barred.add(met)
                continue
            before += [both.opened.position for both in played]
            self.ladder.add(*pair, [both.points for both in played])
            self.games += [game for both in played for game in both]
            if pair[0] == self._newest:
                found = match_result(played)
                self.results[pair[1]] = MatchResult(*map(sum, zip(self.results[pair[1]], found, strict=True)))

    def relevant(self) -> list[str]:
        """The players whose games count: all but old snapshots that do not play in this round."""
        return relevant(self.ladder, self._players)

    def rating(self, ratings: Mapping[str, Rating]) -> Rating | None:
        """The newest of the `ratings` of the ladder, with the interval of its difference from the snapshot before, or
        from random play for the first one; None without games that connect it with random play.
        """
        rating, compared = ratings.get(self._newest), self._compared(self.relevant())
        if rating is None or compared is None:
            return None
        shift = rating.elo - compared.elo
        return rating._replace(error=compared.error, low=compared.low + shift, high=compared.high + shift)

    def _compared(self, names: list[str]) -> Rating | None:
        """The newest rating in relation to the snapshot before."""
        return self.ladder.ratings({self._before: 0.0}, names).get(self._newest)

    def _choose(self, number: int) -> tuple[str, str] | None:
        """The next two players, the newest first; None if its rating is certain enough."""
        opponents = list(self.results)
        if number < len(opponents):
            return self._newest, opponents[number]
        names = self.relevant()
        rating = self._compared(names)
        if rating is None:  # all games are for the scores
            return self._newest, opponents[number % len(opponents)]
        return None if rating.error < ENOUGH_ELO else self._by_uncertainty(names)

    def _by_uncertainty(self, names: list[str]) -> tuple[str, str] | None:
        results = self.ladder.results(names)
        points = results.points_of(len(names), results.count)
        barred = {(i, j) for i, j in combinations(range(len(names)), 2) if not self._may_play(names[i], names[j])}
        fixed = fixed_ratings(names, {self._before: 0.0})
        pair = next_pair(points, fixed, 2 * self._openings, [names.index(self._newest)], barred)
        if pair is None:
            return None
        one, other = (names[i] for i in pair)
        return (other, one) if other == self._newest else (one, other)

    def _may_play(self, one: str, other: str) -> bool:
        """Two earlier snapshots do not: nobody remembers which openings they have played."""
        present = one in self._players and other in self._players and frozenset((one, other)) not in self._barred
        return present and (self._newest in (one, other) or not (one.startswith("@") and other.startswith("@")))


def relevant(ladder: Ladder, present: Mapping[str, Contestant]) -> list[str]:
    """The names in a ladder without the snapshots that are neither among the newest nor `present`."""
    names = ladder.players()
    old = {snapshot_name(step) for step in snapshot_steps_of(ladder)[:-RATED_TOGETHER]}
    return [name for name in names if name not in old or name in present]


def snapshot_name(step: int) -> str:
    """The name of a snapshot in the ratings of its run."""
    return f"@{step}"


def snapshot_steps_of(ladder: Ladder) -> list[int]:
    """The steps of the snapshots with games, ascending."""
    numbers = [name.removeprefix("@") for name in ladder.players() if name.startswith("@")]
    return sorted(int(number) for number in numbers if number.isdigit())
