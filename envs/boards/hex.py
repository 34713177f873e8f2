"""Hex on the 11 x 11 board, with the swap rule."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.core.types import Array
from podzero.envs.boards.rules import BoardGame, PlyResult, as_both_see, placed

_SIZE = 11
_SQUARES = _SIZE * _SIZE
_SWAP = _SQUARES
_NEIGHBOURS = ((0, -1), (1, -1), (-1, 0), (1, 0), (-1, 1), (0, 1))


class HexBoard(NamedTuple):
    """The chains, and how many plies have been played."""

    chains: Array
    """`[121]` int8, as in `podzero.envs.boards.rules`."""
    plies: Array
    """`[]` int8; the first player joins the top and the bottom row, the second the left and the right column."""


class Hex(BoardGame):
    """`Env` of Hex; an action is a square, or as the last one the swap, which is legal only as the second ply."""

    name, shape, actions = "hex", (_SIZE, _SIZE, 4), _SQUARES + 1
    max_plies = _SQUARES + 1

    def start(self) -> HexBoard:
        """The empty board."""
        return HexBoard(np.zeros(_SQUARES, np.int8), np.zeros((), np.int8))

    def play(self, board: HexBoard, action: Array) -> PlyResult:
        """Places a stone, or swaps: the opponent's first stone moves to the mirrored square and changes its owner."""
        chains = placed(board.chains, action, _SIZE, _NEIGHBOURS)
        mirrored = chains.reshape(_SIZE, _SIZE).T.reshape(-1)
        # The mirrored stone gets the number of its new square.
        numbers = jnp.arange(1, _SQUARES + 1, dtype=jnp.int8)
        chains = jnp.where(action == _SWAP, jnp.where(mirrored != 0, numbers, 0), chains)
        # Only the chain of the new stone can have joined two edges.
        won = _joins(chains, (action + 1).astype(jnp.int8), board.plies % 2 == 0)
        return PlyResult(HexBoard(-chains, board.plies + 1), won.astype(jnp.int8), won)

    def legal(self, board: HexBoard) -> jax.Array:
        """The empty squares, and the swap."""
        return jnp.append(board.chains == 0, board.plies == 1)

    def observe(self, board: HexBoard) -> jax.Array:
        """Own stones, the opponent's, whether the second player is to move, and whether the swap is legal."""
        mine, theirs = board.chains > 0, board.chains < 0
        second, swap = (jnp.broadcast_to(flag, mine.shape) for flag in (board.plies % 2 == 1, board.plies == 1))
        return jnp.stack([mine, theirs, second, swap], axis=-1).reshape(self.shape)

    def ownership(self, board: HexBoard, done: Array) -> jax.Array:
        """The chain that joins the winner's edges; the winner has just moved, so it is the opponent's."""
        chains, grid = jnp.asarray(board.chains), board.chains.reshape(_SIZE, _SIZE)
        rows = board.plies % 2 == 1
        edges = [jnp.where(rows, grid[edge], grid[:, edge]) for edge in (0, -1)]
        joined = (chains < 0) & jnp.isin(chains, edges[0]) & jnp.isin(chains, edges[1])
        return as_both_see(-joined.astype(jnp.int8))


def _joins(chains: jax.Array, number: Array, rows: Array) -> jax.Array:
    """Whether a chain joins the first and the last of the rows, or of the columns, `[]` bool."""
    board = (chains == number).reshape(_SIZE, _SIZE)
    vertical = jnp.any(board[0]) & jnp.any(board[-1])
    horizontal = jnp.any(board[:, 0]) & jnp.any(board[:, -1])
    return jnp.where(rows, vertical, horizontal)
