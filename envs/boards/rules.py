"""What the games of this package share: whose turn it is, and what happens at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podzero.envs.packing import packed_bytes
from podzero.envs.symmetries import symmetries_of
from podzero.types import Array, EnvSpec, Symmetry, View

Board = Any
"""A pytree of arrays, whatever the game needs besides `State.player`."""


class State(NamedTuple):
    """One state of a game of two players."""

    board: Board
    player: jax.Array
    """`[]` int32, who moves next: 0 or 1."""
    reward: jax.Array
    """`[]` int8, what player 0 got for the last ply; player 1 got the negative."""
    done: jax.Array
    """`[]` bool, whether the game is over."""


class Played(NamedTuple):
    """A board after a ply."""

    board: Board
    result: jax.Array
    """`[]` int8, for the player who moved: 1 won, -1 lost, 0 drew or goes on."""
    done: jax.Array
    """`[]` bool, whether the game is over."""


class BoardGame(ABC):
    """An `Env` whose rules are functions of the board alone."""

    name: str
    shape: tuple[int, ...]
    """Of an observation."""
    dtype: str = "bool"
    """Of an observation."""
    actions: int
    max_plies: int
    """Plies after which every game is over."""

    @abstractmethod
    def start(self) -> Board:
        """The board at the beginning."""

    @abstractmethod
    def play(self, board: Board, action: Array) -> Played:
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

    def init(self, key: Array) -> State:
        """Starts a game; the key decides which player begins."""
        board = jax.tree.map(jnp.asarray, self.start())
        player = jax.random.bernoulli(key).astype(jnp.int32)
        return State(board, player, jnp.zeros((), jnp.int8), jnp.zeros((), bool))

    def step(self, state: State, action: Array) -> State:
        """Plays a legal action; a state that is over stays the same, with zero rewards."""
        board, result, done = self.play(state.board, action)
        reward = jnp.where(state.player == 0, result, -result).astype(jnp.int8)
        after = State(board, 1 - state.player, reward, done)
        over = state._replace(reward=jnp.zeros((), jnp.int8))
        return State(*jax.tree.map(lambda kept, new: jnp.where(state.done, kept, new), over, after))

    def view(self, state: State) -> View:
        """The view of `state`, from the perspective of the player to move."""
        reward = state.reward.astype(jnp.float32)
        return View(
            observation=self.observe(state.board),
            legal=self.legal(state.board) | state.done,
            player=state.player,
            rewards=jnp.stack([reward, -reward]),
            done=state.done,
            truncated=jnp.zeros((), bool),
        )
