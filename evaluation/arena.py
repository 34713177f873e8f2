"""Matches: all games of a match side by side, half of them from each side of the board."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.evaluation.intervals import wilson
from podzero.evaluation.players import Player, random_actions, where
from podzero.protocols import Env
from podzero.types import Array, EnvState

OPENING_PLIES = 4
"""Random plies before two deterministic players meet, who would else play one and the same game."""


class Interrupted(Exception):
    """The match was asked to end before it was played out."""


class MatchResult(NamedTuple):
    """A match from the side of the first player."""

    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """Games played."""
        return self.wins + self.draws + self.losses

    @property
    def points(self) -> float:
        """Wins, and half of the draws."""
        return self.wins + 0.5 * self.draws

    @property
    def score(self) -> float:
        """Points per game, in [0, 1]."""
        return self.points / self.games

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the score, by Wilson's formula (`podzero.evaluation.intervals`)."""
        return wilson(self.points, self.games)


class Arena:
    """Plays matches of one game; what it compiles serves all of them."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._init = jax.jit(jax.vmap(env.init))
        self._step = jax.jit(jax.vmap(env.step))
        self._view = jax.jit(jax.vmap(env.view))
        self._where = jax.jit(where)

    def play(
        self,
        first: Player,
        second: Player,
        games: int,
        key: Array,
        opening_plies: int | None = None,
        keep_going: Callable[[], bool] = lambda: True,
    ) -> MatchResult:
        """Plays `games` games (an even number), each opening twice with the sides swapped.

        Games of the same side are played in step, so that each player sees batches of games / 2 positions, of the same
        shape from the first move to the last.

        Args:
          first: the player whose result is returned.
          second: the opponent.
          games: number of games.
          key: PRNG key, consumed.
          opening_plies: random plies before the players take over, 0 for the start of the game; by default
            `OPENING_PLIES` if both players are deterministic and none otherwise.
          keep_going: asked before every ply.

        Raises:
          ValueError: `games` is odd or not positive.
          Interrupted: `keep_going` said no.
        """
        if games <= 0 or games % 2:
            raise ValueError(f"games must be even and positive, as each opening is played from both sides; got {games}")
        if opening_plies is None:
            opening_plies = OPENING_PLIES if first.deterministic and second.deterministic else 0
        opening_key, play_key = jax.random.split(key)
        starts = self.openings(games // 2, opening_plies, opening_key)
        points = self._play_out(starts, (first, second), play_key, keep_going)
        return MatchResult(int((points > 0).sum()), int((points == 0).sum()), int((points < 0).sum()))

    def openings(self, count: int, plies: int, key: Array) -> EnvState:
        """`count` states after `plies` random plies, none over, and distinct as far as the game has enough of them.

        Of games that are always over by then fewer plies are played.
        """
        init_key, play_key = jax.random.split(key)
        candidates = 4 * count if plies else count
        states = self._init(jax.random.split(init_key, candidates))
        for ply_key in jax.random.split(play_key, plies):
            states = self._step(states, random_actions(ply_key, self._view(states).legal))
        view = jax.device_get(self._view(states))
        open_ = np.flatnonzero(~view.done)
        if not len(open_):
            if not plies:
                raise ValueError(f"{self._env.spec.name} is over before the first move")
            return self.openings(count, plies - 1, key)
        if plies:
            boards = view.observation[open_].reshape(len(open_), -1)
            _, where = np.unique(boards, axis=0, return_index=True)
            open_ = open_[np.sort(where)]
        chosen = np.resize(open_, count)
        return jax.tree.map(lambda leaf: leaf[chosen], states)

    def _play_out(
        self, starts: EnvState, players: tuple[Player, Player], key: Array, keep_going: Callable[[], bool]
    ) -> np.ndarray[Any, Any]:
        """What the first player received, `[2 * openings]`: at table 0 it moves first, at table 1 second."""
        opener = np.asarray(self._view(starts).player)
        seats = (opener, 1 - opener)
        tables = [starts, starts]
        returns = np.zeros((2, len(opener), 2), np.float32)
        over = np.zeros((2, len(opener)), bool)
        while not over.all():
            if not keep_going():
                raise Interrupted
            for table in (0, 1):
                if over[table].all():
                    continue
                key, move_key = jax.random.split(key)
                shown = self._where(over[table], starts, tables[table])
                actions = self._choose(shown, players, seats[table], ~over[table], move_key)
                tables[table] = self._step(tables[table], actions)
                view = self._view(tables[table])
                returns[table] += np.asarray(view.rewards)
                over[table] = np.asarray(view.done)
        points: np.ndarray[Any, Any] = np.take_along_axis(returns, np.stack(seats)[..., None], axis=-1).ravel()
        return points

    def _choose(
        self,
        states: EnvState,
        players: tuple[Player, Player],
        seat: np.ndarray[Any, Any],
        running: np.ndarray[Any, Any],
        key: Array,
    ) -> np.ndarray[Any, Any]:
        """Actions `[B]` in the games that are `running` (`[B]` bool), of the first player where its `seat` is to move.

        Where players alternate only one of the two is asked; after an extra turn in some of the games both are, each
        about all games, and what it would do on the other's turn is ignored. Games that are over show their opening.
        """
        firsts = np.asarray(self._view(states).player) == seat
        actions = np.zeros(len(seat), np.int32)
        for player, turn in zip(players, (firsts, ~firsts), strict=True):
            if (turn & running).any():
                actions = np.where(turn, np.asarray(player.choose(key, states)), actions)
        return actions


def play_match(
    env: Env, first: Player, second: Player, games: int, key: Array, opening_plies: int | None = None
) -> MatchResult:
    """One match; see `Arena.play`."""
    return Arena(env).play(first, second, games, key, opening_plies)
