"""Assembles the moves of finished games into samples with value targets. Pure NumPy, no clock, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from podzero.types import Move, Sample, StoredState

Floats = npt.NDArray[np.float32]


class Game(NamedTuple):
    """A finished game."""

    samples: Sample
    """`[T, ...]` on every field, in the order played."""
    plies: int
    """T, the number of searched moves."""
    states: StoredState | None = None
    """`[T, ...]`, the same positions for reanalysis, if the moves have states."""


class GameAssembler:
    """Stores the moves of B running games until they are over.

    A game that a limit truncates has no outcome: the root value of its last searched position stands for it.
    """

    def __init__(self, games: int, root_value_weight: float, discount: float = 1.0) -> None:
        self._root_value_weight = root_value_weight
        self._discount = discount
        self._moves: deque[tuple[Move, int]] = deque()
        self._first = 0
        """Index of the oldest stored move, counted from the start."""
        self._started = np.zeros(games, np.int64)
        """`[B]` index of the first move of each running game."""

    def add(self, move: Move, version: int) -> Iterator[Game]:
        """Adds one move of all games (host arrays), searched with parameters `version`; yields the games it ended."""
        self._moves.append((move, version))
        end = self._first + len(self._moves)
        for slot in np.flatnonzero(move.done):
            yield self._finish(int(slot), end)
            self._started[slot] = end
        while self._first < self._started.min():
            self._moves.popleft()
            self._first += 1

    def _finish(self, slot: int, end: int) -> Game:
        stored = [self._moves[i - self._first] for i in range(self._started[slot], end)]
        moves = [move for move, _ in stored]

        def column(name: str) -> npt.NDArray[np.generic]:
            return np.stack([getattr(move, name)[slot] for move in moves])

        rewards, players = column("rewards").astype(np.float32), column("player")
        if moves[-1].truncated[slot]:
            value = moves[-1].value[slot]  # stands for the rest of the game; a single player's rewards use one column
            rewards[-1] = np.where(np.arange(2) == players[-1], value, -value)
        outcome = outcomes(rewards, players, self._discount)
        versions = np.array([version for _, version in stored], np.int32)
        samples = Sample(
            observation=column("observation"),
            legal=column("legal"),
            policy_target=column("policy"),
            value_target=value_targets(outcome, column("value"), self._root_value_weight),
            version=versions,
        )
        states = None if moves[0].state is None else StoredState(column("state"), outcome, versions)
        return Game(samples, end - int(self._started[slot]), states)


def outcomes(rewards: Floats, players: npt.NDArray[np.generic], discount: float = 1.0) -> Floats:
    """`[T]` the outcome of a game from each of its positions: the discounted sum of the later rewards of the player to
    move.

    Args:
      rewards: `[T, 2]` both players' rewards for each move.
      players: `[T]` the player that moved.
      discount: per move.
    """
    backwards = accumulate(rewards[::-1], lambda later, now: now + np.float32(discount) * later)
    returns = np.array(list(backwards))[::-1]
    outcome: Floats = np.take_along_axis(returns, players.astype(np.int64)[:, None], axis=1)[:, 0]
    return outcome


def value_targets(outcome: Floats, root_values: npt.NDArray[np.generic], root_value_weight: float) -> Floats:
    """Value targets of T positions, each for the player to move.

    `v_t = (1 - w) * z_t + w * r_t`, with the outcome `z_t` (Silver et al. 2017) and the root value `r_t` of the search.
    The root value lowers the variance of the target (Young et al., Lessons from AlphaZero, 2018: averaging z and q).

    Args:
      outcome: `[T]`, from `outcomes`.
      root_values: `[T]`.
      root_value_weight: w in [0, 1].
    """
    mixed = (1.0 - root_value_weight) * outcome + root_value_weight * root_values.astype(np.float32)
    return np.clip(mixed, -1.0, 1.0).astype(np.float32)
