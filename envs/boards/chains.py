"""Stones that are connected: each stone of a chain has the number of one of its squares.

A board is `[S]` integers, row by row: positive for the chains of the player to move, negative for the opponent's, zero
for empty squares.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from podzero.types import Array

Step = tuple[int, int]
"""Rows and columns from a square to a neighbour."""


def beside(squares: Array, size: int, step: Step, outside: int = 0) -> jax.Array:
    """What each square's neighbour has: entry i is that of the square one `step` from square i.

    Args:
      squares: `[S]` of a board of `size` rows and columns.
      size: of the board.
      step: to the neighbour, at most one row and one column.
      outside: what neighbours beyond the edge have.
    """
    board = jnp.pad(squares.reshape(size, size), 1, constant_values=outside)
    rows, columns = 1 + step[0], 1 + step[1]
    return board[rows : rows + size, columns : columns + size].reshape(-1)


def chains_beside(board: Array, square: Array, size: int, steps: Sequence[Step]) -> list[jax.Array]:
    """The chains of the neighbours of a square, each `[]`; zero for none.

    Args:
      board: `[S]`.
      square: `[]` int32; its neighbours are found by comparison, which is no slower than a lookup on a vector unit.
      size: rows and columns of the board.
      steps: to the neighbours.
    """
    row, column, numbers, found = square // size, square % size, jnp.arange(size * size), []
    for down, right in steps:
        inside = (row + down >= 0) & (row + down < size) & (column + right >= 0) & (column + right < size)
        neighbour = jnp.where(inside, square + down * size + right, -1)
        found.append(jnp.sum(jnp.where(numbers == neighbour, board, 0), dtype=board.dtype))
    return found


def placed(board: Array, square: Array, size: int, steps: Sequence[Step]) -> jax.Array:
    """The board with a new stone of the player to move, joined with its own neighbours to one chain.

    Args:
      board: `[S]`.
      square: `[]` int32; beyond the board for no stone.
      size: rows and columns of the board.
      steps: to all neighbours.
    """
    joined = jnp.arange(size * size) == square
    for chain in chains_beside(board, square, size, steps):
        joined |= (board == chain) & (chain > 0) & (square < size * size)
    return jnp.where(joined, (square + 1).astype(board.dtype), board)
