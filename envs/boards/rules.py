"""What the board games share: turns, the end of a game, and chains of connected stones.

A board of chains is `[S]` integers, row by row: positive for the chains of the player to move, negative for the
opponent's, zero for empty squares. All stones of a chain have the same number: one plus that of one of its squares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podzero.core.types import Array, EnvSpec, Symmetry, View
from podzero.envs.packing import packed_bytes
from podzero.envs.symmetries import symmetries_of

Board = Any
"""A pytree of arrays: what a game needs besides `BoardState.player`."""


class BoardState(NamedTuple):
    """The state of a game."""

    board: Board
    player: jax.Array
    """`[]` int32, who moves next: 0 or 1."""
    reward: jax.Array
    """`[]` int8, player 0's reward for the last ply; player 1's is its negative."""
    done: jax.Array
    """`[]` bool, whether the game is over."""


class PlyResult(NamedTuple):
    """A board after a ply."""

    board: Board
    result: jax.Array
    """`[]` int8, for the player who moved: 1 for a win, -1 for a loss, 0 for a draw or an unfinished game."""
    done: jax.Array
    """`[]` bool, whether the game is over."""


class BoardGame(ABC):
    """An `Env` whose rules are functions of the board alone."""

    name: str
    shape: tuple[int, ...]
    """Shape of an observation."""
    dtype: str = "bool"
    """Dtype of an observation."""
    actions: int
    max_plies: int
    """Largest number of plies of a game."""

    @abstractmethod
    def start(self) -> Board:
        """The board at the beginning."""

    @abstractmethod
    def play(self, board: Board, action: Array) -> PlyResult:
        """Plays a legal action `[]` int32."""

    @abstractmethod
    def legal(self, board: Board) -> jax.Array:
        """The legal actions, `[A]` bool."""

    @abstractmethod
    def observe(self, board: Board) -> jax.Array:
        """The observation of the player to move."""

    @cached_property
    def spec(self) -> EnvSpec:
        """Shapes of observations, number of actions, and size of a state."""
        like = jax.eval_shape(self.init, jax.random.key(0))
        size = packed_bytes(like)
        return EnvSpec(self.name, self.shape, self.dtype, self.actions, state_bytes=size, max_plies=self.max_plies)

    @cached_property
    def symmetries(self) -> Sequence[Symmetry]:
        """The symmetries without the identity; empty if the game has none."""
        return symmetries_of(self.name)

    def init(self, key: Array) -> BoardState:
        """Starts a game; the key decides which player begins."""
        board = jax.tree.map(jnp.asarray, self.start())
        player = jax.random.bernoulli(key).astype(jnp.int32)
        return BoardState(board, player, jnp.zeros((), jnp.int8), jnp.zeros((), bool))

    def step(self, state: BoardState, action: Array) -> BoardState:
        """Plays a legal action; a state that is over stays the same, with zero rewards."""
        board, result, done = self.play(state.board, action)
        reward = jnp.where(state.player == 0, result, -result).astype(jnp.int8)
        assert result.shape == done.shape == (), (result.shape, done.shape)
        after = BoardState(board, 1 - state.player, reward, done)
        # Under `vmap` all games are played; those that were over before keep their state.
        over = state._replace(reward=jnp.zeros((), jnp.int8))
        return BoardState(*jax.tree.map(lambda kept, new: jnp.where(state.done, kept, new), over, after))

    def view(self, state: BoardState) -> View:
        """The view of `state`, from the perspective of the player to move."""
        reward = state.reward.astype(jnp.float32)
        observation, legal = self.observe(state.board), self.legal(state.board)
        assert observation.shape == self.shape, observation.shape
        assert legal.shape == (self.actions,), legal.shape
        return View(
            observation=observation,
            legal=legal | state.done,
            player=state.player,
            rewards=jnp.stack([reward, -reward]),
            done=state.done,
            truncated=jnp.zeros((), bool),
        )


Neighbour = tuple[int, int]
"""Rows and columns from a square to a neighbour."""


def beside(squares: Array, size: int, step: Neighbour, outside: int = 0) -> jax.Array:
    """The value at each square's neighbour, `[S]`: entry i is the value one `step` away from square i.

    Args:
      squares: `[S]`, values of a board of `size` rows and columns.
      size: rows and columns of the board.
      step: offset of the neighbour, at most one row and one column.
      outside: the value of neighbours beyond the edge.
    """
    assert squares.shape == (size * size,), squares.shape
    board = jnp.pad(squares.reshape(size, size), 1, constant_values=outside)
    rows, columns = 1 + step[0], 1 + step[1]
    return board[rows : rows + size, columns : columns + size].reshape(-1)


def chains_beside(board: Array, square: Array, size: int, steps: Sequence[Neighbour]) -> list[jax.Array]:
    """The chains on the neighbours of a square `[]`, one `[]` for each of `steps`; zero for none."""
    assert board.shape == (size * size,), board.shape
    row, column, numbers, found = square // size, square % size, jnp.arange(size * size), []
    for down, right in steps:
        inside = (row + down >= 0) & (row + down < size) & (column + right >= 0) & (column + right < size)
        neighbour = jnp.where(inside, square + down * size + right, -1)
        # A comparison with all squares is no slower than a lookup on a vector unit.
        found.append(jnp.sum(jnp.where(numbers == neighbour, board, 0), dtype=board.dtype))
    return found


def placed(board: Array, square: Array, size: int, steps: Sequence[Neighbour]) -> jax.Array:
    """The board with a new stone of the player to move, joined to the chains of its neighbours.

    Args:
      board: `[S]`.
      square: `[]` int32; a number beyond the board (a pass) places no stone.
      size: rows and columns of the board.
      steps: offsets of all neighbours.
    """
    joined = jnp.arange(size * size) == square
    for chain in chains_beside(board, square, size, steps):
        joined |= (board == chain) & (chain > 0) & (square < size * size)
    return jnp.where(joined, (square + 1).astype(board.dtype), board)
