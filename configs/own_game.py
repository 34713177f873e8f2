"""Domineering: two players place dominoes on a board in turn; a player who cannot place one loses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SIZE = 5


class Domineering:
    """Player 0 places vertical dominoes, player 1 horizontal ones; an action is the number of a domino's first cell."""

    num_actions = SIZE * SIZE
    players = 2

    def reset(self, seed: int) -> None:
        """Clears the board. The game has no chance events, so the seed is not used."""
        self.taken = np.zeros((SIZE, SIZE), bool)
        self.mover = 0

    def step(self, action: int) -> None:
        """Covers a cell and the one below it (player 0) or to its right (player 1)."""
        row, column = divmod(action, SIZE)
        self.taken[row, column] = True
        self.taken[(row + 1, column) if self.mover == 0 else (row, column + 1)] = True
        self.mover = 1 - self.mover

    def legal_actions(self) -> npt.NDArray[np.intp]:
        """The first cells of all places where both cells are free."""
        free = ~self.taken
        fits = np.zeros_like(free)
        if self.mover == 0:
            fits[:-1] = free[:-1] & free[1:]
        else:
            fits[:, :-1] = free[:, :-1] & free[:, 1:]
        return np.flatnonzero(fits)

    def observation(self) -> npt.NDArray[np.bool_]:
        """A board `[rows, columns, planes]`: the covered cells, and whose turn it is."""
        return np.stack([self.taken, np.full((SIZE, SIZE), self.mover == 0)], axis=-1)

    def player(self) -> int:
        """The player to move."""
        return self.mover

    def done(self) -> bool:
        """Whether the player to move has no legal action."""
        return len(self.legal_actions()) == 0

    def rewards(self) -> tuple[float, float]:
        """Zero until the end; then -1 for the player to move and +1 for the other."""
        if not self.done():
            return 0.0, 0.0
        return (-1.0, 1.0) if self.mover == 0 else (1.0, -1.0)

    def clone(self) -> Domineering:
        """A copy with its own board."""
        twin = Domineering()
        twin.taken, twin.mover = self.taken.copy(), self.mover
        return twin
