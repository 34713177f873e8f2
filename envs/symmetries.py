"""Symmetries of the games: changes of coordinates that training may apply to any position.

A symmetry keeps the rules: legal moves, results, and whose turn it is. Chess, shogi and their small relatives
get none: castling or the set-up of the pieces breaks the mirror, so mirrored positions are not theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np

from podzero.types import Array, Symmetry


def symmetries_of(name: str) -> Sequence[Symmetry]:
    """The symmetries of a game besides the identity."""
    return _SYMMETRIES[name]() if name in _SYMMETRIES else []


def _mirror(board: Array) -> Array:
    """Left to right, `[rows, columns, ...]`."""
    return jnp.flip(board, axis=1)


def _half_turn(board: Array) -> Array:
    return jnp.flip(board, axis=(0, 1))


def _square(size: int, extra_actions: int) -> list[Symmetry]:
    """The seven turns and reflections of a square board; actions after the cells (a pass) stay as they are."""
    moves = [_turn_and_mirror(turns, mirrored) for mirrored, turns in product((False, True), range(4))]
    return [Symmetry(move, _cell_actions(move, size, extra_actions)) for move in moves[1:]]


def _turn_and_mirror(turns: int, mirrored: bool) -> Callable[[Array], Array]:
    def move(board: Array) -> Array:
        turned = jnp.rot90(board, turns, axes=(0, 1))
        return _mirror(turned) if mirrored else turned

    return move


def _cell_actions(move: Callable[[Array], Array], size: int, extra_actions: int) -> np.ndarray[Any, Any]:
    """`[A]` int32: the cell that comes to lie on each cell when the board is moved."""
    cells = np.asarray(move(np.arange(size * size).reshape(size, size))).ravel()
    extra = np.arange(size * size, size * size + extra_actions)
    actions: np.ndarray[Any, Any] = np.concatenate([cells, extra]).astype(np.int32)
    return actions


_SYMMETRIES: dict[str, Callable[[], list[Symmetry]]] = {
    "connect_four": lambda: [Symmetry(_mirror, np.arange(7, dtype=np.int32)[::-1].copy())],
    "tic_tac_toe": lambda: _square(3, extra_actions=0),
    # Only half of these keep Othello's set-up (the others swap its colours), but all keep the rules, and the value of
    # a position is a matter of the rules.
    "othello": lambda: _square(8, extra_actions=1),
    "go_9x9": lambda: _square(9, extra_actions=1),
    "go_19x19": lambda: _square(19, extra_actions=1),
    # Each side of Hex must keep its own pair of edges, and a cell its six neighbours: the half turn is all. Transposing
    # the board would exchange the sides as well, and the swap rule belongs to one of them.
    "hex": lambda: [Symmetry(_half_turn, _cell_actions(_half_turn, 11, extra_actions=1))],
}
