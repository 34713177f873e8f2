"""Judgement by a solver: how often a player's move keeps the game-theoretic value of the position."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from podzero.evaluation.players import Player, SearchPlayer
from podzero.evaluation.positions import MAX_PLY, Positions, replay
from podzero.evaluation.solvers import Scores, game_values
from podzero.intervals import wilson
from podzero.protocols import Env
from podzero.types import Array

BANDS = ((0, 9), (10, 19), (20, MAX_PLY))
"""First and last plies of the bands in which training is judged: opening, middle and end differ in difficulty."""


class BandResult(NamedTuple):
    """A solver's judgement of moves in a band of plies."""

    first: int
    """The first ply."""
    last: int
    """The last ply."""
    positions: int
    keeps_value: float
    exact: float
    """See `JudgeResult`."""
    interval: tuple[float, float]
    """95% interval of `keeps_value`, by Wilson's formula."""


class JudgeResult(NamedTuple):
    """A solver's judgement of a player's moves."""

    positions: int
    keeps_value: float
    """Share of moves that keep the value of the game: a win stays a win, a draw a draw."""
    exact: float
    """Share of moves with the best exact score: of all winning moves the soonest, of all losing ones the latest."""
    by_ply: dict[int, float]
    """`keeps_value` by ply."""
    interval: tuple[float, float]
    """95% interval of `keeps_value`, by Wilson's formula."""
    bands: tuple[BandResult, ...]
    """The same for each of `BANDS` with positions."""


class Judge:
    """Judges players on the same positions, so that a player is compiled once for all rounds."""

    def __init__(self, env: Env, positions: Positions) -> None:
        self._positions = positions
        self._states = replay(env, positions.moves)

    def __call__(self, player: Player, key: Array) -> JudgeResult:
        """Lets `player` choose in all positions, as one batch; `key` is consumed."""
        return judge_actions(np.asarray(player.choose(key, self._states)), self._positions)

    def network(self, player: SearchPlayer) -> JudgeResult:
        """Judges the most probable moves of a player's network, without search.

        Raises:
          ConfigError: it has no network.
        """
        policy, _ = player.evaluate(self._states)
        return judge_actions(np.asarray(policy).argmax(axis=1), self._positions)


def judge_actions(actions: np.ndarray[Any, Any], positions: Positions) -> JudgeResult:
    """Judges one action (`[N]`) for each position."""
    kept = _is_best(actions, game_values(positions.scores))
    exact = _is_best(actions, positions.scores)
    plies = positions.plies
    return JudgeResult(
        positions=len(actions),
        keeps_value=float(kept.mean()),
        exact=float(exact.mean()),
        by_ply={int(ply): float(kept[plies == ply].mean()) for ply in np.unique(plies)},
        interval=wilson(float(kept.sum()), len(kept)),
        bands=tuple(
            BandResult(first, last, int(inside.sum()), *_shares(kept[inside], exact[inside]))
            for first, last in BANDS
            if (inside := (plies >= first) & (plies <= last)).any()
        ),
    )


def _shares(kept: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> tuple[float, float, tuple[float, float]]:
    return float(kept.mean()), float(exact.mean()), wilson(float(kept.sum()), len(kept))


def _is_best(actions: np.ndarray[Any, Any], scores: Scores) -> np.ndarray[Any, Any]:
    chosen = scores[np.arange(len(actions)), actions]
    best: np.ndarray[Any, Any] = chosen == np.nanmax(scores, axis=1)
    return best
