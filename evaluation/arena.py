"""Matches: all games of a match run in one batch; each player moves first in half of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from podzero.evaluation.intervals import wilson
from podzero.evaluation.players import Player, random_actions
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
        """95% interval of the score, by Wilson's formula (`podzero.evaluation.intervals`)."""
        return wilson(self.points, self.games)


class Game(NamedTuple):
    """One game of a match."""

    opened: bool
    """Whether the first player of the match moved first."""
    moves: list[int]
    """All actions from the start of the game, its opening included."""
    opening_plies: int
    """How many of them were random."""
    position: str
    """A digest of the position after the opening."""
    points: float
    """Of the first player of the match: 1 won, 0.5 drew, 0 lost."""
    cut_off: bool
    """Whether a limit on the plies ended the game; it then counts as what its rewards say, usually a draw."""


class Openings(NamedTuple):
    """Positions from which games start."""

    states: EnvState
    """With a leading axis B."""
    moves: np.ndarray[Any, Any]
    """`[B, plies]` int32, the actions that lead there."""


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
        """The result of `pairs`; `games` is a number of games, which must be even.

        Raises:
          ValueError: `games` is odd or not positive.
          Interrupted: `keep_going` returned False.
        """
        if games <= 0 or games % 2:
            raise ValueError(f"games must be even and positive, as each opening is played from both sides; got {games}")
        played = self.pairs(first, second, games // 2, key, opening_plies, keep_going)
        return count(game for pair in played for game in pair)

    def pairs(
        self,
        first: Player,
        second: Player,
        openings: int,
        key: Array,
        opening_plies: int | None = None,
        keep_going: Callable[[], bool] = lambda: True,
        known: Collection[str] = (),
    ) -> list[tuple[Game, Game]]:
        """Plays each of `openings` openings twice with the sides swapped; fewer if both players are deterministic and
        the game has fewer openings, because the same games again would say nothing new.

        The games in which the first player opens form one batch, the others a second one. Each player therefore always
        sees batches of `openings` positions, so nothing is compiled again during a match.

        Args:
          first: the player whose points are counted.
          second: the opponent.
          openings: number of openings.
          key: PRNG key, consumed.
          opening_plies: random plies before the players take over, 0 for the start of the game; by default
            `OPENING_PLIES` if both players are deterministic and none otherwise.
          keep_going: called before every ply; the match stops when it returns False.
          known: `Game.position` of openings that deterministic players have played before.

        Returns:
          The two games of each opening; in the former the first player opens.

        Raises:
          Interrupted: `keep_going` returned False.
        """
        repeat = not (first.deterministic and second.deterministic)
        if opening_plies is None:
            opening_plies = 0 if repeat else OPENING_PLIES
        opening_key, play_key = jax.random.split(key)
        starts = self.openings(openings, opening_plies, opening_key, repeat, () if repeat else known)
        return self._play_out(starts, (first, second), play_key, keep_going) if len(starts.moves) else []

    def openings(
        self, count: int, plies: int, key: Array, repeat: bool = True, known: Collection[str] = ()
    ) -> Openings:
        """`count` non-terminal states after `plies` random plies, distinct if the game has enough of them; otherwise
        some are repeated, or there are fewer without `repeat`. Those `known` by their digests are left out.

        If every game is over after that many plies, fewer plies are played.
        """
        init_key, play_key = jax.random.split(key)
        candidates = 4 * count if plies else count
        states = self._init(jax.random.split(init_key, candidates))
        moves = np.zeros((candidates, plies), np.int32)
        for ply, ply_key in enumerate(jax.random.split(play_key, plies)):
            actions = random_actions(ply_key, self._view(states).legal)
            states, moves[:, ply] = self._step(states, actions), np.asarray(actions)
        view = jax.device_get(self._view(states))
        open_ = np.flatnonzero(~view.done)
        if not len(open_):
            if not plies:
                raise ValueError(f"{self._env.spec.name} is over before the first move")
            return self.openings(count, plies - 1, key, repeat, known)
        if plies:
            boards = view.observation[open_].reshape(len(open_), -1)
            _, where = np.unique(boards, axis=0, return_index=True)
            open_ = open_[np.sort(where)]
        if known:
            digests = _digests(view.observation)
            open_ = np.array([row for row in open_ if digests[row] not in known], np.intp)
        chosen = np.resize(open_, count) if repeat else open_[:count]
        return Openings(jax.tree.map(lambda leaf: leaf[chosen], states), moves[chosen])

    def _play_out(
        self, starts: Openings, players: tuple[Player, Player], key: Array, keep_going: Callable[[], bool]
    ) -> list[tuple[Game, Game]]:
        """The games of each opening; the first player moves first in the former half of them."""
        seen = jax.device_get(self._view(starts.states))
        sides = (seen.player, 1 - seen.player)
        halves = [_Half(starts, side) for side in sides]
        while not all(half.over.all() for half in halves):
            if not keep_going():
                raise Interrupted
            for half in halves:
                if not half.over.all():
                    key, move_key = jax.random.split(key)
                    shown = self._where(half.over, starts.states, half.states)
                    actions = self._choose(shown, players, half.side, ~half.over, move_key)
                    states = self._step(half.states, actions)
                    half.advance(actions, states, jax.device_get(self._view(states)))
        digests = _digests(seen.observation)
        opened, replied = (half.games(digests, opened) for half, opened in zip(halves, (True, False), strict=True))
        return list(zip(opened, replied, strict=True))

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


class _Half:
    """The games of a match in which the same player opens."""

    def __init__(self, starts: Openings, side: np.ndarray[Any, Any]) -> None:
        self.states = starts.states
        self.side = side
        """`[B]` which player of the environment the first player of the match is."""
        self.over = np.zeros(len(side), bool)
        self._plies = starts.moves.shape[1]
        self._moves = starts.moves.tolist()
        self._returns = np.zeros((len(side), 2), np.float32)
        self._cut_off = np.zeros(len(side), bool)

    def advance(self, actions: np.ndarray[Any, Any], states: EnvState, view: View) -> None:
        """One ply: `actions` (`[B]`) led to `states`, which `view` shows."""
        for row in np.flatnonzero(~self.over):
            self._moves[row].append(int(actions[row]))
        self.states = states
        self._returns += view.rewards
        self._cut_off |= np.asarray(view.truncated) & ~self.over
        self.over = np.asarray(view.done)

    def games(self, digests: list[str], opened: bool) -> list[Game]:
        """The games, once all are over."""
        returns = np.take_along_axis(self._returns, self.side[:, None], axis=1)[:, 0]
        points = (0.5 + 0.5 * np.sign(returns)).tolist()
        rows = zip(self._moves, digests, points, self._cut_off.tolist(), strict=True)
        return [Game(opened, moves, self._plies, digest, scored, cut) for moves, digest, scored, cut in rows]


def count(games: Iterable[Game]) -> MatchResult:
    """Wins, draws and losses of the first player."""
    points = [game.points for game in games]
    return MatchResult(points.count(1.0), points.count(0.5), points.count(0.0))


def _digests(observations: np.ndarray[Any, Any]) -> list[str]:
    """A short digest of each of B observations."""
    return [hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in observations]


def play_match(
    env: Env, first: Player, second: Player, games: int, key: Array, opening_plies: int | None = None
) -> MatchResult:
    """One match; see `Arena.play`."""
    return Arena(env).play(first, second, games, key, opening_plies)
