"""Matches: all games of a match run in one batch; each player moves first in half of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from podzero.evaluation.players import Player, random_actions
from podzero.intervals import wilson
from podzero.protocols import Env
from podzero.types import Array, EnvState

OPENING_PLIES = 4
"""Random opening plies when both players are deterministic; without them all games would be the same."""


class Interrupted(Exception):
    """The match was stopped before all its games were over."""


class MatchResult(NamedTuple):
    """The result of a match, counted for the first player."""

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
        """95% interval of the score, by Wilson's formula (`podzero.intervals`)."""
        return wilson(self.points, self.games)


class Arena:
    """Plays matches of one game. All matches share the compiled programs."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._init = jax.jit(jax.vmap(env.init))
        self._step = jax.jit(jax.vmap(env.step))
        self._view = jax.jit(jax.vmap(env.view))
        self._where = jax.jit(jax.vmap(optax.tree.where))

    def play(
        self,
        first: Player,
        second: Player,
        games: int,
        key: Array,
        opening_plies: int | None = None,
        keep_going: Callable[[], bool] = lambda: True,
    ) -> MatchResult:
        """Plays `games` games (an even number), each opening twice with the sides swapped; fewer if both players are
        deterministic and the game has fewer openings, because the same games again would say nothing new.

        The games in which the first player opens form one batch, the others a second one. Each player therefore always
        sees batches of games / 2 positions, so nothing is compiled again during a match.

        Args:
          first: the player whose result is returned.
          second: the opponent.
          games: number of games.
          key: PRNG key, consumed.
          opening_plies: random plies before the players take over, 0 for the start of the game; by default
            `OPENING_PLIES` if both players are deterministic and none otherwise.
          keep_going: called before every ply; the match stops when it returns False.

        Raises:
          ValueError: `games` is odd or not positive.
          Interrupted: `keep_going` returned False.
        """
        if games <= 0 or games % 2:
            raise ValueError(f"games must be even and positive, as each opening is played from both sides; got {games}")
        if opening_plies is None:
            opening_plies = OPENING_PLIES if first.deterministic and second.deterministic else 0
        opening_key, play_key = jax.random.split(key)
        repeat = not (first.deterministic and second.deterministic)
        starts = self.openings(games // 2, opening_plies, opening_key, repeat)
        points = self._play_out(starts, (first, second), play_key, keep_going)
        return MatchResult(int((points > 0).sum()), int((points == 0).sum()), int((points < 0).sum()))

    def openings(self, count: int, plies: int, key: Array, repeat: bool = True) -> EnvState:
        """`count` non-terminal states after `plies` random plies, distinct if the game has enough of them; otherwise
        some are repeated, or there are fewer without `repeat`.

        If every game is over after that many plies, fewer plies are played.
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
            return self.openings(count, plies - 1, key, repeat)
        if plies:
            boards = view.observation[open_].reshape(len(open_), -1)
            _, where = np.unique(boards, axis=0, return_index=True)
            open_ = open_[np.sort(where)]
        chosen = np.resize(open_, count) if repeat else open_[:count]
        return jax.tree.map(lambda leaf: leaf[chosen], states)

    def _play_out(
        self, starts: EnvState, players: tuple[Player, Player], key: Array, keep_going: Callable[[], bool]
    ) -> np.ndarray[Any, Any]:
        """Returns of the first player, `[2 * openings]`: it moves first in the first half, second in the other half."""
        opener = np.asarray(self._view(starts).player)
        sides = (opener, 1 - opener)
        states = [starts, starts]
        returns = np.zeros((2, len(opener), 2), np.float32)
        over = np.zeros((2, len(opener)), bool)
        while not over.all():
            if not keep_going():
                raise Interrupted
            for half in (0, 1):
                if over[half].all():
                    continue
                key, move_key = jax.random.split(key)
                shown = self._where(over[half], starts, states[half])
                actions = self._choose(shown, players, sides[half], ~over[half], move_key)
                states[half] = self._step(states[half], actions)
                view = self._view(states[half])
                returns[half] += np.asarray(view.rewards)
                over[half] = np.asarray(view.done)
        points: np.ndarray[Any, Any] = np.take_along_axis(returns, np.stack(sides)[..., None], axis=-1).ravel()
        return points

    def _choose(
        self,
        states: EnvState,
        players: tuple[Player, Player],
        side: np.ndarray[Any, Any],
        running: np.ndarray[Any, Any],
        key: Array,
    ) -> np.ndarray[Any, Any]:
        """Actions `[B]`: of the first player where its `side` (`[B]`) is to move, of the second player elsewhere.

        A player is called only if it is to move in one of the `running` games (`[B]` bool), and then with the whole
        batch. Its actions for games where it is not to move are ignored. Games that are over show their opening.
        """
        firsts = np.asarray(self._view(states).player) == side
        actions = np.zeros(len(side), np.int32)
        for player, turn in zip(players, (firsts, ~firsts), strict=True):
            if (turn & running).any():
                actions = np.where(turn, np.asarray(player.choose(key, states)), actions)
        return actions


def play_match(
    env: Env, first: Player, second: Player, games: int, key: Array, opening_plies: int | None = None
) -> MatchResult:
    """One match; see `Arena.play`."""
    return Arena(env).play(first, second, games, key, opening_plies)
