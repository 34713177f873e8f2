"""The protocols of games written in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np


@runtime_checkable
class Simulator(Protocol):
    """One game for one or two players, in its current position.

    The seed of `reset` and the actions since then determine everything that the methods return. The seed may decide how
    a game starts. It may not decide what follows from a move: tree search plays clones, and would foresee it.
    """

    @property
    def num_actions(self) -> int:
        """Number of actions: an action is an integer from 0 to `num_actions - 1`. A class attribute suffices."""
        ...

    @property
    def players(self) -> int:
        """Number of players, 1 or 2. A class attribute suffices."""
        ...

    def reset(self, seed: int) -> None:
        """Starts a game; `seed` (uint32) determines all chance events."""
        ...

    def step(self, action: int) -> None:
        """Plays a legal action. Not called once the game is over."""
        ...

    def legal_actions(self) -> Sequence[int] | np.ndarray[Any, Any]:
        """The legal actions (their numbers, not a mask) of the player to move; at least one until the game is over."""
        ...

    def observation(self) -> np.ndarray[Any, Any]:
        """What the player to move sees; its shape and dtype never change, also once the game is over.

        Boards are `[rows, columns, planes]`. Networks receive bool and uint8 unchanged, all other dtypes as float32.
        """
        ...

    def player(self) -> int:
        """The player to move, 0 or 1; any value once the game is over."""
        ...

    def rewards(self) -> Sequence[float]:
        """Each player's reward for the last step, zero after `reset`: one number, or two that sum to zero."""
        ...

    def done(self) -> bool:
        """Whether the game is over."""
        ...

    def clone(self) -> Self:
        """An independent copy: changing one of the two does not change the other.

        `copy.deepcopy(self)` is always correct; copying only what a step changes is many times faster.
        """
        ...


@runtime_checkable
class LimitedSimulator(Simulator, Protocol):
    """A `Simulator` whose games may end by a limit on their length, which is no outcome."""

    def truncated(self) -> bool:
        """Whether such a limit has ended the game; `done` and `player` are then defined as well."""
        ...


@runtime_checkable
class NamedSimulator(Simulator, Protocol):
    """A `Simulator` whose actions have names by which people know them."""

    def action_name(self, action: int) -> str:
        """The name of a legal action, which no other legal action of the position has; white space is left out."""
        ...


@runtime_checkable
class RenderedSimulator(Simulator, Protocol):
    """A `Simulator` whose positions `podzero play` shows: in a video of one player, or on the page of a game of two."""

    def render(self) -> np.ndarray[Any, Any]:
        """The position as pixels `[height, width, 3]` uint8; the size never changes."""
        ...
