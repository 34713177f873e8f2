"""Whether one number per player explains the results: pairs of players that score otherwise, and cycles.

Each pair's own games are held against what all other games say about the same two players (node splitting: Dias et al.
2010, https://doi.org/10.1002/sim.3767). Both are log-odds with a variance; their difference is zero if the
Bradley-Terry model holds.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy import special

from podzero.evaluation.bradley_terry import Floats, Ints, Results, covariance, difference_variances, firth

LEVEL = 0.05
"""How often a pair may be flagged in a tournament whose results the model explains, over all its pairs together."""


class Surprise(NamedTuple):
    """A pair of players whose games differ from the ratings by more than chance."""

    first: int
    """The player that scores more than expected."""
    second: int
    score: float
    """Points per game of the first player against the second."""
    expected: float
    """The same, by all other games."""
    p_value: float
    """Probability of so large a difference if the model holds, times the number of pairs tested (Bonferroni)."""


def surprises(results: Results, fixed: Floats) -> list[Surprise]:
    """The pairs of players that are flagged, least probable first.

    Args:
      results: of all games.
      fixed: `[N]` ratings of the anchors in natural units, NaN for the others.
    """
    points = results.points_of(len(fixed), results.count)
    spread = max(1.0, dispersion(results))
    tested = []
    for i, j in combinations(range(len(fixed)), 2):
        others = _indirect(points, fixed, i, j)
        if others is not None and points[i, j] + points[j, i] > 0:
            difference, variance = others
            won, lost = points[i, j] + 0.5, points[j, i] + 0.5
            away = math.log(won / lost) - difference
            z = away / math.sqrt(spread * (variance + 1 / won + 1 / lost))
            pair = (i, j, difference) if away > 0 else (j, i, -difference)
            tested.append((*pair, 2 * float(special.ndtr(-abs(z)))))
    found = [
        Surprise(i, j, float(points[i, j] / (points[i, j] + points[j, i])), float(special.expit(difference)), p_value)
        for i, j, difference, chance in tested
        if (p_value := chance * len(tested)) < LEVEL
    ]
    return sorted(found, key=lambda surprise: surprise.p_value)


def cycles(results: Results, found: list[Surprise], players: int) -> list[tuple[int, int, int]]:
    """Triples i, j, k in which i scores more than half against j, j against k, and k against i, with a pair among the
    surprises: intransitive by more than chance. The lowest index is named first.
    """
    points = results.points_of(players, results.count)
    ahead = points > points.T
    flagged = {frozenset((surprise.first, surprise.second)) for surprise in found}
    triples = [
        triple
        for low, middle, high in combinations(range(players), 3)
        for triple in ((low, middle, high), (low, high, middle))
        if flagged & {frozenset(pair) for pair in combinations(triple, 2)}
    ]
    return [(i, j, k) for i, j, k in triples if ahead[i, j] and ahead[j, k] and ahead[k, i]]


def dispersion(results: Results) -> float:
    """The variance of the units about the mean of their pair of players, relative to independent games without draws;
    1 if there are too few games to tell.
    """
    squares = expected = 0.0
    for i, j in {*zip(results.first.tolist(), results.second.tolist(), strict=True)}:
        rows = (results.first == i) & (results.second == j)
        games, count = results.games[rows], results.count[rows]
        mean = float((results.points[rows] * count).sum() / (games * count).sum())
        if count.sum() > 1:
            away = results.points[rows] - games * mean
            squares += float((count * away**2).sum() * count.sum() / (count.sum() - 1))
            expected += float((count * games).sum()) * mean * (1 - mean)
    return squares / expected if expected > 0 else 1.0


def _indirect(points: Floats, fixed: Floats, i: int, j: int) -> tuple[float, float] | None:
    """The difference between two ratings without the games of these two against each other, and its variance; None if
    no other games connect them.
    """
    others = points.copy()
    others[i, j] = others[j, i] = 0
    anchored = ~np.isnan(fixed)
    members = connected((others + others.T > 0) | (anchored[:, None] & anchored[None, :]), i)
    if j not in members:
        return None
    inside = fixed[members]
    where_i, where_j = int(np.searchsorted(members, i)), int(np.searchsorted(members, j))
    if np.isnan(inside).all():
        inside[where_i] = 0
    others = others[np.ix_(members, members)]
    ratings, _ = firth(others, inside)
    variances = difference_variances(covariance(ratings, others, inside))
    return float(ratings[where_i] - ratings[where_j]), float(variances[where_i, where_j])


def connected(met: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], start: int) -> Ints:
    """The players that are connected with `start` by games, ascending; `met` (`[N, N]`) says who has met whom."""
    reached = np.zeros(len(met), bool)
    reached[start] = True
    while (grown := reached | met[reached].any(axis=0)).sum() > reached.sum():
        reached = grown
    return np.flatnonzero(reached)
