"""Othello on bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.core.types import Array
from podzero.envs.boards.bits import EMPTY, Bits, Distance, constant, single, union
from podzero.envs.boards.rules import BoardGame, PlyResult, as_both_see

_SIZE = 8
_PASS = _SIZE * _SIZE
_SQUARES = np.arange(_PASS, dtype=np.int32)
_INNER_COLUMNS = constant(0x7E7E7E7E7E7E7E7E)
_ALL = constant(2**64 - 1)
_DISTANCES = np.array([1, 8, 7, 9], np.uint32)
"""Distances to the neighbours in four directions; the other four are opposite."""
_INSIDE = Bits(*np.array([_INNER_COLUMNS, _ALL, _INNER_COLUMNS, _INNER_COLUMNS], np.uint32).T)
"""The squares that a line in each direction may cross; over others it would wrap around the left or right edge."""


class OthelloBoard(NamedTuple):
    """The discs, and whether the last ply was a pass."""

    mine: Bits
    """Those of the player to move."""
    theirs: Bits
    passed: Array
    """`[]` bool."""


class Othello(BoardGame):
    """`Env` of Othello; an action is a square, or as the last one a pass, which is legal only if no square is."""

    name = "othello"
    max_plies = 2 * (_SIZE * _SIZE - 4) + 2  # each disc after a pass, and two passes

    def start(self) -> OthelloBoard:
        """The four discs in the middle."""
        return OthelloBoard(constant(1 << 28 | 1 << 35), constant(1 << 27 | 1 << 36), np.zeros((), bool))

    def play(self, board: OthelloBoard, action: Array) -> PlyResult:
        """Places a disc and turns the enclosed ones, or passes."""
        disc = single(action)
        turned = _turned(disc, board.mine, board.theirs)
        mine, theirs = board.mine | disc | turned, board.theirs & ~turned
        passes = action == _PASS
        done = ~(~(mine | theirs)).any() | ~theirs.any() | (board.passed & passes)
        lead = jnp.sign(mine.size() - theirs.size()).astype(jnp.int8)
        return PlyResult(OthelloBoard(theirs, mine, passes), jnp.where(done, lead, 0).astype(jnp.int8), done)

    def legal(self, board: OthelloBoard) -> jax.Array:
        """The squares from which discs are enclosed, or the pass."""
        squares = _moves(board.mine, board.theirs)
        return jnp.append(squares.members(_SQUARES), ~squares.any())

    def observe(self, board: OthelloBoard) -> jax.Array:
        """Own and other discs, `[8, 8, 2]`."""
        shape = _SQUARES.reshape(_SIZE, _SIZE)
        return jnp.stack([board.mine.members(shape), board.theirs.members(shape)], axis=-1)

    def ownership(self, board: OthelloBoard, done: Array) -> jax.Array:
        """The discs of each player."""
        mine, theirs = (discs.members(_SQUARES).astype(jnp.int8) for discs in (board.mine, board.theirs))
        return as_both_see(mine - theirs)


def _turned(disc: Bits, mine: Bits, theirs: Bits) -> Bits:
    """The discs of the opponent between `disc` and one's own."""
    found = EMPTY
    for move in (Bits.up, Bits.down):
        lines = _lines(disc, theirs, move)
        found = found | lines.when((move(lines, _DISTANCES) & mine).any())
    return found.joined()


def _moves(mine: Bits, theirs: Bits) -> Bits:
    """The empty squares from which discs of the opponent are enclosed."""
    ends = union(move(_lines(mine, theirs, move), _DISTANCES) for move in (Bits.up, Bits.down))
    return ends.joined() & ~(mine | theirs)


def _lines(start: Bits, over: Bits, move: Callable[[Bits, Distance], Bits]) -> Bits:
    """The squares `over` which lines run from `start`, for each of four directions."""
    allowed = over & _INSIDE
    lines = move(start, _DISTANCES) & allowed
    # A line crosses at most six discs.
    for _ in range(_SIZE - 3):
        lines = lines | (move(lines, _DISTANCES) & allowed)
    return lines
