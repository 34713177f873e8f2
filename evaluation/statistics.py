"""Statistics of results: intervals of shares and means, and ratings with 95% intervals.

Ratings are those of Bradley & Terry (1952, https://doi.org/10.2307/2334029):

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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, NamedTuple, Self

import numpy as np
from scipy import special

Z_95 = 1.959963984540054
"""Standard normal quantile of 0.975."""
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


def wilson(successes: float, trials: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval (Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953) for a binomial share.

        (p + z^2/2n -+ z sqrt(p (1-p) / n + z^2 / 4n^2)) / (1 + z^2/n),   p = successes / n

    `successes` may contain halves (draws). Scores with draws vary less than wins and losses of the same mean, so the
    interval is then conservative. Without trials it is (0, 1).
    """
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    middle, scale = share + z * z / (2 * trials), 1 + z * z / trials
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def student(mean: float, deviation: float, trials: int) -> tuple[float, float]:
    """Student's 95% interval for the expectation that `mean` estimates.

        mean -+ t s / sqrt(n),   t = the 0.975 quantile of Student's distribution with n - 1 degrees of freedom

    `deviation` is s, the sample standard deviation with n - 1 in its denominator; there are at least two trials.
    """
    # Not `scipy.stats.t.ppf`, which computes the same: importing `scipy.stats` takes a second.
    spread = float(special.stdtrit(trials - 1, 0.975)) * deviation / math.sqrt(trials)
    return mean - spread, mean + spread


def interquartile_mean(values: Floats) -> tuple[Floats, Floats, Floats]:
    """The mean of the middle half of the values, with the 95% interval of the bootstrap over them.

    From Agarwal et al. (2021, https://arxiv.org/abs/2108.13264), for the results of several seeds. With few of them the
    interval is too short. `values` are `[N, ...]`; returns three arrays `[...]`.
    """
    from scipy.stats import trim_mean  # its import takes a second

    drawn = np.random.default_rng(0).integers(len(values), size=(REPLICATES, len(values)))
    low, high = np.quantile(trim_mean(values[drawn], 0.25, axis=1), [0.025, 0.975], axis=0)
    return trim_mean(values, 0.25, axis=0), low, high


class Difference(NamedTuple):
    """A mean difference between pairs, such as runs of equal seeds; without an interval if there is one pair."""

    mean: float
    low: float | None
    high: float | None
    pairs: int

    @classmethod
    def of(cls, differences: Sequence[float]) -> Self | None:
        """The mean of the pairs' `differences` with Student's 95% interval; None without pairs."""
        if not differences:
            return None
        mean, count = fmean(differences), len(differences)
        low, high = student(mean, stdev(differences), count) if count > 1 else (None, None)
        return cls(mean, low, high, count)

    def __str__(self) -> str:
        interval = "no interval" if self.low is None else f"{self.low:+.3g} to {self.high:+.3g}"
        return f"{round(self.mean, 12):+.4g} ({interval}; {self.pairs} pair{'s' if self.pairs > 1 else ''})"


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

    @classmethod
    def of(cls, counts: Mapping[Unit, int]) -> PairResults:
        """The results with these counts."""
        rows = np.array([(*unit, count) for unit, count in sorted(counts.items())], np.float64).reshape(-1, 5)
        first, second, points, games, count = rows.T
        return cls(first.astype(np.intp), second.astype(np.intp), points, games, count)

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


def estimate(results: PairResults, anchors: Floats, replicates: int = REPLICATES) -> Estimates:
    """Ratings and their intervals from games that connect every player with an anchor.

    `anchors` are the Elo points `[N]` of players with a known rating, NaN for the others.
    """
    fixed = anchors / ELO_PER_NAT
    points = results.points_of(len(anchors), results.count)
    ratings, leverages = firth(points, fixed)
    replicated = bayesian_bootstrap(results, fixed, ratings, leverages, replicates)
    low, high = np.quantile(replicated, [0.025, 0.975], axis=0)
    units = effective_units(results, ratings, covariance(ratings, points, fixed))
    freedom = np.maximum(units - 1, 0) + _PRIOR_DF
    # By so much intervals of normal errors are too short for so few units.
    wider = special.stdtrit(freedom, 0.975) / Z_95 * np.sqrt(1 + 1 / freedom)
    return Estimates(
        ELO_PER_NAT * ratings,
        ELO_PER_NAT * (ratings - wider * (ratings - low)),
        ELO_PER_NAT * (ratings + wider * (high - ratings)),
    )


def firth(points: Floats, fixed: Floats) -> tuple[Floats, Floats]:
    """Ratings `[..., N]` by Firth's penalized likelihood, and leverages `[..., N, N]` of the pairs of players.

    Half a leverage is the number of wins, and of losses, added to a pair. Leverages sum to the number of free players.
    """
    ratings = np.where(np.isnan(fixed), np.nanmean(fixed), fixed) * np.ones(points.shape[:-1])
    for _ in range(_MOST_STEPS):
        leverages = _weights(ratings, points) * difference_variances(covariance(ratings, points, fixed))
        better = maximum_likelihood(points + leverages / 2, fixed, ratings)
        moved, ratings = np.abs(better - ratings).max(), better
        if moved < _TOLERANCE:
            break
    return ratings, leverages


def maximum_likelihood(points: Floats, fixed: Floats, start: Floats | None = None) -> Floats:
    """Ratings `[..., N]` by Newton's method, from `start` on.

    `points` are those of each player against each other, `[..., N, N]`; every player must have won and lost something
    against an anchor, at least indirectly. `fixed` are the ratings `[N]` of the anchors, NaN for the others.
    """
    players = len(fixed)
    free = np.flatnonzero(np.isnan(fixed))
    middle = np.where(np.isnan(fixed), np.nanmean(fixed), fixed)
    ratings = np.array(np.broadcast_to(middle if start is None else start, points.shape[:-1])).reshape(-1, players)
    scored = points.reshape(-1, players, players)
    moving = np.arange(len(ratings))
    for _ in range(_MOST_STEPS if len(free) else 0):
        won = scored[moving]
        gradient = (won - (won + np.swapaxes(won, -1, -2)) * chances_of(ratings[moving])).sum(axis=-1)[:, free]
        step = np.linalg.solve(_information(ratings[moving], won, free), gradient[..., None])[..., 0]
        longest = np.abs(step).max(axis=-1)
        # Far from the maximum, a whole step may overshoot.
        ratings[moving[:, None], free] += step * np.minimum(1, _LARGEST_STEP / np.maximum(longest, _TOLERANCE))[:, None]
        moving = moving[longest > _TOLERANCE]
        if not len(moving):
            break
    return ratings.reshape(points.shape[:-1])


def bayesian_bootstrap(
    results: PairResults, fixed: Floats, ratings: Floats, leverages: Floats, replicates: int
) -> Floats:
    """Ratings `[R, N]` of replicates, in which each unit has a weight from Gamma(1).

    The results that `firth` adds have weights from Gamma(leverage / 2). For two players and independent games this
    gives Jeffreys' interval: the winning chance is distributed as Beta(wins + 1/2, losses + 1/2).
    """
    random = np.random.default_rng(0)
    weights = random.gamma(results.count, size=(replicates, len(results.count)))
    added = np.maximum(random.gamma(np.maximum(leverages / 2, _LEAST), size=(replicates, *leverages.shape)), _LEAST)
    played = results.points_of(len(fixed), results.count) > 0
    points = results.points_of(len(fixed), weights) + np.where(played | played.T, added, 0)
    return maximum_likelihood(points, fixed, ratings)


def covariance(ratings: Floats, points: Floats, fixed: Floats) -> Floats:
    """`[..., N, N]` covariance of the ratings: the inverse Fisher information, zero for anchors."""
    free = np.flatnonzero(np.isnan(fixed))
    result = np.zeros(points.shape)
    result[..., free[:, None], free] = np.linalg.inv(_information(ratings, points, free))
    return result


def difference_variances(covariances: Floats) -> Floats:
    """Variances `[..., N, N]` of the differences between ratings, from their covariances `[..., N, N]`."""
    variances = np.diagonal(covariances, axis1=-2, axis2=-1)
    return np.asarray(variances[..., :, None] + variances[..., None, :] - 2 * covariances)


def effective_units(results: PairResults, ratings: Floats, covariances: Floats) -> Floats:
    """Effective number of units behind each rating, `[N]`; zero for anchors.

        (sum of v_u)^2 / (sum of v_u^2),   v_u = the part of unit u in the variance of the rating

    Satterthwaite's formula (1946, https://doi.org/10.2307/3002019) for units of one degree of freedom each.
    """
    chances = chances_of(ratings)[results.first, results.second]
    moves = covariances[:, results.first] - covariances[:, results.second]
    parts = np.asarray(moves**2 * results.games * chances * (1 - chances))
    total, squares = parts @ results.count, parts**2 @ results.count
    return np.asarray(np.divide(total**2, squares, out=np.zeros_like(total), where=squares > 0))


def chances_of(ratings: Floats) -> Floats:
    """Expected scores `[..., N, N]` of each player against each other."""
    return np.asarray(special.expit(ratings[..., :, None] - ratings[..., None, :]))


def _weights(ratings: Floats, points: Floats) -> Floats:
    """`[..., N, N]` Fisher information of the games of each pair about their difference in rating."""
    chances = chances_of(ratings)
    return np.asarray((points + np.swapaxes(points, -1, -2)) * chances * (1 - chances))


def _information(ratings: Floats, points: Floats, free: Ints) -> Floats:
    """`[..., F, F]` Fisher information of the ratings of the F free players."""
    weights = _weights(ratings, points)
    laplacian = np.eye(weights.shape[-1]) * weights.sum(axis=-1)[..., None, :] - weights
    return np.asarray(laplacian[..., free[:, None], free])


def connected(points: Floats, fixed: Floats, start: int | Ints) -> Ints:
    """The players that games, or the known ratings of two of them, connect with those of `start`, ascending.

    `points` (`[N, N]`) and `fixed` are as in `maximum_likelihood`.
    """
    anchored = ~np.isnan(fixed)
    met = (points + points.T > 0) | (anchored[:, None] & anchored)
    reached = np.isin(np.arange(len(met)), start)
    while (grown := reached | met[reached].any(axis=0)).sum() > reached.sum():
        reached = grown
    return np.flatnonzero(reached)


_IMAGINED = 1.0
"""Draws that each player is assumed to have had against the others when pairs are chosen, so that players without games
have a rating and a finite uncertainty."""
_POWER = 4


def next_pair(
    points: Floats, fixed: Floats, games: int, among: Collection[int] = (), excluded: Collection[tuple[int, int]] = ()
) -> tuple[int, int] | None:
    """The pair whose games are expected to reduce the uncertainty of the ratings most (Glickman & Jensen 2005,
    https://doi.org/10.1016/j.jspi.2003.09.022).

    With the covariance C of the ratings (zero for anchors), a match of n games between i and j, with the Fisher
    information w = n p (1 - p), reduces the variance of rating k by

        w (C_ki - C_kj)^2 / (1 + w (C_ii + C_jj - 2 C_ij))

    The chosen match minimizes the sum over k of the fourth powers of the variances, a smooth largest interval.

    Args:
      points: `[N, N]` points so far of each player against each other.
      fixed: `[N]` ratings of the anchors in natural units, NaN for the others.
      games: number of games in the match, n.
      among: players whose ratings count in the sum; empty for all. Others may still be chosen to play.
      excluded: pairs (i, j), i < j, that cannot play.

    Returns:
      Two indices, ascending; None if all pairs are excluded or nothing is uncertain.
    """
    reductions = expected_reductions(points, fixed, games, among)
    for i, j in excluded:
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
    return np.asarray(np.einsum("k,kij->ij", matter, variances[:, None, None] ** _POWER - left**_POWER))
