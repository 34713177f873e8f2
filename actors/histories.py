"""Histories of running games on an accelerator, and the targets of the games that are over.

`podzero.actors.assembly` computes the same on the host, game by game. Here B games of different ages share arrays
whose rows are plies, in the order played: a row of the history is one move of all games, and a game occupies
consecutive rows of one column. H is the number of rows. Games are the minor dimension, so that a TPU pads nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from podzero.config import ActorsConfig
from podzero.types import EnvState

_Pair = tuple[jax.Array, jax.Array]


class Plies(NamedTuple):
    """One ply of B games, or the rows `[H, ...]` of a history: what a sample needs and its state does not tell."""

    state: EnvState
    """`[..., B]` on every leaf, before the ply."""
    policy: jax.Array
    """`[A, B]` float32, the search policy."""
    value: jax.Array
    """`[B]` float32, the root value for the player who moved."""
    action: jax.Array
    """`[B]` int32."""
    player: jax.Array
    """`[B]` int32, who moved."""
    rewards: jax.Array
    """`[2, B]` float32, each player's for the ply."""
    done: jax.Array
    """`[B]` bool, whether the ply ended the game."""
    truncated: jax.Array
    """`[B]` bool, whether a limit did."""
    version: jax.Array
    """`[B]` int32, the version of the parameters that searched."""


class Targets(NamedTuple):
    """Of the positions of a history; undefined in games that go on."""

    value: jax.Array
    """`[H, B]` float32, the value target."""
    outcome: jax.Array
    """`[H, B]` float32, the discounted sum of the later rewards of the player to move."""
    lambda_return: jax.Array
    """`[H, B]` float32."""
    truncated: jax.Array
    """`[H, B]` bool, whether a limit ended the game."""
    moves_left: jax.Array
    """`[H, B]` int32, as in `Sample`."""
    reply: jax.Array
    """`[H, B]` int32, as in `Sample`."""


def targets_of(plies: Plies, config: ActorsConfig, discount: float) -> Targets:
    """The targets of all positions.

    Args:
      plies: `[H, ...]`.
      config: of the value targets; see `lambda_returns` and `value_targets` of `podzero.actors.assembly`.
      discount: per move.
    """
    mine = jnp.arange(2)[:, None] == plies.player[:, None]
    value = jnp.where(mine, plies.value[:, None], -plies.value[:, None])
    cut = (plies.done & plies.truncated)[:, None]
    rewards = jnp.where(cut, value, plies.rewards)  # the root value stands for the rest of the game

    def returns(td_lambda: float) -> jax.Array:
        def step(later: jax.Array, ply: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            reward, value, done, mine = ply
            now = reward + discount * jnp.where(done, 0.0, later)
            return (1.0 - td_lambda) * value + td_lambda * now, jnp.sum(jnp.where(mine, now, 0.0), axis=0)

        rows = (rewards, value, plies.done, mine)
        found: jax.Array = jax.lax.scan(step, jnp.zeros_like(rewards[0]), rows, reverse=True)[1]
        return found

    outcome, lambda_return = returns(1.0), returns(config.td_lambda)
    mixed = config.root_value_weight * plies.value + (1.0 - config.root_value_weight) * lambda_return
    truncated = in_game(jnp.logical_or, plies.done & plies.truncated, plies.done)
    return Targets(
        jnp.clip(mixed, -1.0, 1.0), outcome, lambda_return, truncated, _moves_left(plies), _replies(plies)
    )  # fmt: skip


def ends(done: jax.Array) -> jax.Array:
    """The row in which the game of each position ends, `[H, B]` int32; H if it goes on."""
    rows = jnp.arange(len(done), dtype=jnp.int32)[:, None]
    return jax.lax.cummin(jnp.where(done, rows, len(done)), axis=0, reverse=True)


def in_game(combine: Callable[[jax.Array, jax.Array], jax.Array], values: jax.Array, done: jax.Array) -> jax.Array:
    """For each position `[H, B]`, all values of its game combined; undefined in games that go on."""

    def forward(before: _Pair, ply: _Pair) -> tuple[_Pair, jax.Array]:
        (total, ended), (value, done) = before, ply
        total = jnp.where(ended, value, combine(total, value))
        return (total, done), total

    def backward(after: jax.Array, ply: _Pair) -> _Pair:
        total, done = ply
        whole = jnp.where(done, total, after)
        return whole, whole

    start = (jnp.zeros_like(values[0]), jnp.ones_like(done[0]))
    running = jax.lax.scan(forward, start, (values, done))[1]
    whole: jax.Array = jax.lax.scan(backward, jnp.zeros_like(values[0]), (running, done), reverse=True)[1]
    return whole


def _moves_left(plies: Plies) -> jax.Array:
    end = ends(plies.done)
    unknown = in_game(jnp.logical_or, plies.done & plies.truncated, plies.done)
    left = end - jnp.arange(len(end), dtype=jnp.int32)[:, None] + 1
    return jnp.where(unknown, -1, left)


def _replies(plies: Plies) -> jax.Array:
    """The next action, where the same game's other player takes it."""
    action, player = (jnp.roll(leaf, -1, axis=0) for leaf in (plies.action, plies.player))
    replied = ~plies.done & (player != plies.player)
    return jnp.where(replied, action, -1)
