"""Matches: all games of a match run in one batch; each player moves first in half of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from podzero.evaluation.games import MatchResult, PlayedGame, PlayedPair, match_result
from podzero.evaluation.players import Contestant, MovesPlayer, Turn, random_actions
from podzero.protocols import Env
from podzero.types import Array, EnvState, View

OPENING_PLIES = 4
"""Random opening plies when both players are deterministic; without them all games would be the same."""


class Interrupted(Exception):
    """The match was stopped before all its games were over."""


class Openings(NamedTuple):
    """B positions from which games start."""

    states: EnvState
    """With a leading axis B."""
    moves: np.ndarray[Any, Any]
    """`[B, plies]` int32, the actions that lead there."""
    opener: np.ndarray[Any, Any]
    """`[B]`, the player of the environment who makes the first of all moves."""


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
        """The result of `pairs`; `games` is a number of games, which must be even.

        Raises:
          ValueError: `games` is odd or not positive.
          Interrupted: `keep_going` returned False.
        """
        if games <= 0 or games % 2:
            raise ValueError(f"games must be even and positive, as each opening is played from both sides; got {games}")
        return match_result(self.pairs(first, second, games // 2, key, opening_plies, keep_going))

    def pairs(
        self,
        first: Contestant,
        second: Contestant,
        openings: int,
        key: Array,
        opening_plies: int | None = None,
        keep_going: Callable[[], bool] = lambda: True,
        known: Collection[str] = (),
    ) -> list[PlayedPair]:
        """Plays each of `openings` openings twice with the sides swapped; fewer if both players are deterministic and
        the game has fewer openings, because the same games again would say nothing new.

        The games in which the first player moves first form one batch, the others a second one. Each player therefore
        always sees batches of `openings` positions, so nothing is compiled again during a match.

        Args:
          first: the player whose points are counted.
          second: the opponent.
          openings: number of openings.
          key: PRNG key, consumed.
          opening_plies: random plies before the players take over, 0 for the start of the game; by default
            `OPENING_PLIES` if both players are deterministic and none otherwise.
          keep_going: called before every ply; the match stops when it returns False.
          known: `PlayedGame.position` of openings that deterministic players have played before.

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
        opener = np.asarray(self._view(states).player)
        moves = np.zeros((candidates, plies), np.int32)
        for ply, ply_key in enumerate(jax.random.split(play_key, plies)):
            moves[:, ply] = random_actions(ply_key, self._view(states).legal)
            states = self._step(states, moves[:, ply])
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
        return Openings(jax.tree.map(lambda leaf: leaf[chosen], states), moves[chosen], opener[chosen])

    def _play_out(
        self,
        starts: Openings,
        players: tuple[Contestant, Contestant],
        key: Array,
        keep_going: Callable[[], bool],
    ) -> list[PlayedPair]:
        """The two games of each opening."""
        view = jax.device_get(self._view(starts.states))
        halves = [_Half(starts, view, side) for side in (starts.opener, 1 - starts.opener)]
        while not all(half.over.all() for half in halves):
            if not keep_going():
                raise Interrupted
            for half in halves:
                if not half.over.all():
                    key, move_key = jax.random.split(key)
                    self._play_ply(half, starts.states, players, move_key)
        digests, names = _digests(view.observation), (players[0].name, players[1].name)
        opened, replied = halves[0].games(names, digests), halves[1].games(names[::-1], digests)
        return [PlayedPair(*pair) for pair in zip(opened, replied, strict=True)]

    def _play_ply(self, half: _Half, starts: EnvState, players: tuple[Contestant, Contestant], key: Array) -> None:
        """Plays one ply of all games of a half that are not over."""
        shown = self._where(half.over, starts, half.states)
        actions = _choose(shown, half, players, key)
        gives_up = ~half.over & (actions < 0)
        # Nobody sees the rest of a game that was given up; any legal action will do.
        actions = np.where(half.given_up | gives_up, half.view.legal.argmax(axis=-1), actions).astype(np.int32)
        states = self._step(half.states, actions)
        half.advance(actions, gives_up, states, jax.device_get(self._view(states)))


class _Half:
    """The games of a match in which the same player moves first, B in number."""

    def __init__(self, starts: Openings, view: View, side: np.ndarray[Any, Any]) -> None:
        self.states = starts.states
        self.view = view
        """Of the states, on the host."""
        self.side = side
        """`[B]`, which player of the environment the first player of the match is."""
        self.moves = starts.moves.tolist()
        self.over = np.zeros(len(side), bool)
        self.given_up = np.zeros(len(side), bool)
        self._opener = starts.opener
        self._plies = starts.moves.shape[1]
        self._returns = np.zeros((len(side), 2), np.float32)
        self._cut_off = np.zeros(len(side), bool)

    def advance(
        self, actions: np.ndarray[Any, Any], gives_up: np.ndarray[Any, Any], states: EnvState, view: View
    ) -> None:
        """One ply: `actions` (`[B]`) led to `states`, which `view` shows, except where the player to move gives up."""
        goes_on = ~self.over & ~gives_up
        for row in np.flatnonzero(goes_on):
            self.moves[row].append(int(actions[row]))
        lost = np.eye(2, dtype=np.float32)[self.view.player]
        self._returns += np.where(goes_on[:, None], view.rewards, 0) + np.where(gives_up[:, None], 1 - 2 * lost, 0)
        self._cut_off |= np.asarray(view.truncated) & goes_on
        self.given_up |= gives_up
        self.over = self.over | view.done | gives_up
        self.states, self.view = states, view

    def games(self, names: tuple[str, str], digests: list[str]) -> list[PlayedGame]:
        """The games, once all are over; `names` has the player first who moves first."""
        returns = np.take_along_axis(self._returns, self._opener[:, None], axis=1)[:, 0]
        points = (0.5 + 0.5 * np.sign(returns)).tolist()
        rows = zip(self.moves, points, digests, self.given_up.tolist(), self._cut_off.tolist(), strict=True)
        return [
            PlayedGame(*names, tuple(moves), scored, self._plies, digest, given_up, cut_off)
            for moves, scored, digest, given_up, cut_off in rows
        ]


def _choose(shown: EnvState, half: _Half, players: tuple[Contestant, Contestant], key: Array) -> np.ndarray[Any, Any]:
    """Actions `[B]`: of the first player where its side is to move, of the second player elsewhere.

    A player is called only if it is to move in a game that is not over, and then with the whole batch. Its actions for
    games where it is not to move are ignored. Games that are over are `shown` as their openings. A `MovesPlayer` gets
    the games where it is to move alone.
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


def _digests(observations: np.ndarray[Any, Any]) -> list[str]:
    """A short digest of each of B observations."""
    return [hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in observations]


def play_match(
    env: Env, first: Contestant, second: Contestant, games: int, key: Array, opening_plies: int | None = None
) -> MatchResult:
    """One match; see `Arena.play`."""
    return Arena(env).play(first, second, games, key, opening_plies)
