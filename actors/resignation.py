"""Resignation: the root value below which a player gives up, calibrated on games that are played on.

As in AlphaGo Zero (Silver et al. 2017, https://doi.org/10.1038/nature24270, methods): a share of the games never ends
by resignation; of those in which a player would have resigned, few may turn out otherwise than lost.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NamedTuple

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]

GAMES = 500
"""Games, the newest that were played on, by which the threshold is calibrated."""
LEAST_RESIGNED = 20
"""Games in which a player would have resigned, without which nobody resigns."""


class LowestValues(NamedTuple):
    """The lowest root values of a game, infinite where there was no such position."""

    loser: float
    """Of the player who lost."""
    others: float
    """Of the players who did not lose."""


def lowest_values(values: Floats, lost: np.ndarray[Any, np.dtype[np.bool_]]) -> LowestValues:
    """The lowest values of a game of T moves.

    Args:
      values: `[T]`, each for the player who moved.
      lost: `[T]`, whether that player lost the game.
    """
    return LowestValues(
        float(np.min(values, where=lost, initial=np.inf)), float(np.min(values, where=~lost, initial=np.inf))
    )


class ResignThreshold:
    """The highest threshold below zero at which few resignations are false.

    Args:
      max_false: largest share, of the games in which a player would have resigned, in which such a player did not lose.
    """

    def __init__(self, max_false: float) -> None:
        self._max_false = max_false
        self._games: deque[LowestValues] = deque(maxlen=GAMES)
        self._value = -math.inf

    @property
    def value(self) -> float:
        """A player resigns at a root value of at most this; minus infinity if nobody resigns."""
        return self._value

    def add(self, game: LowestValues) -> None:
        """Calibrates by one more game that was played on."""
        self._games.append(game)
        loser, others = np.array(self._games).T
        lowest = np.sort(np.minimum(loser, others))
        thresholds = lowest[lowest < 0]
        resigned = np.searchsorted(lowest, thresholds, side="right")
        false = np.searchsorted(np.sort(others), thresholds, side="right")
        fit = thresholds[(resigned >= LEAST_RESIGNED) & (false <= self._max_false * resigned)]
        self._value = float(fit[-1]) if len(fit) else -math.inf
