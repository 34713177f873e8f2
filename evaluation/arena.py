"""Games that run in one batch: matches, in which each player moves first in half of them, and games for one.

In a game for more than two, the player that moves first has that seat alone, and its opponent has all others. The one
with the larger mean return per seat wins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from podzero.core.protocols import Env
from podzero.core.types import Array, EnvState, View
from podzero.evaluation.games import PlayedGame, PlayedPair
from podzero.evaluation.players import Contestant, MovesPlayer, Player, Turn, random_actions

OPENING_PLIES = 4
"""Random opening plies when both players are deterministic and all games would otherwise be the same."""


MatchReport = Callable[[int, int, int], None]
"""Is told after each ply how many games are over, of how many, and how many plies were played."""


class Interrupted(Exception):
    """`keep_going` stopped the games before they were over."""


class Openings(NamedTuple):
    """B positions from which games start."""

    states: EnvState
    """The states, with a leading axis B."""
    moves: np.ndarray[Any, Any]
    """`[B, plies]` int32, the actions that lead to the states."""
    opener: np.ndarray[Any, Any]
    """`[B]`, the environment's index of the player that makes the first move of the game."""


class Arena:
    """Plays one game again and again, with the same compiled programs."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._init = jax.jit(jax.vmap(env.init))
        self._step = jax.jit(jax.vmap(env.step))
        self._view = jax.jit(jax.vmap(env.view))
        self._where = jax.jit(jax.vmap(optax.tree.where))
        self._random = jax.jit(random_actions)
        self._take = jax.jit(lambda states, rows: jax.tree.map(lambda leaf: leaf[rows], states))

    def pairs(
        self,
        first: Contestant,
        second: Contestant,
        openings: int,
        key: Array,
        opening_plies: int | None = None,
        keep_going: Callable[[], bool] = lambda: True,
        known: Collection[str] = (),
        report: MatchReport = lambda over, games, plies: None,
    ) -> list[PlayedPair]:
        """Plays each of `openings` openings twice, with the seats swapped; `Interrupted` once `keep_going` is false.

        Deterministic players never repeat an opening, so a game with few openings yields fewer pairs. Players always
        see batches of `openings` positions, so that nothing is recompiled during a match.

        The points are those of `first`. `opening_plies` random plies are played before the players take over: by
        default `OPENING_PLIES` if both are deterministic, and 0 otherwise. `known` are the positions
        (`PlayedGame.position`) of openings that deterministic players have already played.
        """
        repeat = not (first.deterministic and second.deterministic)
        if opening_plies is None:
            opening_plies = 0 if repeat else OPENING_PLIES
        opening_key, play_key = jax.random.split(key)
        starts = self.openings(openings, opening_plies, opening_key, repeat, () if repeat else known)
        if not len(starts.moves):
            return []
        view = jax.device_get(self._view(starts.states))
        halves = [_Half(opens, starts, view) for opens in (True, False)]
        plies = starts.moves.shape[1]
        while running := [half for half in halves if not half.over.all()]:
            if not keep_going():
                raise Interrupted
            for half in running:
                play_key, move_key = jax.random.split(play_key)
                self._play_ply(half, starts.states, (first, second), move_key)
            plies += 1
            report(sum(int(half.over.sum()) for half in halves), 2 * len(starts.moves), plies)
        digests, names = _digests(view.observation), (first.name, second.name)
        opened, replied = halves[0].games(names, digests), halves[1].games(names[::-1], digests)
        return [PlayedPair(*pair) for pair in zip(opened, replied, strict=True)]

    def openings(
        self, count: int, plies: int, key: Array, repeat: bool = True, known: Collection[str] = ()
    ) -> Openings:
        """`count` non-terminal states after `plies` random plies, without those whose digests are `known`.

        If the game has fewer distinct ones, some are repeated, or there are fewer without `repeat`. If every game ends
        within `plies`, fewer plies are played.
        """
        init_key, play_key = jax.random.split(key)
        # More than needed, because equal positions, and those in which the game is over, are left out.
        candidates = 4 * count if plies else count
        states = self._init(jax.random.split(init_key, candidates))
        opener = np.asarray(self._view(states).player)
        moves = np.zeros((candidates, plies), np.int32)
        for ply, ply_key in enumerate(jax.random.split(play_key, plies)):
            moves[:, ply] = self._random(ply_key, self._view(states).legal)
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
            # `unique` sorts by the boards; in the order in which they were drawn, the first ones are random again.
            open_ = open_[np.sort(where)]
        if known:
            digests = _digests(view.observation)
            open_ = np.array([row for row in open_ if digests[row] not in known], np.intp)
        chosen = np.resize(open_, count) if repeat else open_[:count]
        return Openings(self._take(states, chosen), moves[chosen], opener[chosen])

    def _play_ply(self, half: _Half, starts: EnvState, players: tuple[Contestant, Contestant], key: Array) -> None:
        """Plays one ply of all games of a half that are not over."""
        actions = _choose(self._where(half.over, starts, half.states), half, players, key)
        gives_up = ~half.over & (actions < 0)
        goes_on = ~half.over & ~gives_up
        for row in np.flatnonzero(goes_on):
            half.moves[row].append(int(actions[row]))
        lost = np.eye(half.returns.shape[1], dtype=np.float32)[half.view.player]
        half.given_up |= gives_up
        # Nobody sees the rest of a game that was given up; any legal action will do.
        actions = np.where(half.given_up, half.view.legal.argmax(axis=-1), actions).astype(np.int32)
        half.states = self._step(half.states, actions)
        half.view = jax.device_get(self._view(half.states))
        half.returns += np.where(goes_on[:, None], half.view.rewards, 0) + np.where(gives_up[:, None], 1 - 2 * lost, 0)
        half.cut_off |= np.asarray(half.view.truncated) & goes_on
        half.over = half.over | half.view.done | gives_up

    def alone(
        self, player: Player, games: int, key: Array, keep_going: Callable[[], bool] = lambda: True
    ) -> np.ndarray[Any, Any]:
        """The returns of `player` in games for one, `[games]` float64; `Interrupted` once `keep_going` is false."""
        init_key, key = jax.random.split(key)
        starts = states = self._init(jax.random.split(init_key, games))
        returns, over = np.zeros(games), np.zeros(games, bool)
        while not over.all():
            if not keep_going():
                raise Interrupted
            key, move_key = jax.random.split(key)
            # The player sees the initial state of a finished game; its action there is ignored.
            states = self._step(states, player.choose(move_key, self._where(over, starts, states)))
            view = jax.device_get(self._view(states))
            returns += view.rewards[:, 0]
            over = np.asarray(view.done)
        return returns


class _Half:
    """The B games of a match in which the same player moves first."""

    def __init__(self, opens: bool, starts: Openings, view: View) -> None:
        """`opens`: whether that player is the first one of the match."""
        count = len(starts.opener)
        self.opens, self.opener, self.states = opens, starts.opener, starts.states
        self.view = view
        """View of the states, on the host."""
        self.moves = starts.moves.tolist()
        self.over, self.given_up, self.cut_off = np.zeros((3, count), bool)
        self.returns = np.zeros((count, view.rewards.shape[1]), np.float32)
        self._opening_plies = starts.moves.shape[1]

    def games(self, names: tuple[str, str], digests: list[str]) -> list[PlayedGame]:
        """The finished games; `names` begins with the player that moved first."""
        openers = np.take_along_axis(self.returns, self.opener[:, None], axis=1)[:, 0]
        others = (self.returns.sum(axis=1) - openers) / (self.returns.shape[1] - 1)
        # Rounding must not turn a draw into a win.
        points = (0.5 + 0.5 * np.sign(np.round(openers - others, 6))).tolist()
        ends = np.select([self.given_up, self.cut_off], ["given up", "cut off"], "over").tolist()
        return [
            PlayedGame(*names, tuple(moves), scored, self._opening_plies, digest, end)
            for moves, scored, digest, end in zip(self.moves, points, digests, ends, strict=True)
        ]


def _choose(shown: EnvState, half: _Half, players: tuple[Contestant, Contestant], key: Array) -> np.ndarray[Any, Any]:
    """Actions `[B]` of the players to move.

    A `Player` sees the whole batch, as `shown`, if it is to move in any running game; its actions in other games are
    ignored. A `MovesPlayer` sees only the games in which it is to move.
    """
    firsts = np.asarray((half.view.player == half.opener) == half.opens)
    actions = np.zeros(len(firsts), np.int32)
    for player, turn in zip(players, (firsts, ~firsts), strict=True):
        mine = np.flatnonzero(turn & ~half.over)
        if not len(mine):
            continue
        if isinstance(player, MovesPlayer):
            states, legal = jax.device_get(half.states), np.asarray(half.view.legal)
            turns = [Turn(tuple(half.moves[i]), jax.tree.map(itemgetter(i), states), legal[i]) for i in mine]
            actions[mine] = player.choose_after(turns)
        else:
            actions = np.where(turn, np.asarray(player.choose(key, shown)), actions)
    return actions


def _digests(observations: np.ndarray[Any, Any]) -> list[str]:
    """Short digests of B observations."""
    return [hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in observations]
