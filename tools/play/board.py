"""A board as plain values: who stands where, what is written there, and which squares mean which action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

Square = tuple[int, int]
"""Row from the top, column from the left."""


class Drawing(NamedTuple):
    """A board."""

    owner: np.ndarray[Any, Any]
    """`[H, W]` int8: 0 for a stone or piece of the player who began, 1 for one of the other, -1 for none."""
    text: tuple[tuple[str, ...], ...]
    """`[H][W]`, what is written in each square; empty for stones."""
    rows: tuple[str, ...]
    """The labels of rows, from the top."""
    columns: tuple[str, ...]
    """The labels of columns, from the left."""
    squares: Mapping[int, tuple[Square, ...]]
    """The squares of each legal action: where a piece moves from and to, or where a stone may be put (any of them)."""
    moves_pieces: bool = False
    """Whether actions move pieces from a square to another, as in chess."""
    hands: int = 0
    """Columns at the left, for the second player, and as many at the right, for the first, that show captured pieces
    which may be dropped.
    """

    @property
    def size(self) -> Square:
        """Rows and columns."""
        return int(self.owner.shape[0]), int(self.owner.shape[1])

    def actions_at(self, square: Square, origin: Square | None = None) -> list[int]:
        """The legal actions that a click on a square may mean; with an `origin`, those of its piece that go there."""
        if origin is not None:
            return [action for action, squares in self.squares.items() if squares == (origin, square)]
        ends = 1 if self.moves_pieces else None
        return [action for action, squares in self.squares.items() if square in squares[:ends]]

    def in_hand(self, square: Square) -> bool:
        """Whether a square is one of captured pieces, beside the board."""
        return not self.hands <= square[1] < self.size[1] - self.hands
