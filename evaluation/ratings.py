"""Ratings of named players: `podzero.evaluation.statistics` with names, and stored as JSON."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from podzero.core.errors import PodzeroError
from podzero.evaluation.games import MatchResult
from podzero.evaluation.statistics import ELO_PER_NAT, Floats, Ints, PairResults, Unit, connected, estimate, next_pair

ANCHOR = "random"
"""The player rated 0 by default."""


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
    """Counts of the games of two players, from the first one's view; reversed arrays are the second one's view."""

    results: Ints
    """`[3]`, wins, draws and losses."""
    pairs: Ints
    """`[5]`, openings by the points of their two games: 0, 0.5, ... 2."""


class Ladder:
    """Results of games between named players, and their ratings."""

    def __init__(self) -> None:
        self._meetings: dict[tuple[str, str], Meetings] = {}
        self.rated: dict[str, Rating] = {}
        """The newest rating of each player, which is stored for readers."""

    def add(self, first: str, second: str, pairs: Iterable[tuple[float, float]]) -> None:
        """Adds games: the points (1, 0.5 or 0) of `first` in the two games of each opening."""
        scored = np.array([*pairs]).reshape(-1, 2)
        # From 0, 1, 2 for a loss, a draw, a win.
        results = np.bincount((2 * scored).astype(np.intp).ravel(), minlength=3)[::-1]
        openings = np.bincount((2 * scored.sum(axis=1)).astype(np.intp), minlength=5)
        self._add(first, second, Meetings(results, openings))

    def players(self) -> list[str]:
        """All players with games, sorted."""
        return sorted({name for pair in self._meetings for name in pair})

    def meetings(self, first: str, second: str) -> MatchResult:
        """The result of all games of two players, from `first`'s view."""
        met = self._meetings.get((min(first, second), max(first, second)), _NO_GAMES)
        return MatchResult(*met.results[:: 1 if first <= second else -1].tolist())

    def games(self, name: str) -> int:
        """Games of one player."""
        return sum(int(met.results.sum()) for pair, met in self._meetings.items() if name in pair)

    def results(self, names: Sequence[str]) -> PairResults:
        """The games among `names`, whose indices identify the players."""
        index = {name: i for i, name in enumerate(names)}
        return PairResults.of(
            {
                Unit(index[first], index[second], halves / 2): count
                for (first, second), met in self._meetings.items()
                if first in index and second in index
                for halves, count in enumerate(met.pairs.tolist())
                if count
            }
        )

    def ratings(
        self, anchors: Mapping[str, float] | None = None, among: Collection[str] | None = None
    ) -> dict[str, Rating]:
        """Ratings of all players that games connect with an anchor, strongest first.

        `anchors` are known ratings in Elo; None for `random` at 0. Only games `among` some players count; None for all.
        """
        names = self.players() if among is None else sorted(among)
        fixed = fixed_ratings(names, {ANCHOR: 0.0} if anchors is None else anchors)
        results = self.results(names)
        rated = connected(results.points_of(len(names), results.count), fixed, np.flatnonzero(~np.isnan(fixed)))
        if len(rated) < 2:
            return {}
        names = [names[i] for i in rated]
        found = estimate(self.results(names), fixed[rated] * ELO_PER_NAT)
        elo, error, low, high = (column.tolist() for column in (found.elo, found.error, found.low, found.high))
        listed = zip(names, map(Rating, elo, error, map(self.games, names), low, high), strict=True)
        return dict(sorted(listed, key=lambda item: -item[1].elo))

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

    def to_json(self) -> dict[str, Any]:
        """The ladder as plain values."""
        return {
            "results": [_row(first, second, met) for (first, second), met in sorted(self._meetings.items())],
            "ratings": {name: rating._asdict() for name, rating in self.rated.items()},
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Ladder:
        """The inverse of `to_json`; an empty tree gives an empty ladder."""
        ladder = cls()
        try:
            for row in tree.get("results", []):
                ladder._add(str(row["first"]), str(row["second"]), _meetings(row))
            for name, row in tree.get("ratings", {}).items():
                elo, error, low, high = (float(row[field]) for field in ("elo", "error", "low", "high"))
                ladder.rated[name] = Rating(elo, error, int(row["games"]), low, high)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LadderError(f"the saved ratings cannot be read: {type(error).__name__} {error}") from None
        return ladder

    def _add(self, first: str, second: str, met: Meetings) -> None:
        if first == second:
            raise ValueError(f"'{first}' cannot be rated against itself")
        if first > second:
            first, second, met = second, first, Meetings(*(counts[::-1] for counts in met))
        before = self._meetings.get((first, second), _NO_GAMES)
        self._meetings[first, second] = Meetings(*map(np.add, before, met))


def fixed_ratings(names: Iterable[str], anchors: Mapping[str, float]) -> Floats:
    """`[N]` ratings of the anchors in natural units, NaN for other players."""
    return np.array([anchors.get(name, np.nan) for name in names], np.float64) / ELO_PER_NAT


_NO_GAMES = Meetings(np.zeros(3, np.intp), np.zeros(5, np.intp))


def _row(first: str, second: str, met: Meetings) -> dict[str, Any]:
    """The games of two players as plain values."""
    results, pairs = (counts.tolist() for counts in met)
    return {"first": first, "second": second, **MatchResult(*results)._asdict(), "pairs": pairs}


def _meetings(row: Mapping[str, Any]) -> Meetings:
    """The inverse of `_row`."""
    results = [int(row[name]) for name in MatchResult._fields]
    met = Meetings(*(np.array(counts, np.intp) for counts in (results, row["pairs"])))
    if met.pairs.shape != (5,) or 2 * met.pairs.sum() != sum(results):
        raise ValueError(f"the openings of {row['first']} and {row['second']} do not add up to their games")
    return met
