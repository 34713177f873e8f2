"""Hex, with the swap rule, as the player to move sees it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config.environments import HEX_SIZES
from podzero.core.types import Array
from podzero.envs.boards.rules import BoardGame, PlyResult, placed

HEX_GAMES = {f"hex_{size}x{size}": size for size in HEX_SIZES}
"""The sizes of the board, by `EnvSpec.name`."""
_NEIGHBOURS = ((0, -1), (1, -1), (-1, 0), (1, 0), (-1, 1), (0, 1))


class HexBoard(NamedTuple):
    """The chains, and how many plies have been played."""

    chains: Array
    """`[S]` int8, as in `podzero.envs.boards.rules`, as the first player sees them."""
    plies: Array
    """`[]` int8; the first player joins the top and the bottom row, the second the left and the right column."""


class Hex(BoardGame):
    """`Env` of Hex; an action is a square, or as the last one the swap, which is legal only as the second ply.

    The second player sees the board transposed, in observations and in actions, so that both join top and bottom.
    """

    def __init__(self, size: int = HEX_SIZES[-1]) -> None:
        self._size, self._squares = size, size * size
        self.name, self.max_plies = f"hex_{size}x{size}", self._squares + 1

    def start(self) -> HexBoard:
        """The empty board."""
        return HexBoard(np.zeros(self._squares, np.int8), np.zeros((), np.int8))

    def play(self, board: HexBoard, action: Array) -> PlyResult:
        """Places a stone, or swaps: the opponent's first stone moves to the mirrored square and changes its owner."""
        size, second = self._size, board.plies % 2 == 1
        square = jnp.where(second & (action < self._squares), action % size * size + action // size, action)
        chains = placed(board.chains, square, size, _NEIGHBOURS)
        mirrored = chains.reshape(size, size).T.reshape(-1)
        # The mirrored stone gets the number of its new square.
        numbers = jnp.arange(1, self._squares + 1, dtype=jnp.int8)
        chains = jnp.where(action == self._squares, jnp.where(mirrored != 0, numbers, 0), chains)
        # Only the chain of the new stone can have joined two edges.
        won = _joins((chains == (square + 1).astype(jnp.int8)).reshape(size, size), ~second)
        return PlyResult(HexBoard(-chains, board.plies + 1), won.astype(jnp.int8), won)

    def legal(self, board: HexBoard) -> jax.Array:
        """The empty squares, and the swap."""
        return jnp.append(self._seen(board) == 0, board.plies == 1)

    def observe(self, board: HexBoard) -> jax.Array:
        """Own stones, the opponent's, and whether the swap is legal."""
        seen = self._seen(board)
        swap = jnp.broadcast_to(board.plies == 1, seen.shape)
        return jnp.stack([seen > 0, seen < 0, swap], axis=-1).reshape(self._size, self._size, 3)

    def ownership(self, board: HexBoard, done: Array) -> jax.Array:
        """The chain that joins the winner's edges; the winner has just moved, so it is the opponent's."""
        chains, first_won = jnp.reshape(board.chains, (self._size, self._size)), board.plies % 2 == 1
        edges = [jnp.where(first_won, chains[edge], chains[:, edge]) for edge in (0, -1)]
        joined = ((chains < 0) & jnp.isin(chains, edges[0]) & jnp.isin(chains, edges[1])).astype(jnp.int8)
        # The second player, who is to move if the first has won, sees the board transposed.
        seen_by_mover = jnp.where(first_won, joined.T, joined).reshape(-1)
        seen_by_winner = jnp.where(first_won, joined, joined.T).reshape(-1)
        return jnp.stack([-seen_by_mover, seen_by_winner])

    def _seen(self, board: HexBoard) -> jax.Array:
        """The chains `[S]` as the player to move sees them."""
        chains = jnp.reshape(board.chains, (self._size, self._size))
        return jnp.where(board.plies % 2 == 1, chains.T, chains).reshape(-1)


def _joins(chain: jax.Array, rows: Array) -> jax.Array:
    """Whether a chain `[size, size]` joins the first and the last of the rows, or of the columns, `[]` bool."""
    vertical = jnp.any(chain[0]) & jnp.any(chain[-1])
    horizontal = jnp.any(chain[:, 0]) & jnp.any(chain[:, -1])
    return jnp.where(rows, vertical, horizontal)
