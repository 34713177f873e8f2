"""A game that people and engines play move by move and step through."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from copy import copy
from functools import lru_cache
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from podzero.core.protocols import Env
from podzero.core.types import EnvState, View
from podzero.envs import GameOfChance, notation_for
from podzero.envs.boards.chess import CHESS_SIZES
from podzero.envs.boards.go import GO_GAMES, Go, unended
from podzero.envs.boards.hex import HEX_GAMES
from podzero.envs.notation import Notation, NotationError, names_in_text, notation_errors


class ShownPosition(NamedTuple):
    """A position on the host, without a batch axis."""

    state: EnvState
    view: View
    returns: np.ndarray[Any, Any]
    """`[P]` float32, the sum of each player's rewards so far."""


BLACK_FIRST, WHITE_FIRST = ("Black", "White"), ("White", "Black")
SIDES: dict[str, tuple[str, str]] = {
    "connect_four": ("Red", "Yellow"), "othello": BLACK_FIRST, "shogi": BLACK_FIRST,
    **dict.fromkeys([*GO_GAMES, *HEX_GAMES], BLACK_FIRST), **dict.fromkeys(CHESS_SIZES, WHITE_FIRST),
}  # fmt: skip
"""The names of the two players, the one who begins first, in games where they have names."""


class PlayableGame:
    """A game as a list of moves, of which the first `ply` lead to the position shown.

    All properties and methods refer to the position shown. Playing a move shows the position after it. Moves that are
    unknown or illegal raise `NotationError`. In some games the `seed` of the initial state decides who moves first.
    """

    def __init__(self, env: Env, seed: int = 0) -> None:
        self.env = env
        self.sides = SIDES.get(env.spec.name, ("first player", "second player"))
        """The names of the player who began the game and of the other one."""
        zero_sum = env.spec.players == 2 and env.spec.values == 1
        self.has_win_rates = zero_sum and not isinstance(env, GameOfChance)
        """Whether values are win rates: in backgammon, for example, they are also of double wins."""
        self.notation: Notation = notation_for(env)
        self.moves: list[int] = []
        """All actions, including those after the position shown."""
        self.ply = 0
        """Number of moves before the position shown."""
        self._step, self._view = _programs(cast(Hashable, env))
        self.beginning = self._position(env.init(jax.random.key(seed)))
        """The game's initial position."""
        self._positions = [self.beginning]

    def restart(self, moves: Iterable[int | str] = (), state: EnvState | None = None) -> None:
        """Starts a new game from `state`, or the initial one, and plays `moves` up to the first that is illegal."""
        start = self.beginning if state is None else self._position(state)
        self.moves, self._positions, self.ply = [], [start], 0
        for number, move in enumerate(moves, 1):
            with notation_errors(NotationError, f"move {number}"):
                self.play(move)

    def copy(self) -> PlayableGame:
        """A copy of the game up to the position shown."""
        other = copy(self)
        other.moves, other._positions = self.moves[: self.ply], self._positions[: self.ply + 1]
        return other

    @property
    def from_beginning(self) -> bool:
        """Whether the game started from the initial state, not from a given one."""
        return self._positions[0] is self.beginning

    @property
    def position(self) -> ShownPosition:
        """The position shown."""
        return self._positions[self.ply]

    @property
    def state(self) -> EnvState:
        """The environment's state in the position shown."""
        return self.position.state

    @property
    def over(self) -> bool:
        """Whether the game is over or no action is legal."""
        return bool(self.position.view.done) or not self.position.view.legal.any()

    @property
    def legal_mask(self) -> np.ndarray[Any, Any]:
        """`[A]` bool, whether each action is legal; all False when the game is over."""
        return np.asarray(self.position.view.legal) & (not self.over)

    @property
    def legal(self) -> list[int]:
        """The legal actions, ascending; empty when the game is over."""
        actions: list[int] = np.flatnonzero(self.legal_mask).tolist()
        return actions

    @property
    def turn(self) -> int:
        """0 if the player who began the game is to move, otherwise 1."""
        return self.turn_at(self.ply)

    @property
    def first_to_move(self) -> bool:
        """Whether the player who began the game is to move."""
        return self.turn == 0

    def turn_at(self, ply: int) -> int:
        """`turn` in the position after the first `ply` moves."""
        return int(self._positions[ply].view.player != self._beginner)

    @property
    def points(self) -> float:
        """The sum of rewards of the player who began the game."""
        return float(self.position.returns[self._beginner])

    @property
    def final_score(self) -> float:
        """The score of the player who began, after all moves: 1, 0.5 or 0; NaN unless the rules end the game there."""
        last = self._positions[-1]
        return float(last.returns[self._beginner]) / 2 + 0.5 if last.view.done and not last.view.truncated else math.nan

    @property
    def result(self) -> str:
        """The result in words, such as "Black wins"; empty until the game is over."""
        view, points = self.position.view, self.points
        if not self.over:
            return ""
        if view.truncated:
            return f"cut off after {self.ply} moves"
        if self.env.spec.players == 1:
            return f"over, return {points:g}"
        if not view.done:
            return "no legal move"
        if self.env.spec.values > 1:
            return f"over, returns {', '.join(f'{each:g}' for each in self.position.returns)}"
        return "draw" if points == 0 else f"{self.sides[points < 0]} wins"

    def meaning(self, value: float) -> str:
        """A value for the player to move in words: a win rate where it is one."""
        rate = f"{self.sides[self.turn]}'s win rate {50 * (1 + value):.1f}%"
        return rate if self.has_win_rates else f"value {value:+.3f}"

    @property
    def last_move(self) -> int | None:
        """The action before the position shown; None at the start."""
        return self.moves[self.ply - 1] if self.ply else None

    @property
    def names(self) -> list[str]:
        """The names of all `moves`."""
        return [self.notation.name(self._positions[ply].state, move) for ply, move in enumerate(self.moves)]

    def name(self, action: int) -> str:
        """The name of a legal action."""
        return self.notation.name(self.state, action)

    def names_of(self, line: Iterable[int]) -> list[str]:
        """The names of the actions of a variation, up to the end of the game."""
        ahead, names, last = self.copy(), list[str](), None
        for action in line:
            # Each move is played one round late, since the last one needs a name but no position after it.
            if last is not None:
                ahead.play(last)
            if ahead.over:
                break
            names.append(ahead.name(action))
            last = action
        return names

    def action(self, name: str) -> int:
        """The legal action called `name`."""
        if self.over:
            raise NotationError(f"'{name}': the game is over: {self.result}")
        action = self.notation.action(self.state, name)
        if not self.legal_mask[action]:
            raise NotationError(f"'{name}' is illegal in this position")
        return action

    def forbidden(self, allowed: Iterable[str], avoided: Iterable[str], none_left: str) -> np.ndarray[Any, Any]:
        """`[A]` bool, the actions with the `avoided` names, and all without an `allowed` one if there are any.

        `none_left` is the error if these are all legal actions.
        """
        allow, avoid = np.zeros_like(self.legal_mask), np.zeros_like(self.legal_mask)
        for mask, names in ((allow, allowed), (avoid, avoided)):
            mask[[self.notation.action(self.state, name) for name in names]] = True
        forbidden: np.ndarray[Any, Any] = avoid | (~allow & allow.any())
        if not (self.legal_mask & ~forbidden).any():
            raise NotationError(none_left)
        return forbidden

    def read(self, text: str) -> list[int]:
        """Converts names of moves from the initial state, separated by spaces or commas, to actions."""
        line = self.copy()
        line.restart(names_in_text(text))
        return line.moves

    def play(self, move: int | str) -> None:
        """Plays an action, given by number or name, and drops the moves that followed the position shown."""
        action = self.action(move) if isinstance(move, str) else int(move)
        if self.over:
            raise NotationError(f"move {action}: the game is over: {self.result}")
        if not 0 <= action < len(self.legal_mask) or not self.legal_mask[action]:
            raise NotationError(f"move {action} is illegal in this position")
        # First, since a simulator that fails must leave the game as it was.
        after = self._position(self._step(self.state, np.int32(action)), self.position.returns)
        self._cut(self.ply)
        self.moves.append(action)
        self._positions.append(after)
        self.ply += 1

    def resume(self, state: EnvState) -> None:
        """Replaces the state of the position shown by one in which the game is not over, and keeps the moves so far."""
        resumed = self._position(state, self._positions[self.ply - 1].returns if self.ply else 0.0)
        self._cut(self.ply)
        self._positions[-1] = resumed

    def take_back(self, plies: int = 1) -> None:
        """Removes up to `plies` moves before the position shown, and all after it."""
        self._cut(max(self.ply - plies, 0))

    def show(self, ply: int) -> None:
        """Shows the position after the first `ply` moves; clips `ply` to the game's length."""
        self.ply = min(max(ply, 0), len(self.moves))

    def _cut(self, plies: int) -> None:
        """Leaves the first `plies` moves."""
        self.ply = plies
        del self.moves[plies:], self._positions[plies + 1 :]

    @property
    def _beginner(self) -> int:
        # Not always player 0: pgx draws the player who begins.
        return int(self._positions[0].view.player)

    def _position(self, state: EnvState, returns: np.ndarray[Any, Any] | float = 0.0) -> ShownPosition:
        state, view = jax.device_get((state, self._view(state)))
        return ShownPosition(state, view, view.rewards + returns)


# Games that another program drives: in Go its colours may move out of turn, and it decides when a game is over.


def give_turn(game: PlayableGame, first: bool) -> None:
    """Lets the other colour pass in Go if it has the turn; such a pass is none of the two that end a game."""
    if game.over or game.first_to_move == first:
        return
    if not isinstance(game.env, Go):
        raise NotationError(f"it is {colour_name(game.first_to_move)}'s turn")
    game.play("pass")
    game.resume(unended(game.state, most_passes=0))


def play_on(game: PlayableGame, move: int | str) -> None:
    """Plays a move; a game of Go goes on after it."""
    game.play(move)
    if game.over and isinstance(game.env, Go):
        game.resume(unended(game.state))


def place_stones(game: PlayableGame, stones: Iterable[tuple[bool, str]]) -> None:
    """Places stones, whether the first player's and the point, in a game of Go; the other colour passes where it must.

    If one cannot be placed, the game stays as it was.
    """
    before = game.ply
    try:
        for first, point in stones:
            if point.lower() == "pass":
                raise NotationError(f"'{point}' is not a point")
            give_turn(game, first)
            play_on(game, point)
    except NotationError:
        game.take_back(game.ply - before)
        raise


def colour_name(first: bool) -> str:
    """What Go calls a player: black, who is the first, or white."""
    return "black" if first else "white"


@lru_cache(maxsize=16)
def _programs(env: Env) -> tuple[Callable[[EnvState, Any], EnvState], Callable[[EnvState], View]]:
    """The compiled `step` and `view`, shared by all games of an environment."""
    return jax.jit(env.step), jax.jit(env.view)
