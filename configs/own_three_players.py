"""A game for three players in JAX: the first with three stones in a row wins, and the other two lose half as much."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from podzero.core.types import View

SIZE = 5
PLAYERS = 3


class State(NamedTuple):
    """A position."""

    stones: jax.Array
    """`[PLAYERS, SIZE, SIZE]` bool, each player's stones."""
    player: jax.Array
    """`[]` int32, who moves next."""
    rewards: jax.Array
    """`[PLAYERS]` float32, each player's reward for the last move."""
    done: jax.Array
    """`[]` bool, whether the game is over."""


class ThreeInARow:
    """Three players place a stone on any free square in turn. An action is a square; a full board is a draw."""

    players = PLAYERS
    max_plies = SIZE * SIZE

    def init(self, key: jax.Array) -> State:
        """The empty board; player 0 begins."""
        board = jnp.zeros((PLAYERS, SIZE, SIZE), bool)
        return State(board, jnp.int32(0), jnp.zeros(PLAYERS, jnp.float32), jnp.array(False))

    def step(self, state: State, action: jax.Array) -> State:
        """Places a stone; the turn passes to the next player."""
        mine = jnp.arange(PLAYERS) == state.player
        square = (jnp.arange(SIZE * SIZE) == action).reshape(SIZE, SIZE)
        stones = state.stones | (mine[:, None, None] & square)
        won = in_a_row(stones[state.player])
        rewards = jnp.where(won, jnp.where(mine, 1.0, -0.5), 0.0).astype(jnp.float32)
        full = stones.any(axis=0).all()
        after = State(stones, (state.player + 1) % PLAYERS, rewards, won | full)
        over = state._replace(rewards=jnp.zeros_like(state.rewards))
        return State(*(jnp.where(state.done, kept, new) for kept, new in zip(over, after, strict=True)))

    def view(self, state: State) -> View:
        """The stones of the player to move, of the next one and of the one after, `[SIZE, SIZE, PLAYERS]`."""
        return View(
            observation=jnp.moveaxis(jnp.roll(state.stones, -state.player, axis=0), 0, -1),
            legal=~state.stones.any(axis=0).ravel() | state.done,
            player=state.player,
            rewards=state.rewards,
            done=state.done,
            truncated=jnp.array(False),
        )


def in_a_row(stones: jax.Array) -> jax.Array:
    """Whether a board `[SIZE, SIZE]` bool has three stones in a row, diagonals included."""
    across = stones[:, :-2] & stones[:, 1:-1] & stones[:, 2:]
    down = stones[:-2] & stones[1:-1] & stones[2:]
    falling = stones[:-2, :-2] & stones[1:-1, 1:-1] & stones[2:, 2:]
    rising = stones[2:, :-2] & stones[1:-1, 1:-1] & stones[:-2, 2:]
    return across.any() | down.any() | falling.any() | rising.any()
