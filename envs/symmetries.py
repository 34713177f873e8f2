"""Symmetries of the games: board transformations by which training augments positions.

A symmetry preserves the rules: legal moves, results, and whose turn it is. It may change the initial position, as in
Othello and Gardner chess.

Three games have none:
  `chess`: castling distinguishes left and right.
  `shogi`: its rules are mirror-symmetric, but pgx 2.6.0 wrongly allows some mates by a dropped pawn near one corner,
    which it forbids near the other.
  `animal_shogi`: its rules are mirror-symmetric, but pgx's observation leaves out one file of each past position. The
    mirrored game leaves out another, so its observation is not a function of the original one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np

from podzero.core.types import Array, Symmetry


def symmetries_of(name: str) -> Sequence[Symmetry]:
    """The symmetries of a game, without the identity."""
    return _SYMMETRIES[name]() if name in _SYMMETRIES else []


def _mirror(board: Array) -> Array:
    """Swaps left and right of a board `[rows, columns, ...]`."""
    return jnp.flip(board, axis=1)


def _half_turn(board: Array) -> Array:
    return jnp.flip(board, axis=(0, 1))


def _square(size: int, extra_actions: int) -> list[Symmetry]:
    """The seven rotations and reflections of a square board; the extra actions after the cells stay the same."""
    transforms = [_rotate_and_mirror(turns, mirrored) for mirrored, turns in product((False, True), range(4))]
    return [Symmetry(transform, _cell_actions(transform, size, extra_actions)) for transform in transforms[1:]]


def _rotate_and_mirror(quarter_turns: int, mirrored: bool) -> Callable[[Array], Array]:
    def transform(board: Array) -> Array:
        rotated = jnp.rot90(board, quarter_turns, axes=(0, 1))
        return _mirror(rotated) if mirrored else rotated

    return transform


def _cell_actions(transform: Callable[[Array], Array], size: int, extra_actions: int) -> np.ndarray[Any, Any]:
    """`[A]` int32: for each cell of the transformed board, the number of the cell that it was before."""
    cells = np.asarray(transform(np.arange(size * size).reshape(size, size))).ravel()
    extra = np.arange(size * size, size * size + extra_actions)
    actions: np.ndarray[Any, Any] = np.concatenate([cells, extra]).astype(np.int32)
    return actions


def _gardner_chess_actions() -> np.ndarray[Any, Any]:
    """`[A]` int32 of the left-right mirror; pgx numbers actions `[file, rank, kind of move]` = `[5, 5, 49]`."""
    kinds = np.r_[
        [0, 2, 1, 3, 5, 4, 6, 8, 7],  # three underpromotions, each forward, to the right and to the left
        9:17,  # along the file
        24:16:-1,  # along the rank: 4 to 1 to the left, then 1 to 4 to the right
        40:24:-1,  # along the diagonals: eight to the left, then eight to the right in the opposite order
        45:49, 41:45,  # four knight's moves to the left, then to the right in the same order
    ]  # fmt: skip
    actions: np.ndarray[Any, Any] = np.arange(5 * 5 * 49, dtype=np.int32).reshape(5, 5, 49)[::-1, :, kinds].ravel()
    return actions


_SYMMETRIES: dict[str, Callable[[], list[Symmetry]]] = {
    "connect_four": lambda: [Symmetry(_mirror, np.arange(7, dtype=np.int32)[::-1].copy())],
    "tic_tac_toe": lambda: _square(3, extra_actions=0),
    # Half of these swap the colours of Othello's initial set-up. All preserve the rules and so the value of a position.
    "othello": lambda: _square(8, extra_actions=1),
    **{f"go_{size}x{size}": partial(_square, size, extra_actions=1) for size in (7, 9, 19)},
    # A symmetry of Hex must preserve each player's pair of edges and the six neighbours of a cell: only the half turn
    # does. Transposing the board would also swap the players, but the swap rule applies to only one of them.
    "hex": lambda: [Symmetry(_half_turn, _cell_actions(_half_turn, 11, extra_actions=1))],
    # Without castling, left and right are alike.
    "gardner_chess": lambda: [Symmetry(_mirror, _gardner_chess_actions())],
}
