"""One game between people and players: a line of moves, and a place in it that may be stepped through."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from podzero.envs.notation import Notation, NotationError, notation_of
from podzero.protocols import Env
from podzero.types import EnvState, View


class Position(NamedTuple):
    """One position of the line."""

    state: EnvState
    """Without a batch axis."""
    view: View
    """Of the state, on the host."""


class Session:
    """A game from its start: `moves` has been played, and `ply` of them lead to the position that is shown.

    Args:
      env: a game of two players, or of one.
      seed: of the start, which in some games decides who moves first.
    """

    def __init__(self, env: Env, seed: int = 0) -> None:
        self.env = env
        self.notation: Notation = notation_of(env.spec)
        self.moves: list[int] = []
        self.ply = 0
        """Moves before the position that is shown."""
        self._step, self._view = _programs(cast(Hashable, env))
        self._positions = [self._position(env.init(jax.random.key(seed)))]

    @property
    def position(self) -> Position:
        """The position that is shown."""
        return self._positions[self.ply]

    @property
    def over(self) -> bool:
        """Whether the game is over in the position that is shown."""
        return bool(self.position.view.done)

    @property
    def player(self) -> int:
        """The player to move in the position that is shown: 0 or 1."""
        return int(self.position.view.player)

    def turn_at(self, ply: int) -> int:
        """0 if the player who began the game moves in the position after so many moves, otherwise 1."""
        return self.turn_of(int(self._positions[ply].view.player))

    def turn_of(self, player: int) -> int:
        """0 for the player who began the game, 1 for the other; in some games that is drawn at the start."""
        return int(player != int(self._positions[0].view.player))

    @property
    def legal(self) -> list[int]:
        """The legal actions of the position that is shown; none once the game is over."""
        return [] if self.over else np.flatnonzero(self.position.view.legal).tolist()

    @property
    def last_move(self) -> int | None:
        """The action that led to the position that is shown."""
        return self.moves[self.ply - 1] if self.ply else None

    def name(self, action: int) -> str:
        """The name of a legal action of the position that is shown."""
        return self.notation.name(self.position.state, action)

    def names(self) -> list[str]:
        """The names of all moves of the line."""
        return [self.notation.name(self._positions[ply].state, move) for ply, move in enumerate(self.moves)]

    def play(self, action: int) -> None:
        """Plays a move in the position that is shown; moves that followed there are dropped.

        Raises:
          NotationError: it is illegal, or the game is over.
        """
        if self.over:
            raise NotationError(f"the game is over: {self.result}")
        if not 0 <= action < len(self.position.view.legal) or not self.position.view.legal[action]:
            raise NotationError(f"move {action} is illegal in this position")
        played = self._position(self._step(self.position.state, np.int32(action)))
        self.moves[self.ply :] = [action]
        self._positions[self.ply + 1 :] = [played]
        self.ply += 1

    def play_named(self, name: str) -> None:
        """Plays the move of this name.

        Raises:
          NotationError: no legal move has this name.
        """
        action = self.notation.action(self.position.state, name)
        if action not in self.legal and not self.over:
            raise NotationError(f"'{name}' is illegal in this position")
        self.play(action)

    def take_back(self, plies: int = 1) -> None:
        """Removes the last moves before the position that is shown, and what followed them."""
        self.ply = max(0, self.ply - plies)
        del self.moves[self.ply :], self._positions[self.ply + 1 :]

    def show(self, ply: int) -> None:
        """Shows the position after so many moves of the line."""
        self.ply = min(max(ply, 0), len(self.moves))

    def start_with(self, moves: Iterable[int]) -> None:
        """Begins a new game with these moves.

        Raises:
          NotationError: one is illegal; the moves before it have been played.
        """
        self.take_back(self.ply)
        for number, move in enumerate(moves):
            try:
                self.play(move)
            except NotationError as error:
                raise NotationError(f"move {number + 1}: {error}") from None

    def copy(self) -> Session:
        """Another session with the moves before the position that is shown."""
        other = Session.__new__(Session)
        other.__dict__ |= self.__dict__
        other.moves = self.moves[: self.ply]
        other._positions = self._positions[: self.ply + 1]
        return other

    def read(self, text: str) -> list[int]:
        """The actions of moves that are named in order from the start, separated by spaces or commas.

        Raises:
          NotationError: one has no such name, or is illegal.
        """
        read = Session(self.env)
        for number, name in enumerate(text.replace(",", " ").split()):
            try:
                read.play_named(name)
            except NotationError as error:
                raise NotationError(f"move {number + 1}: {error}") from None
        return read.moves

    @property
    def result(self) -> str:
        """How the game ended, in words; empty while it goes on."""
        if not self.over:
            return ""
        if self.position.view.truncated:
            return f"cut off after {self.ply} moves"
        rewards = self.position.view.rewards
        if self.env.spec.players == 1:
            return f"over, reward {rewards[0]:g}"
        if rewards[0] == rewards[1]:
            return "draw"
        return f"{('first', 'second')[self.turn_of(int(np.argmax(rewards)))]} player wins"

    def _position(self, state: EnvState) -> Position:
        return Position(state, jax.device_get(self._view(state)))


@lru_cache(maxsize=16)
def _programs(env: Env) -> tuple[Callable[[EnvState, Any], EnvState], Callable[[EnvState], View]]:
    """The compiled `step` and `view`, which all sessions of a game share."""
    return jax.jit(env.step), jax.jit(env.view)
