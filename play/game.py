"""One game that is played move by move, with names of moves, and can be taken back."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.envs.notation import Notation, NotationError, notation_of
from podzero.protocols import Env
from podzero.types import EnvState


class _Ply(NamedTuple):
    """A position, and how it was reached."""

    state: EnvState
    legal: np.ndarray[Any, Any]
    """`[A]` bool."""
    over: bool
    player: int
    """The number of the player to move."""
    returns: np.ndarray[Any, Any]
    """`[2]`, what both players got so far."""
    action: int | None
    """The last action; None at the start."""


class Game:
    """A game from its beginning, or from a given state."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.notation: Notation = notation_of(env.spec)
        self._step, self._view = jax.jit(env.step), jax.jit(env.view)
        self._plies: list[_Ply] = []
        self._start: EnvState = env.init(jax.random.key(0))
        self.restart()

    def restart(self, state: EnvState | None = None) -> None:
        """Begins a new game; from `state`, if it is given."""
        self._plies = [self._reached(self._start if state is None else state, np.zeros(2, np.float32), None)]

    @property
    def beginning(self) -> EnvState:
        """The initial state of the game."""
        return self._start

    @property
    def state(self) -> EnvState:
        """The state now."""
        return self._plies[-1].state

    @property
    def legal(self) -> np.ndarray[Any, Any]:
        """`[A]` bool, the legal actions; none once the game is over."""
        ply = self._plies[-1]
        return ply.legal & (not ply.over)

    @property
    def over(self) -> bool:
        """Whether the game is over."""
        return self._plies[-1].over

    @property
    def moves(self) -> list[int]:
        """All actions so far."""
        return [ply.action for ply in self._plies if ply.action is not None]

    @property
    def names(self) -> list[str]:
        """Their names."""
        pairs = zip(self._plies, self.moves, strict=False)
        return [self.notation.name(ply.state, action) for ply, action in pairs]

    @property
    def first_to_move(self) -> bool:
        """Whether the player to move is the one who moved first in the game."""
        return self._plies[-1].player == self._plies[0].player

    @property
    def white_to_move(self) -> bool:
        """Whether it is white's turn in chess, also after a FEN."""
        return bool(int(self.state.board.plies) % 2 == 0)

    @property
    def points(self) -> float:
        """What the player who moved first in the game got."""
        return float(self._plies[-1].returns[self._plies[0].player])

    def name(self, action: int) -> str:
        """The name of an action now."""
        return self.notation.name(self.state, action)

    def action(self, name: str) -> int:
        """The legal action with a name.

        Raises:
          NotationError: there is no such move, or it is illegal now.
        """
        if self.over:
            raise NotationError(f"'{name}': the game is over")
        action = self.notation.action(self.state, name)
        if not self.legal[action]:
            raise NotationError(f"'{name}' is illegal in this position")
        return action

    def play(self, action: int) -> None:
        """Plays a legal action."""
        assert self.legal[action], action
        state = self._step(self.state, np.int32(action))
        self._plies.append(self._reached(state, self._plies[-1].returns, action))

    def resume(self, state: EnvState) -> None:
        """Goes on from `state`, in which the position is the same and the game is not over."""
        last = self._plies.pop()
        self._plies.append(self._reached(state, last.returns, last.action))

    def take_back(self) -> bool:
        """Takes the last move back; returns False if there is none."""
        if len(self._plies) > 1:
            self._plies.pop()
            return True
        return False

    def _reached(self, state: EnvState, returns: np.ndarray[Any, Any], action: int | None) -> _Ply:
        state, view = jax.device_get((state, self._view(state)))
        over = bool(view.done) or not view.legal.any()
        return _Ply(state, view.legal, over, int(view.player), returns + view.rewards, action)
