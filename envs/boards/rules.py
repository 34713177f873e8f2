"""What the board games share: turns, the end of a game, chains of connected stones, and symmetries.

A board of chains is `[S]` integers, row by row: positive for the chains of the player to move, negative for the
opponent's, zero for empty squares. All stones of a chain have the same number: one plus that of one of its squares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config.environments import HEX_SIZES
from podzero.core.types import Array, EnvSpec, Symmetry, View
from podzero.envs.jax_game import spec_of_game

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

    def ownership(self, board: Board, done: Array) -> jax.Array | None:
        """Who owns each square of a game that is `done`, `[2, S]` int8, as the player to move sees it, and then the
        opponent: 1 that player, -1 the other, 0 nobody; arbitrary in other games. None if the rules tell no owners.
        """
        return None

    @cached_property
    def spec(self) -> EnvSpec:
        """See `podzero.envs.jax_game.spec_of_game`."""
        return spec_of_game(self, self.name, self.init)

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
        return BoardState(*jax.tree.map(lambda old, new: jnp.where(state.done, old, new), over, after))

    def view(self, state: BoardState) -> View:
        """The view of `state`, from the perspective of the player to move."""
        reward = state.reward.astype(jnp.float32)
        observation, legal = self.observe(state.board), self.legal(state.board)
        owned = self.ownership(state.board, state.done)
        return View(
            observation=observation,
            legal=legal | state.done,
            player=state.player,
            rewards=jnp.stack([reward, -reward]),
            done=state.done,
            truncated=jnp.zeros((), bool),
            ownership=None if owned is None else jnp.where(state.player == 0, owned, owned[::-1]),
        )


def as_both_see(owners: Array) -> jax.Array:
    """The owners `[S]` as the player to move sees them, and as the opponent does, who sees the same board: `[2, S]`."""
    return jnp.stack([owners, -owners])


Neighbour = tuple[int, int]
"""Rows and columns from a square to a neighbour."""


def beside(squares: Array, size: int, step: Neighbour, outside: int = 0) -> jax.Array:
    """The value at each square's neighbour, `[S]`: entry i is the value one `step` away from square i, or `outside`
    beyond the edge of the board of `size` rows and columns.
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
    """The board `[S]` with a new stone of the player to move, joined to the chains of its neighbours.

    A `square` (`[]` int32) beyond the board is a pass, which places no stone; `steps` lead to all neighbours.
    """
    joined = jnp.arange(size * size) == square
    for chain in chains_beside(board, square, size, steps):
        joined |= (board == chain) & (chain > 0) & (square < size * size)
    return jnp.where(joined, (square + 1).astype(board.dtype), board)


def symmetries_of(name: str) -> Sequence[Symmetry]:
    """The symmetries of a game, without the identity: board transformations by which training augments positions.

    A symmetry preserves the rules: legal moves, results, and whose turn it is. It may change the initial position, as
    in Othello and Gardner chess. Three games have none: in chess castling distinguishes left and right; pgx's shogi
    (2.6.0) wrongly allows some mates by a dropped pawn near one corner, which it forbids near the other; and pgx's
    observation of animal shogi leaves out one file of each past position, and that of the mirrored game another one.
    """
    return _SYMMETRIES[name]() if name in _SYMMETRIES else []


def mirror(board: Array) -> Array:
    """Swaps left and right of a board `[rows, columns, ...]`."""
    return np.flip(board, axis=1) if isinstance(board, np.ndarray) else jnp.flip(board, axis=1)


def _half_turned(size: int) -> list[Symmetry]:
    return [_of_cells(_rotated_and_mirrored(2, mirrored=False), size, extra_actions=1)]


def _square(size: int, extra_actions: int) -> list[Symmetry]:
    return [_of_cells(transform, size, extra_actions) for transform in square_transforms()]


def square_transforms() -> list[Callable[[Array], Array]]:
    """The seven rotations and reflections of a square board `[rows, columns, ...]`."""
    return [_rotated_and_mirrored(turns, mirrored) for mirrored, turns in product((False, True), range(4))][1:]


def _rotated_and_mirrored(quarter_turns: int, mirrored: bool) -> Callable[[Array], Array]:
    """Quarter turns counterclockwise of a board `[rows, columns, ...]`, then perhaps a swap of left and right."""

    def transform(board: Array) -> Array:
        # Arrays of the host, such as those of the actions, need no program.
        rotate = np.rot90 if isinstance(board, np.ndarray) else jnp.rot90
        rotated = rotate(board, quarter_turns, axes=(0, 1))
        return mirror(rotated) if mirrored else rotated

    return transform


def _of_cells(transform: Callable[[Array], Array], size: int, extra_actions: int) -> Symmetry:
    """The symmetry of a game whose actions are cells, and after them extra ones, which stay the same."""
    cells = np.asarray(transform(np.arange(size * size).reshape(size, size))).ravel()
    extra = np.arange(size * size, size * size + extra_actions)
    return Symmetry(transform, np.concatenate([cells, extra]).astype(np.int32))


_SYMMETRIES: dict[str, Callable[[], list[Symmetry]]] = {
    "connect_four": lambda: [Symmetry(mirror, np.arange(7, dtype=np.int32)[::-1].copy())],
    "tic_tac_toe": lambda: _square(3, extra_actions=0),
    # Half of these swap the colours of Othello's initial set-up. All preserve the rules and so the value of a position.
    "othello": lambda: _square(8, extra_actions=1),
    **{f"go_{size}x{size}": partial(_square, size, extra_actions=1) for size in (7, 9, 19)},
    # A symmetry of Hex must preserve each player's pair of edges and the six neighbours of a cell: only the half turn
    # does. Transposing the board would also swap the players, but the swap rule applies to only one of them.
    **{f"hex_{size}x{size}": partial(_half_turned, size) for size in HEX_SIZES},
}
