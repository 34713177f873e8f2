"""Domineering in JAX: two players place dominoes on a board in turn; a player who cannot place one loses."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from podzero.core.types import View

SIZE = 5


class State(NamedTuple):
    """A position."""

    taken: jax.Array
    """`[SIZE, SIZE]` bool, the covered cells."""
    player: jax.Array
    """`[]` int32, who moves next."""
    reward: jax.Array
    """`[]` float32, player 0's reward for the last move; player 1's is its negative."""
    done: jax.Array
    """`[]` bool, whether the game is over."""


class Domineering:
    """Player 0 places vertical dominoes, player 1 horizontal ones; an action is the number of a domino's first cell."""

    max_plies = SIZE * SIZE // 2

    def init(self, key: jax.Array) -> State:
        """The empty board; player 0 begins."""
        return State(jnp.zeros((SIZE, SIZE), bool), jnp.int32(0), jnp.float32(0), jnp.array(False))

    def step(self, state: State, action: jax.Array) -> State:
        """Covers a cell and the one below it (player 0) or to its right (player 1)."""
        first = (jnp.arange(SIZE * SIZE) == action).reshape(SIZE, SIZE)
        second = jnp.roll(first, 1, axis=0) * (state.player == 0) + jnp.roll(first, 1, axis=1) * (state.player == 1)
        taken, other = state.taken | first | (second > 0), 1 - state.player
        lost = ~fits(taken, other).any()
        # The player who cannot move has lost.
        reward = jnp.where(lost, jnp.where(other == 0, -1.0, 1.0), 0.0)
        after = State(taken, other, reward.astype(jnp.float32), lost)
        over = state._replace(reward=jnp.float32(0))
        return State(*(jnp.where(state.done, kept, new) for kept, new in zip(over, after, strict=True)))

    def view(self, state: State) -> View:
        """The covered cells and whose turn it is, `[SIZE, SIZE, 2]`."""
        turn = jnp.broadcast_to(state.player == 0, (SIZE, SIZE))
        return View(
            observation=jnp.stack([state.taken, turn], axis=-1),
            legal=fits(state.taken, state.player).ravel() | state.done,
            player=state.player,
            rewards=jnp.stack([state.reward, -state.reward]),
            done=state.done,
            truncated=jnp.array(False),
        )


def fits(taken: jax.Array, player: jax.Array) -> jax.Array:
    """The first cells of all places where both cells of the player's domino are free, `[SIZE, SIZE]` bool."""
    free = ~taken
    below = jnp.pad(free[1:], ((0, 1), (0, 0)))
    beside = jnp.pad(free[:, 1:], ((0, 0), (0, 1)))
    return free & jnp.where(player == 0, below, beside)
