"""Matches: all games of a match run in one batch; each player moves first in half of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from podzero.evaluation.players import Contestant, MovesPlayer, Turn, random_actions
from podzero.intervals import wilson
from podzero.protocols import Env
from podzero.types import Array, EnvState, View

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


class PlayedGame(NamedTuple):
    """One game of a match."""

    moves: tuple[int, ...]
    """All actions, those of a random opening included."""
    opening_plies: int
    """Random actions at the beginning."""
    first_opens: bool
    """Whether the first player of the match moves at even plies, the opening included."""
    points: float
    """What the first player of the match got: positive if it won."""
    given_up: bool
    """Whether the loser resigned or forfeited."""


@dataclass
class _Half:
    """The games of a match in which the same player opens, B in number."""

    states: EnvState
    view: View
    """Of the states, on the host."""
    side: np.ndarray[Any, Any]
    """`[B]`, the number of the first player of the match in each game."""
    moves: list[list[int]]
    returns: np.ndarray[Any, Any]
    """`[B, 2]`."""
    over: np.ndarray[Any, Any]
    """`[B]` bool."""
    given_up: np.ndarray[Any, Any]
    """`[B]` bool."""


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
        first: Contestant,
        second: Contestant,
        games: int,
        key: Array,
        opening_plies: int | None = None,
        keep_going: Callable[[], bool] = lambda: True,
    ) -> MatchResult:
        """The result of `play_games`."""
        return match_result(self.play_games(first, second, games, key, opening_plies, keep_going))

    def play_games(
        self,
        first: Contestant,
        second: Contestant,
        games: int,
        key: Array,
        opening_plies: int | None = None,
        keep_going: Callable[[], bool] = lambda: True,
    ) -> list[PlayedGame]:
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
        starts, moves = self._openings(games // 2, opening_plies, opening_key, repeat)
        return self._play_out(starts, moves, (first, second), play_key, keep_going)

    def openings(self, count: int, plies: int, key: Array, repeat: bool = True) -> EnvState:
        """`count` non-terminal states after `plies` random plies, distinct if the game has enough of them; otherwise
        some are repeated, or there are fewer without `repeat`.

        If every game is over after that many plies, fewer plies are played.
        """
        return self._openings(count, plies, key, repeat)[0]

    def _openings(
        self, count: int, plies: int, key: Array, repeat: bool
    ) -> tuple[EnvState, np.ndarray[Any, np.dtype[np.int32]]]:
        """See `openings`; also returns the actions, `[count, plies]`."""
        init_key, play_key = jax.random.split(key)
        candidates = 4 * count if plies else count
        states = self._init(jax.random.split(init_key, candidates))
        moves = np.zeros((candidates, plies), np.int32)
        for ply, ply_key in enumerate(jax.random.split(play_key, plies)):
            moves[:, ply] = random_actions(ply_key, self._view(states).legal)
            states = self._step(states, moves[:, ply])
        view = jax.device_get(self._view(states))
        open_ = np.flatnonzero(~view.done)
        if not len(open_):
            if not plies:
                raise ValueError(f"{self._env.spec.name} is over before the first move")
            return self._openings(count, plies - 1, key, repeat)
        if plies:
            boards = view.observation[open_].reshape(len(open_), -1)
            _, where = np.unique(boards, axis=0, return_index=True)
            open_ = open_[np.sort(where)]
        chosen = np.resize(open_, count) if repeat else open_[:count]
        return jax.tree.map(lambda leaf: leaf[chosen], states), moves[chosen]

    def _play_out(
        self,
        starts: EnvState,
        moves: np.ndarray[Any, np.dtype[np.int32]],
        players: tuple[Contestant, Contestant],
        key: Array,
        keep_going: Callable[[], bool],
    ) -> list[PlayedGame]:
        """`2 * openings` games: the first player moves first in the first half, second in the other half."""
        view = jax.device_get(self._view(starts))
        count = len(view.player)
        halves = [
            _Half(
                starts, view, side, moves.tolist(), np.zeros((count, 2), np.float32), np.zeros(count, bool),
                np.zeros(count, bool),
            )
            for side in (view.player, 1 - view.player)
        ]  # fmt: skip
        while not all(half.over.all() for half in halves):
            if not keep_going():
                raise Interrupted
            for half in halves:
                if not half.over.all():
                    key, move_key = jax.random.split(key)
                    self._play_ply(half, starts, players, move_key)
        plies = moves.shape[1]
        opens = (plies % 2 == 0, plies % 2 == 1)
        return [game for half, first in zip(halves, opens, strict=True) for game in _played(half, plies, first)]

    def _play_ply(self, half: _Half, starts: EnvState, players: tuple[Contestant, Contestant], key: Array) -> None:
        """Plays one ply of all games of a half that are not over."""
        running = ~half.over
        shown = self._where(half.over, starts, half.states)
        actions = self._choose(shown, half, players, key)
        gives_up = running & (actions < 0)
        # Nobody sees the rest of a game that was given up; any legal action will do.
        actions = np.where(half.given_up | gives_up, half.view.legal.argmax(axis=-1), actions).astype(np.int32)
        for i in np.flatnonzero(running & ~gives_up):
            half.moves[i].append(int(actions[i]))
        mover = half.view.player
        half.states = self._step(half.states, actions)
        half.view = jax.device_get(self._view(half.states))
        half.returns += np.where((running & ~gives_up)[:, None], half.view.rewards, 0)
        lost = np.eye(2, dtype=np.float32)[mover]
        half.returns += np.where(gives_up[:, None], 1 - 2 * lost, 0)
        half.given_up = half.given_up | gives_up
        half.over = half.over | half.view.done | gives_up

    def _choose(
        self, shown: EnvState, half: _Half, players: tuple[Contestant, Contestant], key: Array
    ) -> np.ndarray[Any, Any]:
        """Actions `[B]`: of the first player where its side is to move, of the second player elsewhere.

        A player is called only if it is to move in a game that is not over, and then with the whole batch. Its actions
        for games where it is not to move are ignored. Games that are over are `shown` as their openings. A
        `MovesPlayer` gets the games where it is to move alone.
        """
        firsts = half.view.player == half.side
        actions = np.zeros(len(firsts), np.int32)
        for player, turn in zip(players, (firsts, ~firsts), strict=True):
            mine = np.flatnonzero(turn & ~half.over)
            if not len(mine):
                continue
            if isinstance(player, MovesPlayer):
                actions[mine] = player.choose_after(_turns(half, mine))
            else:
                actions = np.where(turn, np.asarray(player.choose(key, shown)), actions)
        return actions


def _turns(half: _Half, games: np.ndarray[Any, Any]) -> list[Turn]:
    states, legal = jax.device_get(half.states), np.asarray(half.view.legal)
    return [Turn(tuple(half.moves[i]), jax.tree.map(itemgetter(i), states), legal[i]) for i in games]


def match_result(games: Sequence[PlayedGame]) -> MatchResult:
    """Wins, draws and losses of the first player."""
    points = np.array([game.points for game in games])
    return MatchResult(int((points > 0).sum()), int((points == 0).sum()), int((points < 0).sum()))


def play_match(
    env: Env, first: Contestant, second: Contestant, games: int, key: Array, opening_plies: int | None = None
) -> MatchResult:
    """One match; see `Arena.play`."""
    return Arena(env).play(first, second, games, key, opening_plies)


def _played(half: _Half, opening_plies: int, first_opens: bool) -> list[PlayedGame]:
    points = np.take_along_axis(half.returns, half.side[:, None], axis=-1)[:, 0]
    return [
        PlayedGame(tuple(moves), opening_plies, first_opens, float(won), bool(given_up))
        for moves, won, given_up in zip(half.moves, points, half.given_up, strict=True)
    ]
