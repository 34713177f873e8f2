"""One game, move by move: a line of named moves, and a place in it that is shown and may be stepped through."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from copy import copy
from functools import lru_cache
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from podzero.envs import notation_for
from podzero.envs.notation import Notation, NotationError, names_in_text
from podzero.protocols import Env
from podzero.types import EnvState, View


class ShownPosition(NamedTuple):
    """One position of the line, on the host and without a batch axis."""

    state: EnvState
    view: View
    returns: np.ndarray[Any, Any]
    """`[2]` float32, what both players of the environment got on the way to it."""


class PlayableGame:
    """A game from its beginning: `moves` have been played, and `ply` of them lead to the position that is shown.

    Everything that is asked of a game concerns the position that is shown, which is the last one after each move.

    Args:
      env: a game of two players, or of one.
      seed: of the beginning, which in some games decides who moves first.
    """

    def __init__(self, env: Env, seed: int = 0) -> None:
        self.env = env
        self.notation: Notation = notation_for(env)
        self.moves: list[int] = []
        """All actions of the line."""
        self.ply = 0
        """Moves before the position that is shown."""
        self._step, self._view = _programs(cast(Hashable, env))
        self._beginning = self._position(env.init(jax.random.key(seed)), np.zeros(2, np.float32))
        self._positions = [self._beginning]

    def restart(self, moves: Iterable[int] = (), state: EnvState | None = None) -> None:
        """Begins a new game with these moves; from `state` instead of the beginning, if it is given.

        Raises:
          NotationError: a move is illegal; the moves before it have been played.
        """
        start = self._beginning if state is None else self._position(state, np.zeros(2, np.float32))
        self.moves, self._positions, self.ply = [], [start], 0
        for number, move in enumerate(moves):
            try:
                self.play(move)
            except NotationError as error:
                raise NotationError(f"move {number + 1}: {error}") from None

    def copy(self) -> PlayableGame:
        """Another game with the moves before the position that is shown."""
        other = copy(self)
        other.moves, other._positions = self.moves[: self.ply], self._positions[: self.ply + 1]
        return other

    @property
    def beginning(self) -> EnvState:
        """The initial state of the game."""
        return self._beginning.state

    @property
    def from_beginning(self) -> bool:
        """Whether the line starts at the beginning, not at a state that was given."""
        return self._positions[0] is self._beginning

    @property
    def position(self) -> ShownPosition:
        """The position that is shown."""
        return self._positions[self.ply]

    @property
    def state(self) -> EnvState:
        """Its state."""
        return self.position.state

    @property
    def over(self) -> bool:
        """Whether the game is over, or no action is legal."""
        return bool(self.position.view.done) or not self.position.view.legal.any()

    @property
    def legal_mask(self) -> np.ndarray[Any, Any]:
        """`[A]` bool, the legal actions; none once the game is over."""
        return np.asarray(self.position.view.legal) & (not self.over)

    @property
    def legal(self) -> list[int]:
        """The legal actions; none once the game is over."""
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
        """The `turn` in the position after so many moves."""
        return int(self._positions[ply].view.player != self._beginner)

    @property
    def points(self) -> float:
        """What the player who began the game has got."""
        return float(self.position.returns[self._beginner])

    @property
    def result(self) -> str:
        """How the game ended, in words; empty while it goes on."""
        view, points = self.position.view, self.points
        if not self.over:
            return ""
        if view.truncated:
            return f"cut off after {self.ply} moves"
        if self.env.spec.players == 1:
            return f"over, return {points:g}"
        if not view.done:
            return "no legal move"
        return "draw" if points == 0 else f"{'first' if points > 0 else 'second'} player wins"

    @property
    def last_move(self) -> int | None:
        """The action that led to the position that is shown."""
        return self.moves[self.ply - 1] if self.ply else None

    @property
    def names(self) -> list[str]:
        """The names of all moves of the line."""
        return [self.notation.name(self._positions[ply].state, move) for ply, move in enumerate(self.moves)]

    def name(self, action: int) -> str:
        """The name of a legal action."""
        return self.notation.name(self.state, action)

    def names_of(self, line: Iterable[int]) -> list[str]:
        """The names of moves that would follow the position that is shown, up to the end of the game."""
        ahead, names, last = self.copy(), list[str](), None
        for action in line:
            if last is not None:
                ahead.play(last)
            if ahead.over:
                break
            names.append(ahead.name(action))
            last = action
        return names

    def action(self, name: str) -> int:
        """The legal action of this name.

        Raises:
          NotationError: there is no such move, it is illegal, or the game is over.
        """
        if self.over:
            raise NotationError(f"'{name}': the game is over: {self.result}")
        action = self.notation.action(self.state, name)
        if not self.legal_mask[action]:
            raise NotationError(f"'{name}' is illegal in this position")
        return action

    def read(self, text: str) -> list[int]:
        """The actions of moves that are named in order from the beginning, separated by spaces or commas.

        Raises:
          NotationError: one has no such name, or is illegal.
        """
        line = self.copy()
        line.restart()
        for number, name in enumerate(names_in_text(text)):
            try:
                line.play(name)
            except NotationError as error:
                raise NotationError(f"move {number + 1}: {error}") from None
        return line.moves

    def play(self, move: int | str) -> None:
        """Plays a move, an action or its name; moves that followed the position that is shown are dropped.

        Raises:
          NotationError: it is illegal, no move has this name, or the game is over.
        """
        action = self.action(move) if isinstance(move, str) else int(move)
        if self.over:
            raise NotationError(f"move {action}: the game is over: {self.result}")
        if not 0 <= action < len(self.legal_mask) or not self.legal_mask[action]:
            raise NotationError(f"move {action} is illegal in this position")
        after = self._position(self._step(self.state, np.int32(action)), self.position.returns)
        self._keep(self.ply)
        self.moves.append(action)
        self._positions.append(after)
        self.ply += 1

    def resume(self, state: EnvState) -> None:
        """Goes on from `state`, in which the position is the one that is shown and the game is not over."""
        resumed = self._position(state, self.position.returns)
        self._keep(self.ply)
        self._positions[-1] = resumed

    def take_back(self, plies: int = 1) -> int:
        """Removes the last moves before the position that is shown, and what followed; returns how many there were."""
        taken = min(plies, self.ply)
        self._keep(self.ply - taken)
        return taken

    def show(self, ply: int) -> None:
        """Shows the position after so many moves of the line."""
        self.ply = min(max(ply, 0), len(self.moves))

    def _keep(self, plies: int) -> None:
        """Drops all moves but the first ones."""
        self.ply = plies
        del self.moves[plies:], self._positions[plies + 1 :]

    @property
    def _beginner(self) -> int:
        """The player of the environment who began; in some games that is drawn."""
        return int(self._positions[0].view.player)

    def _position(self, state: EnvState, returns: np.ndarray[Any, Any]) -> ShownPosition:
        state, view = jax.device_get((state, self._view(state)))
        return ShownPosition(state, view, returns + view.rewards)


@lru_cache(maxsize=16)
def _programs(env: Env) -> tuple[Callable[[EnvState, Any], EnvState], Callable[[EnvState], View]]:
    """The compiled `step` and `view`, which all games of an environment share."""
    return jax.jit(env.step), jax.jit(env.view)
