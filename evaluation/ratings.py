"""Ratings of named players: `podzero.evaluation.statistics` with names, and stored as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from podzero.core.errors import PodzeroError
from podzero.evaluation.games import MatchResult
from podzero.evaluation.statistics import (
    ELO_PER_NAT,
    Floats,
    PairResults,
    Unit,
    connected,
    estimate,
    next_pair,
    results_of,
)

ANCHOR = "random"
"""The player rated 0 by default."""
_PAIR_POINTS = (0.0, 0.5, 1.0, 1.5, 2.0)
"""The possible points of the two games of an opening."""


class LadderError(PodzeroError, ValueError):
    """A saved ladder cannot be read."""


class Rating(NamedTuple):
    """The rating of one player."""

    elo: float
    """Elo points on the anchors' scale."""
    error: float
    """Half the length of the 95% interval."""
    games: int
    """Games of this player."""
    low: float
    """Lower end of the 95% interval."""
    high: float


class Meetings(NamedTuple):
    """All games of two players, from the first one's view."""

    result: MatchResult
    units: Counter[tuple[float, int]]
    """Counts of `(points, games)`: the points of the 2 games of an opening, or of 1 game in older ladders."""

    def plus(self, result: MatchResult, units: Counter[tuple[float, int]]) -> Meetings:
        """Adds further games."""
        return Meetings(self.result.plus(result), self.units + units)

    @property
    def reversed(self) -> Meetings:
        """The same games from the second player's view."""
        units = Counter({(games - points, games): count for (points, games), count in self.units.items()})
        return Meetings(MatchResult(*self.result[::-1]), units)


class Ladder:
    """Results of games between named players, and their ratings."""

    def __init__(self) -> None:
        self._meetings: dict[tuple[str, str], Meetings] = {}

    def add(self, first: str, second: str, pairs: Iterable[tuple[float, float]]) -> None:
        """Adds games: the points (1, 0.5 or 0) of `first` in the two games of each opening."""
        played = list(pairs)
        points = [scored for pair in played for scored in pair]
        result = MatchResult(points.count(1), points.count(0.5), points.count(0))
        self._add(first, second, Meetings(result, Counter((float(sum(pair)), 2) for pair in played)))

    def players(self) -> list[str]:
        """All players with games, sorted."""
        return sorted({name for pair in self._meetings for name in pair})

    def meetings(self, first: str, second: str) -> MatchResult:
        """The result of all games of two players, from `first`'s view."""
        if first > second:
            return MatchResult(*self.meetings(second, first)[::-1])
        return self._meetings.get((first, second), _NO_GAMES).result

    def games(self, name: str) -> int:
        """Games of one player."""
        return sum(met.result.games for pair, met in self._meetings.items() if name in pair)

    def results(self, names: list[str]) -> PairResults:
        """The games among `names`, whose indices identify the players."""
        index = {name: i for i, name in enumerate(names)}
        counts: Counter[Unit] = Counter()
        for (first, second), met in self._meetings.items():
            if first in index and second in index:
                low, high = sorted((index[first], index[second]))
                units = (met if index[first] == low else met.reversed).units
                counts.update({Unit(low, high, *unit): seen for unit, seen in units.items()})
        return results_of(counts)

    def ratings(
        self, anchors: Mapping[str, float] | None = None, among: Collection[str] | None = None
    ) -> dict[str, Rating]:
        """Ratings of all players that games connect with an anchor, strongest first.

        Args:
          anchors: Elo points of players with a known rating; None for `random` at 0.
          among: count only the games among these players; None for all games.
        """
        known = {ANCHOR: 0.0} if anchors is None else anchors
        names = self._connected(known, self.players() if among is None else sorted(among))
        if len(names) < 2:
            return {}
        found = estimate(self.results(names), fixed_ratings(names, known) * ELO_PER_NAT)
        elo, error, low, high = (column.tolist() for column in (found.elo, found.error, found.low, found.high))
        rated = zip(names, map(Rating, elo, error, map(self.games, names), low, high), strict=True)
        return dict(sorted(rated, key=lambda item: -item[1].elo))

    def next_pair(
        self,
        names: list[str],
        anchors: Mapping[str, float],
        games: int,
        among: Collection[str] = (),
        may_play: Callable[[str, str], bool] = lambda one, other: True,
    ) -> tuple[str, str] | None:
        """The two of `names` who should play `games` games next, in that order; see `statistics.next_pair`."""
        results = self.results(names)
        points = results.points_of(len(names), results.count)
        excluded = {(i, j) for i, j in combinations(range(len(names)), 2) if not may_play(names[i], names[j])}
        rated = [names.index(name) for name in among]
        pair = next_pair(points, fixed_ratings(names, anchors), games, rated, excluded)
        return None if pair is None else (names[pair[0]], names[pair[1]])

    def to_json(self, ratings: Mapping[str, Rating]) -> dict[str, Any]:
        """The ladder as plain values; `ratings` are included for readers."""
        return {
            "results": [_row(first, second, met) for (first, second), met in sorted(self._meetings.items())],
            "ratings": {name: rating._asdict() for name, rating in ratings.items()},
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Ladder:
        """The inverse of `to_json`; an empty tree gives an empty ladder."""
        ladder = cls()
        try:
            for row in tree.get("results", []):
                ladder._add(str(row["first"]), str(row["second"]), _meetings(row))
        except (KeyError, TypeError, ValueError) as error:
            raise LadderError(f"the saved ratings cannot be read: {type(error).__name__} {error}") from None
        return ladder

    def _add(self, first: str, second: str, played: Meetings) -> None:
        if first == second:
            raise ValueError(f"'{first}' cannot be rated against itself")
        if first > second:
            first, second, played = second, first, played.reversed
        self._meetings[first, second] = self._meetings.get((first, second), _NO_GAMES).plus(*played)

    def _connected(self, anchors: Mapping[str, float], names: list[str]) -> list[str]:
        """The names that games connect with an anchor, in the same order."""
        present = [i for i, name in enumerate(names) if name in anchors]
        met = np.zeros((len(names), len(names)), bool)
        index = {name: i for i, name in enumerate(names)}
        for first, second in self._meetings:
            if first in index and second in index:
                met[index[first], index[second]] = met[index[second], index[first]] = True
        met[np.ix_(present, present)] = True
        return [names[i] for i in connected(met, present[0])] if present else []


def fixed_ratings(names: Iterable[str], anchors: Mapping[str, float]) -> Floats:
    """`[N]` ratings of the anchors in natural units, NaN for other players."""
    return np.array([anchors.get(name, np.nan) for name in names], np.float64) / ELO_PER_NAT


def saved_ratings(tree: Mapping[str, Any]) -> dict[str, Rating]:
    """The ratings stored by `Ladder.to_json`."""
    try:
        return {name: _rating(row) for name, row in tree.get("ratings", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LadderError(f"the saved ratings cannot be read: {type(error).__name__} {error}") from None


def _rating(row: Mapping[str, Any]) -> Rating:
    # Earlier versions stored symmetric intervals without their ends.
    elo, error = float(row["elo"]), float(row["error"])
    return Rating(elo, error, int(row["games"]), row.get("low", elo - error), row.get("high", elo + error))


_NO_GAMES = Meetings(MatchResult(0, 0, 0), Counter())


def _row(first: str, second: str, met: Meetings) -> dict[str, Any]:
    """The games of two players as plain values.

    `pairs` counts openings by the points of their two games (0, 0.5, ... 2), `single` counts games without a known
    opening by result.
    """
    row = {"first": first, "second": second, **met.result._asdict()}
    row["pairs"] = [met.units[points, 2] for points in _PAIR_POINTS]
    single = [met.units[points, 1] for points in (1.0, 0.5, 0.0)]
    return row | ({"single": single} if any(single) else {})


def _meetings(row: Mapping[str, Any]) -> Meetings:
    """The inverse of `_row`. Earlier versions wrote no `pairs`; each game is then a unit of its own."""
    result = MatchResult(*(int(row[field]) for field in MatchResult._fields))
    pairs = row.get("pairs", [0] * len(_PAIR_POINTS))
    single = row.get("single", [0] * len(result)) if "pairs" in row else result
    units = {(points, 2): int(seen) for points, seen in zip(_PAIR_POINTS, pairs, strict=True)}
    units |= {(points, 1): int(seen) for points, seen in zip((1.0, 0.5, 0.0), single, strict=True)}
    counted = Counter({unit: seen for unit, seen in units.items() if seen})
    if sum(games * seen for (_, games), seen in counted.items()) != result.games:
        raise ValueError(f"the openings of {row['first']} and {row['second']} do not add up to their games")
    return Meetings(result, counted)
