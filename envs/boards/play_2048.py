"""2048: a player slides the tiles of a 4 x 4 board, and chance adds a tile (Cirulli 2014)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.core.types import Array, Symmetry, View
from podzero.envs.boards.rules import square_transforms

_CELLS = 16
_LEVELS = 18
"""A tile of 2**17 is the largest that can be reached, and level 0 is an empty cell."""
_TWO = 0.9
"""Probability that a new tile is a 2; otherwise it is a 4."""
_TURNS = 4
_SIDES = np.array([[-1, 1, -1], [0, -1, 2], [-1, 3, -1]], np.int32)
"""The actions left, up, right and down, each at its side of a board."""


class Position2048(NamedTuple):
    """A state of 2048."""

    board: jax.Array
    """`[4, 4]` int8, the binary logarithm of each tile; 0 for an empty cell."""
    reward: jax.Array
    """`[]` float32, scaled: the sum of the tiles that the last action merged."""
    waits: jax.Array
    """`[]` bool, whether a tile is to be added."""
    done: jax.Array
    """`[]` bool, whether no action is legal."""


class Play2048:
    """The `ChanceGame` 2048, with the rules of pgx. Actions are left, up, right and down.

    Outcome `i < 16` adds a 2 to cell `i`, and outcome `16 + i` a 4; cells are numbered row by row.
    """

    players, outcomes = 1, 2 * _CELLS

    def __init__(self, reward_scale: float) -> None:
        """Makes the game; rewards are multiplied by `reward_scale`."""
        self._scale = reward_scale

    @cached_property
    def symmetries(self) -> Sequence[Symmetry]:
        """The seven rotations and reflections."""
        # Entry `a` is the action that the transformation turns into action `a`.
        return [Symmetry(one, np.asarray(one(_SIDES))[[1, 0, 1, 2], [0, 1, 2, 1]]) for one in square_transforms()]

    def init(self, key: Array) -> Position2048:
        """A board with two tiles."""
        board = jnp.zeros((4, 4), jnp.int8)
        for tile in jax.random.split(key):
            logits = jnp.log(_tile_probabilities(board))
            board = _with_tile(board, jax.random.categorical(tile, logits))
        return Position2048(board, jnp.float32(0), jnp.array(False), jnp.array(False))

    def step(self, state: Position2048, action: Array) -> Position2048:
        """Slides all tiles and merges equal ones."""
        moved, gain = _slid(_turned(state.board, action))
        board = jnp.where(state.done, state.board, _turned(moved, -action))
        reward = jnp.where(state.done, 0.0, gain * self._scale).astype(jnp.float32)
        return Position2048(board, reward, ~state.done, state.done)

    def chance(self, state: Position2048) -> jax.Array:
        """The probability of each new tile."""
        return jnp.where(state.waits, _tile_probabilities(state.board), 0.0)

    def resolve(self, state: Position2048, outcome: Array) -> Position2048:
        """Adds a tile."""
        board = _with_tile(state.board, outcome)
        return Position2048(board, state.reward, jnp.array(False), ~jnp.any(_legal(board)))

    def view(self, state: Position2048) -> View:
        """The level of each cell, one-hot, `[4, 4, 18]`."""
        return View(
            observation=state.board[..., None] == jnp.arange(_LEVELS, dtype=jnp.int8),
            legal=_legal(state.board) | state.done,
            player=jnp.int32(0),
            rewards=jnp.stack([state.reward, jnp.zeros_like(state.reward)]),
            done=state.done,
            truncated=jnp.array(False),
        )


def _tile_probabilities(board: jax.Array) -> jax.Array:
    empty = (board == 0).astype(jnp.float32).reshape(-1)
    each = empty / jnp.maximum(jnp.sum(empty), 1.0)
    return jnp.concatenate([_TWO * each, (1.0 - _TWO) * each])


def _with_tile(board: jax.Array, outcome: Array) -> jax.Array:
    here = (jnp.arange(_CELLS) == outcome % _CELLS).reshape(board.shape)
    return jnp.where(here, jnp.where(outcome < _CELLS, 1, 2), board).astype(jnp.int8)


def _turned(board: jax.Array, quarter_turns: Array) -> jax.Array:
    """The board after counterclockwise quarter turns: those of action `a` turn its direction to the left."""
    turns = jnp.stack([jnp.rot90(board, turn) for turn in range(_TURNS)])
    # A sum over all four is no slower than a lookup on a vector unit.
    chosen = (jnp.arange(_TURNS) == quarter_turns % _TURNS)[:, None, None]
    return jnp.sum(jnp.where(chosen, turns, 0), axis=0, dtype=board.dtype)


def _slid(board: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The board after a slide to the left, and the sum of the merged tiles, `[]` float32."""
    columns = _compact([board[:, column] for column in range(4)])
    gain = jnp.zeros((), jnp.float32)
    for left in range(3):
        merges = (columns[left] != 0) & (columns[left] == columns[left + 1])
        columns[left] = columns[left] + merges
        columns[left + 1] = jnp.where(merges, 0, columns[left + 1])
        gain += jnp.sum(jnp.where(merges, jnp.exp2(columns[left].astype(jnp.float32)), 0.0))
    return jnp.stack(_compact(columns), axis=1).astype(board.dtype), gain


def _compact(columns: list[jax.Array]) -> list[jax.Array]:
    """Moves the tiles of each row to the left, past empty cells."""
    columns = list(columns)
    for place in (2, 1, 0):
        empty = columns[place] == 0
        following = [*columns[place + 1 :], jnp.zeros_like(columns[0])]
        columns[place:] = [jnp.where(empty, new, old) for old, new in zip(columns[place:], following, strict=True)]
    return columns


def _legal(board: jax.Array) -> jax.Array:
    """The slides that change the board, `[4]` bool."""
    left, right, upper, lower = board[:, :-1], board[:, 1:], board[:-1], board[1:]
    ways = ((right, left), (lower, upper), (left, right), (upper, lower))
    # Some tile has an empty cell before it, or an equal tile.
    return jnp.stack([jnp.any((tile > 0) & ((to == 0) | (to == tile))) for tile, to in ways])
