"""Connect four on bits."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.core.types import Array
from podzero.envs.boards.bits import EMPTY, Bits, constant, union
from podzero.envs.boards.rules import BoardGame, PlyResult

_HEIGHT, _WIDTH = 6, 7
_COLUMN = _HEIGHT + 1
"""Bits of a column, from the bottom up; the last one stays empty, so that no line runs into the next column."""
_SQUARES = np.array([[x * _COLUMN + _HEIGHT - 1 - y for x in range(_WIDTH)] for y in range(_HEIGHT)], np.int32)
"""The bit of each square of an observation, `[6, 7]`, the top row first."""
_TOPS = _SQUARES[0]
_LINES = (1, _COLUMN, _COLUMN - 1, _COLUMN + 1)
"""Distances between neighbours in the four directions of lines."""
_FULL = constant(sum(1 << int(square) for square in _SQUARES.ravel()))


class ConnectFourBoard(NamedTuple):
    """The stones."""

    mine: Bits
    """Those of the player to move."""
    theirs: Bits


class ConnectFour(BoardGame):
    """`Env` of connect four; an action is a column."""

    name, max_plies = "connect_four", _HEIGHT * _WIDTH

    def start(self) -> ConnectFourBoard:
        """The empty board."""
        return ConnectFourBoard(EMPTY, EMPTY)

    def play(self, board: ConnectFourBoard, action: Array) -> PlyResult:
        """Drops a stone into a column."""
        occupied = board.mine | board.theirs
        column = jnp.arange(_WIDTH) == action
        # Find the first free square of each column and keep that of the column played.
        stone = Bits(jnp.uint32(0), jnp.uint32(0))
        for x in range(_WIDTH):
            held = constant((2**_HEIGHT - 1) << x * _COLUMN)
            free = ((occupied & held).up(1) | constant(1 << x * _COLUMN)) & ~occupied & held
            stone = stone | free.when(column[x])
        mine = board.mine | stone
        won = _has_line(mine)
        done = won | ~(_FULL & ~(mine | board.theirs)).any()
        return PlyResult(ConnectFourBoard(board.theirs, mine), won.astype(jnp.int8), done)

    def legal(self, board: ConnectFourBoard) -> jax.Array:
        """The columns that are not full."""
        return ~(board.mine | board.theirs).members(_TOPS)

    def observe(self, board: ConnectFourBoard) -> jax.Array:
        """Own and other stones, `[6, 7, 2]`."""
        return jnp.stack([board.mine.members(_SQUARES), board.theirs.members(_SQUARES)], axis=-1)


def _has_line(stones: Bits) -> jax.Array:
    """Whether four stones stand in a line, `[]` bool."""
    # Four in a line are two pairs, two squares apart.
    pairs = {distance: stones & stones.down(distance) for distance in _LINES}
    return union(pair & pair.down(2 * distance) for distance, pair in pairs.items()).any()
