"""Ratings: pairwise results to Elo with error bars (Elo 1978; Bradley & Terry 1952, https://doi.org/10.2307/2334029).

    P(i beats j) = 1 / (1 + 10^((R_j - R_i) / 400))

A draw counts as half a win. One drawn game is added to each pair that has played, so that an undefeated player has a
finite rating. R(`random`) = 0.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import choix
import numpy as np

from podzero.errors import PodzeroError
from podzero.evaluation.arena import MatchResult
from podzero.intervals import Z_95

ANCHOR = "random"
"""The player whose rating is 0."""
ELO_PER_NAT = 400 / math.log(10)
"""Elo points of one unit of log-odds."""
_PRIOR_DRAWS = 1.0


class LadderError(PodzeroError, ValueError):
    """A saved ladder that cannot be read."""


class Rating(NamedTuple):
    """The rating of one player."""

    elo: float
    """Points above `random`."""
    error: float
    """Half of the 95% interval."""
    games: int
    """Games of this player."""


class Ladder:
    """Results of matches between named players, and their maximum likelihood ratings."""

    def __init__(self) -> None:
        self._results: dict[tuple[str, str], MatchResult] = {}

    def add(self, first: str, second: str, result: MatchResult) -> None:
        """Adds a match, counted for `first`; matches of the same pair are summed."""
        if first == second:
            raise ValueError(f"'{first}' cannot be rated against itself")
        if first > second:
            first, second, result = second, first, MatchResult(result.losses, result.draws, result.wins)
        held = self._results.get((first, second), MatchResult(0, 0, 0))
        self._results[first, second] = MatchResult(*(a + b for a, b in zip(held, result, strict=True)))

    def players(self) -> list[str]:
        """All players with at least one match, sorted."""
        return sorted({name for pair in self._results for name in pair})

    def ratings(self) -> dict[str, Rating]:
        """Ratings of all players that are connected with `random` by matches, strongest first.

        The likelihood is maximized by I-LSR (Maystre & Grossglauser 2015); the error is 1.96 standard deviations of
        the difference to `random`, from the inverse of the Fisher information.
        """
        names = self._connected()
        if len(names) < 2:
            return {}
        points = self._points(names)
        log_odds = choix.ilsr_pairwise_dense(points)
        log_odds = log_odds - log_odds[0]
        errors = Z_95 * _deviations(log_odds, points + points.T)
        games = self._games(names)
        rated = {
            name: Rating(ELO_PER_NAT * float(mean), ELO_PER_NAT * float(error), games[name])
            for name, mean, error in zip(names, log_odds, errors, strict=True)
        }
        return dict(sorted(rated.items(), key=lambda item: -item[1].elo))

    def to_json(self) -> dict[str, Any]:
        """The ladder as plain values: the results, and the ratings computed from them for readers."""
        return {
            "results": [
                {"first": first, "second": second, **result._asdict()}
                for (first, second), result in sorted(self._results.items())
            ],
            "ratings": {name: rating._asdict() for name, rating in self.ratings().items()},
        }

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Ladder:
        """The inverse of `to_json`; an empty tree gives an empty ladder.

        Raises:
          LadderError: the tree was not made by `to_json`.
        """
        ladder = cls()
        try:
            for row in tree.get("results", []):
                counts = MatchResult(*(int(row[field]) for field in MatchResult._fields))
                ladder.add(str(row["first"]), str(row["second"]), counts)
        except (KeyError, TypeError, ValueError) as error:
            raise LadderError(f"the saved ratings cannot be read: {type(error).__name__} {error}") from None
        return ladder

    def _connected(self) -> list[str]:
        """`random`, then all players connected with it by matches."""
        reached, edge = [ANCHOR], [ANCHOR]
        while edge:
            met = {name for pair in self._results if edge[0] in pair for name in pair}
            new = sorted(met - set(reached))
            reached, edge = reached + new, edge[1:] + new
        return reached

    def _points(self, names: list[str]) -> np.ndarray[Any, Any]:
        """`[N, N]` points of each player against each other, including the added draws."""
        index = {name: i for i, name in enumerate(names)}
        points = np.zeros((len(names), len(names)))
        for (first, second), result in self._results.items():
            if first in index:
                i, j = index[first], index[second]
                points[i, j] = result.points + 0.5 * _PRIOR_DRAWS
                points[j, i] = result.games - result.points + 0.5 * _PRIOR_DRAWS
        return points

    def _games(self, names: list[str]) -> dict[str, int]:
        return {name: sum(r.games for pair, r in self._results.items() if name in pair) for name in names}


def _deviations(log_odds: np.ndarray[Any, Any], games: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Standard deviations `[N]` of the log-odds above player 0, whose own is 0.

    The Fisher information of Bradley-Terry is the Laplacian of the graph of matches with the weights n p (1 - p).
    """
    chances = 1 / (1 + np.exp(log_odds[None, :] - log_odds[:, None]))
    weights = games * chances * (1 - chances)
    information = np.diag(weights.sum(axis=1)) - weights
    deviations: np.ndarray[Any, Any] = np.zeros(len(log_odds))
    deviations[1:] = np.sqrt(np.diag(np.linalg.inv(information[1:, 1:])))
    return deviations
