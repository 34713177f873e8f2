"""Ratings from results, with anchors and 95% intervals (Bradley & Terry 1952, https://doi.org/10.2307/2334029).

    P(i scores against j) = 1 / (1 + exp(r_j - r_i)),   r in natural units (`ELO_PER_NAT` Elo points)

A draw counts as half a win. Results are counted in units: the two games of one opening, which are correlated, or a
single game. All functions are pure. N is the number of players, M of different results, R of replicates.

The ratings maximize the likelihood times Jeffreys' prior (Firth 1993, https://doi.org/10.1093/biomet/80.1.27): each
rating adds half a win and half a loss, spread over the pairs of players by how much their games determine the ratings.
Undefeated players therefore have finite ratings, and the bias of order 1 / games vanishes.

Intervals come from the Bayesian bootstrap (Rubin 1981, https://doi.org/10.1214/aos/1176345338) over units and added
results, widened as Student's t for the number of units that a rating depends on. Resampling units instead gives too
short intervals where few games were lost, and none for undefeated players (`benchmarks/tournaments.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from podzero.evaluation.intervals import Z_95

ELO_PER_NAT = 400 / math.log(10)
"""Elo points of one unit of log-odds."""
REPLICATES = 1000
"""Replicates of the bootstrap."""
_PRIOR_DF = 2
"""Degrees of freedom added to those of Student's t, since the added results bound the spread even of a single unit.
Chosen by the coverage in simulated tournaments with few games."""
_LEAST = 1e-6
"""Least weight of added results in a replicate, which keeps its ratings finite."""
_LARGEST_STEP = 2.0
_MOST_STEPS = 100
_TOLERANCE = 1e-6

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.intp]]


class Unit(NamedTuple):
    """The result of the two games of one opening, or of a single game, between two players given by index."""

    first: int
    second: int
    points: float
    """Points of the first player: wins plus half the draws."""
    games: int = 2


@dataclass(frozen=True)
class PairResults:
    """The M different units and their counts; all arrays are `[M]`."""

    first: Ints
    second: Ints
    points: Floats
    games: Floats
    count: Floats

    def points_of(self, players: int, weights: Floats) -> Floats:
        """Points `[..., N, N]` of each player against each other, with units weighted by `weights` (`[..., M]`)."""
        cells = np.zeros((*weights.shape[:-1], players, players))
        for row, (i, j) in enumerate(zip(self.first.tolist(), self.second.tolist(), strict=True)):
            cells[..., i, j] += weights[..., row] * self.points[row]
            cells[..., j, i] += weights[..., row] * (self.games[row] - self.points[row])
        return cells


class Estimates(NamedTuple):
    """Ratings in Elo points with 95% intervals; all arrays are `[N]`."""

    elo: Floats
    low: Floats
    high: Floats

    @property
    def error(self) -> Floats:
        """Half the length of each interval."""
        return (self.high - self.low) / 2


def results_of(counts: Counter[Unit]) -> PairResults:
    """The results as arrays."""
    rows = np.array([(*unit, count) for unit, count in sorted(counts.items())], np.float64).reshape(-1, 5)
    first, second, points, games, count = rows.T
    return PairResults(first.astype(np.intp), second.astype(np.intp), points, games, count)


def estimate(results: PairResults, anchors: Floats, seed: int = 0, replicates: int = REPLICATES) -> Estimates:
    """Ratings and their intervals.

    Args:
      results: games that connect every player with an anchor.
      anchors: `[N]` Elo points of players with a known rating, NaN for the others.
      seed: seed of the bootstrap.
      replicates: number of bootstrap replicates.
    """
    fixed = anchors / ELO_PER_NAT
    points = results.points_of(len(anchors), results.count)
    ratings, leverages = firth(points, fixed)
    replicated = bayesian_bootstrap(results, fixed, ratings, leverages, np.random.default_rng(seed), replicates)
    low, high = np.quantile(replicated, [0.025, 0.975], axis=0)
    wider = _student(effective_units(results, ratings, covariance(ratings, points, fixed)))
    return Estimates(
        ELO_PER_NAT * ratings,
        ELO_PER_NAT * (ratings - wider * (ratings - low)),
        ELO_PER_NAT * (ratings + wider * (high - ratings)),
    )


def firth(points: Floats, fixed: Floats) -> tuple[Floats, Floats]:
    """Ratings `[..., N]` by Firth's penalized likelihood, and leverages `[..., N, N]` of the pairs of players.

    Half a leverage is the number of wins, and of losses, added to a pair. Leverages sum over pairs to the number of
    players without anchor.
    """
    ratings = np.where(np.isnan(fixed), np.nanmean(fixed), fixed) * np.ones(points.shape[:-1])
    for _ in range(_MOST_STEPS):
        leverages = _leverages(ratings, points, fixed)
        better = maximum_likelihood(points + leverages / 2, fixed, ratings)
        moved, ratings = np.abs(better - ratings).max(), better
        if moved < _TOLERANCE:
            break
    return ratings, leverages


def maximum_likelihood(points: Floats, fixed: Floats, start: Floats | None = None) -> Floats:
    """Ratings `[..., N]` by Newton's method.

    Args:
      points: `[..., N, N]` points of each player against each other; every player must have won and lost something
        against an anchor, at least indirectly.
      fixed: `[N]` ratings of the anchors, NaN for the others.
      start: `[..., N]` ratings to start from.
    """
    players = len(fixed)
    free = np.flatnonzero(np.isnan(fixed))
    middle = np.where(np.isnan(fixed), np.nanmean(fixed), fixed)
    ratings = np.array(np.broadcast_to(middle if start is None else start, points.shape[:-1])).reshape(-1, players)
    scored = points.reshape(-1, players, players)
    moving = np.arange(len(ratings))
    for _ in range(_MOST_STEPS if len(free) else 0):
        step = _newton_step(ratings[moving], scored[moving], free)
        longest = np.abs(step).max(axis=-1)
        # Far from the maximum, a whole step may overshoot.
        ratings[moving[:, None], free] += step * np.minimum(1, _LARGEST_STEP / np.maximum(longest, _TOLERANCE))[:, None]
        moving = moving[longest > _TOLERANCE]
        if not len(moving):
            break
    return ratings.reshape(points.shape[:-1])


def _newton_step(ratings: Floats, points: Floats, free: Ints) -> Floats:
    """Newton's step `[R, F]` of the F free players for R sets of ratings (`[R, N]`) and points (`[R, N, N]`)."""
    games = points + np.swapaxes(points, -1, -2)
    chances = chances_of(ratings)
    gradient = (points - games * chances).sum(axis=-1)[:, free]
    information = _free(_laplacian(games * chances * (1 - chances)), free)
    return np.asarray(np.linalg.solve(information, gradient[..., None])[..., 0])


def bayesian_bootstrap(
    results: PairResults,
    fixed: Floats,
    ratings: Floats,
    leverages: Floats,
    random: np.random.Generator,
    replicates: int,
) -> Floats:
    """Ratings `[R, N]` of replicates, in which each unit has a weight from Gamma(1).

    The results that `firth` adds have weights from Gamma(leverage / 2). For two players and independent games this
    gives Jeffreys' interval: the winning chance is distributed as Beta(wins + 1/2, losses + 1/2).
    """
    weights = random.gamma(results.count, size=(replicates, len(results.count)))
    added = np.maximum(random.gamma(np.maximum(leverages / 2, _LEAST), size=(replicates, *leverages.shape)), _LEAST)
    played = results.points_of(len(fixed), results.count) > 0
    points = results.points_of(len(fixed), weights) + np.where(played | played.T, added, 0)
    return maximum_likelihood(points, fixed, ratings)


def covariance(ratings: Floats, points: Floats, fixed: Floats) -> Floats:
    """`[..., N, N]` covariance of the ratings: the inverse Fisher information, zero for anchors."""
    free = np.flatnonzero(np.isnan(fixed))
    chances = chances_of(ratings)
    information = _laplacian((points + np.swapaxes(points, -1, -2)) * chances * (1 - chances))
    result = np.zeros(points.shape)
    result[..., free[:, None], free] = np.linalg.inv(_free(information, free))
    return result


def difference_variances(covariances: Floats) -> Floats:
    """Variances `[..., N, N]` of the differences between ratings, from their covariances `[..., N, N]`."""
    variances = np.diagonal(covariances, axis1=-2, axis2=-1)
    of_differences: Floats = variances[..., :, None] + variances[..., None, :] - 2 * covariances
    return of_differences


def effective_units(results: PairResults, ratings: Floats, covariances: Floats) -> Floats:
    """Effective number of units behind each rating, `[N]`; zero for anchors.

        (sum of v_u)^2 / (sum of v_u^2),   v_u = the part of unit u in the variance of the rating

    Satterthwaite's formula (1946, https://doi.org/10.2307/3002019) for units of one degree of freedom each.
    """
    chances = chances_of(ratings)[results.first, results.second]
    moves = covariances[:, results.first] - covariances[:, results.second]
    parts: Floats = np.asarray(moves**2 * results.games * chances * (1 - chances))
    total, squares = parts @ results.count, parts**2 @ results.count
    units: Floats = np.divide(total**2, squares, out=np.zeros_like(total), where=squares > 0)
    return units


def chances_of(ratings: Floats) -> Floats:
    """Expected scores `[..., N, N]` of each player against each other."""
    return np.asarray(special.expit(ratings[..., :, None] - ratings[..., None, :]))


def _student(units: Floats) -> Floats:
    """The factor `[N]` by which intervals of normal errors are too short for `units` (`[N]`)."""
    freedom = np.maximum(units - 1, 0) + _PRIOR_DF
    return np.asarray(special.stdtrit(freedom, 0.975) / Z_95 * np.sqrt(1 + 1 / freedom))


def _leverages(ratings: Floats, points: Floats, fixed: Floats) -> Floats:
    chances = chances_of(ratings)
    weights = (points + np.swapaxes(points, -1, -2)) * chances * (1 - chances)
    return np.asarray(weights * difference_variances(covariance(ratings, points, fixed)))


def _laplacian(weights: Floats) -> Floats:
    return np.asarray(np.eye(weights.shape[-1]) * weights.sum(axis=-1)[..., None, :] - weights)


def _free(information: Floats, free: Ints) -> Floats:
    return np.asarray(information[..., free[:, None], free])


LEVEL = 0.05
"""Probability that any pair of a tournament is flagged although the model holds."""


class Surprise(NamedTuple):
    """A pair of players whose games differ from the ratings by more than chance."""

    first: int
    """The player that scores more than expected."""
    second: int
    score: float
    """Points per game of the first player against the second."""
    expected: float
    """The score predicted by all other games."""
    p_value: float
    """Probability of at least this difference if the model holds, times the number of pairs tested (Bonferroni)."""


def surprises(results: PairResults, fixed: Floats) -> list[Surprise]:
    """The pairs of players whose games contradict the ratings, least probable first.

    Each pair's own games are compared with the prediction of all other games (node splitting: Dias et al. 2010,
    https://doi.org/10.1002/sim.3767). Both are log-odds with a variance; their expected difference is zero if the
    Bradley-Terry model holds.

    Args:
      results: all games.
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


def cycles(results: PairResults, found: list[Surprise], players: int) -> list[tuple[int, int, int]]:
    """Triples i, j, k, lowest index first, in which i beats j, j beats k and k beats i on points, and which contain a
    pair of `found`, so that they are intransitive by more than chance.
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


def dispersion(results: PairResults) -> float:
    """The variance of the units around their pair's mean, relative to that of independent games without draws; 1 if
    there are too few games.
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
    """The difference between two ratings, and its variance, without the games of these two against each other; None if
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
    """The players that games connect with `start`, ascending; `met` is `[N, N]`, True for pairs that have met."""
    reached = np.zeros(len(met), bool)
    reached[start] = True
    while (grown := reached | met[reached].any(axis=0)).sum() > reached.sum():
        reached = grown
    return np.flatnonzero(reached)


_IMAGINED = 1.0
"""Draws that each player is assumed to have had against the others when pairs are chosen, so that players without games
have a rating and a finite uncertainty."""
_POWER = 4


def next_pair(
    points: Floats, fixed: Floats, games: int, among: Collection[int] = (), barred: Collection[tuple[int, int]] = ()
) -> tuple[int, int] | None:
    """The pair whose games are expected to reduce the uncertainty of the ratings most (Glickman & Jensen 2005,
    https://doi.org/10.1016/j.jspi.2003.09.022).

    With the covariance C of the ratings (zero for anchors), a match of n games between i and j, with the Fisher
    information w = n p (1 - p), reduces the variance of rating k by

        w (C_ki - C_kj)^2 / (1 + w (C_ii + C_jj - 2 C_ij))

    The chosen match minimizes the sum over k of the fourth powers of the variances, a smooth form of the largest
    interval.

    Args:
      points: `[N, N]` points so far of each player against each other.
      fixed: `[N]` ratings of the anchors in natural units, NaN for the others.
      games: number of games in the match, n.
      among: players whose ratings count in the sum; empty for all. Others may still be chosen to play.
      barred: pairs (i, j), i < j, that cannot play.

    Returns:
      Two indices, ascending; None if all pairs are barred or nothing is uncertain.
    """
    reductions = expected_reductions(points, fixed, games, among)
    for i, j in barred:
        reductions[i, j] = reductions[j, i] = 0
    best = int(np.argmax(np.triu(reductions, 1)))
    i, j = divmod(best, len(fixed))
    return (i, j) if reductions[i, j] > 0 else None


def expected_reductions(points: Floats, fixed: Floats, games: int, among: Collection[int] = ()) -> Floats:
    """Reduction `[N, N]` of the sum in `next_pair` by a match of each pair; zero on the diagonal."""
    players = len(fixed)
    imagined = points + _IMAGINED / 2 / (players - 1) * (1 - np.eye(players))
    ratings = maximum_likelihood(imagined, fixed)
    chances = chances_of(ratings)
    covariances = covariance(ratings, imagined, fixed)
    variances = np.diagonal(covariances)
    information = games * chances * (1 - chances)
    moves = covariances[:, :, None] - covariances[:, None, :]
    left = variances[:, None, None] - information * moves**2 / (1 + information * difference_variances(covariances))
    matter = np.isin(np.arange(players), list(among)) if among else np.ones(players)
    reductions: Floats = np.einsum("k,kij->ij", matter, variances[:, None, None] ** _POWER - left**_POWER)
    return reductions
