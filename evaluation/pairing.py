"""Chooses who plays next: the pair of players whose games are expected to reduce the uncertainty of the ratings most.

Games between players of equal strength say more than games whose result is known beforehand; games of a player whose
rating is uncertain say more than those of others. Both follow from the Fisher information of the Bradley-Terry model
(Glickman & Jensen 2005, https://doi.org/10.1016/j.jspi.2003.09.022). All functions are pure.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from podzero.evaluation.bradley_terry import Floats, chances_of, covariance, difference_variances, maximum_likelihood

_IMAGINED = 1.0
"""Drawn games of each player, spread over all others, while pairs are chosen: players without games then have a rating
and a finite uncertainty."""
_POWER = 4


def next_pair(
    points: Floats, fixed: Floats, games: int, among: Collection[int] = (), barred: Collection[tuple[int, int]] = ()
) -> tuple[int, int] | None:
    """The pair of players to play next.

    With the covariance C of the ratings (anchors zero), a match of n games of i and j, which has the Fisher information
    w = n p (1 - p), reduces the variance of rating k by

        w (C_ki - C_kj)^2 / (1 + w (C_ii + C_jj - 2 C_ij))

    The pair is chosen after whose match the sum over k of the fourth powers of the variances is least: a smooth form of
    the largest interval.

    Args:
      points: `[N, N]` points of each player against each other so far.
      fixed: `[N]` ratings of the anchors in natural units, NaN for the others.
      games: n.
      among: the players whose ratings matter; all by default. Others may be chosen to play.
      barred: pairs (i, j), i < j, that cannot play.

    Returns:
      Two indices in ascending order, or None if all pairs are barred or nothing is uncertain.
    """
    reductions = expected_reductions(points, fixed, games, among)
    for i, j in barred:
        reductions[i, j] = reductions[j, i] = 0
    best = int(np.argmax(np.triu(reductions, 1)))
    i, j = divmod(best, len(fixed))
    return (i, j) if reductions[i, j] > 0 else None


def expected_reductions(points: Floats, fixed: Floats, games: int, among: Collection[int] = ()) -> Floats:
    """`[N, N]` by how much a match of each pair reduces the sum of `next_pair`; zero on the diagonal."""
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
