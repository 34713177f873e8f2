"""The targets of games that were played: of one finished game in NumPy, of all games of a history in JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config import ActorsConfig
from podzero.core.types import Array

_Later = tuple[Any, Any, Any, Any]
"""The rest of B games: outcome and lambda-return for each player, `[P, B]`, whether a limit ends it, and its plies."""


class Plies(NamedTuple):
    """What targets are made from: one ply of B games, or the H rows of a history. Games are the last axis."""

    value: Array
    """`[B]` float32, the root value for the player who moved."""
    action: Array
    """`[B]` int32."""
    player: Array
    """`[B]` int32, the player that moved."""
    rewards: Array
    """`[P, B]` float32, each player's reward for the ply."""
    done: Array
    """`[B]` bool, whether the ply ended the game."""
    truncated: Array
    """`[B]` bool, whether a limit ended it."""


class Targets(NamedTuple):
    """The targets of the positions of a history, for the player to move; undefined in unfinished games."""

    value: Array
    """`[H, B]` float32, the value target; or `[H, EnvSpec.values, B]`, from the player to move on."""
    outcome: Array
    """`[H, B]` float32, the discounted sum of the rewards that the player still gets."""
    lambda_return: Array
    """`[H, B]` float32."""
    truncated: Array
    """`[H, B]` bool, whether a limit ended the game."""
    moves_left: Array
    """`[H, B]` int32, as in `Sample`."""
    reply: Array
    """`[H, B]` int32, as in `Sample`."""


def targets_of(plies: Plies, config: ActorsConfig, discount: float, values: int = 1, xp: Any = jnp) -> Targets:
    """The targets of all positions of a history.

    The lambda-return (Sutton and Barto 2018, section 12.1) is `G_t = r_t + d * ((1 - l) * v_(t+1) + l * G_(t+1))`. All
    terms are those of the player who moves at t; v is the search's root value, and v and G are zero after the last
    move. With l = 1 it is the outcome. Where each player has a value, the targets are the outcomes of all.

    Args:
      plies: `[H, ...]`.
      config: `td_lambda`, l, and `root_value_weight`.
      discount: d.
      values: `EnvSpec.values`.
      xp: `jax.numpy` or `numpy`.
    """
    rows, batch = plies.done.shape
    players = plies.rewards.shape[1]
    assert plies.value.shape == plies.player.shape == (rows, batch)
    assert players == max(2, values)
    # The recursion keeps the returns of all players, since any of them may move next.
    mine = xp.arange(players)[:, None] == plies.player[:, None]
    value = xp.where(mine, plies.value[:, None], -plies.value[:, None])
    cut = plies.done & plies.truncated
    # A truncated game has no outcome: the root value of its last position replaces the rewards that would follow.
    rewards = xp.where(cut[:, None], value, plies.rewards)

    def step(later: _Later, ply: Sequence[Any]) -> tuple[_Later, _Later]:
        reward, value, done, cut = ply
        # Backwards in time: `done` keeps what follows in the column, the next game, out of this one.
        outcome, bootstrap, truncated, left = (xp.where(done, xp.zeros_like(leaf), leaf) for leaf in later)
        outcome, returns = reward + discount * outcome, reward + discount * bootstrap
        bootstrap = (1.0 - config.td_lambda) * value + config.td_lambda * returns
        truncated, left = truncated | cut, left + 1
        return (outcome, bootstrap, truncated, left), (outcome, returns, truncated, left)

    none = xp.zeros_like(rewards[0])
    start = (none, none, xp.zeros_like(cut[0]), xp.zeros_like(plies.player[0], dtype=np.int32))
    scan = _scan if xp is np else jax.lax.scan
    outcomes, returns, truncated, left = scan(step, start, (rewards, value, plies.done, cut), reverse=True)[1]
    # From the player to move on, in the order of the players' numbers.
    order = (plies.player[:, None] + xp.arange(players)[:, None]) % players
    outcomes, returns = (xp.take_along_axis(each, order, axis=1) for each in (outcomes, returns))
    next_action, next_player = (xp.roll(leaf, -1, axis=0) for leaf in (plies.action, plies.player))
    return Targets(
        value=xp.clip(outcomes, -1.0, 1.0)
        if values > 1
        else value_targets(returns[:, 0], plies.value, config.root_value_weight, xp),
        outcome=outcomes[:, 0],
        lambda_return=returns[:, 0],
        truncated=truncated,
        moves_left=xp.where(truncated, -1, left),
        # A reply only if the opponent takes it: some games let a player move twice in a row.
        reply=xp.where(~plies.done & (next_player != plies.player), next_action, -1),
    )


def value_targets(returns: Array, root_values: Array, root_value_weight: float, xp: Any = np) -> Any:
    """Value targets for the player to move, of the shape of `returns`: `w * v_t + (1 - w) * G_t`.

    The search's root value `v_t` lowers the variance of the lambda-return `G_t` (Young et al., Lessons from AlphaZero,
    2018: averaging z and q).
    """
    return xp.clip(root_value_weight * root_values + (1.0 - root_value_weight) * returns, -1.0, 1.0)


def outcome_classes(outcome: Array, truncated: Array, xp: Any = np) -> Any:
    """The target of the auxiliary head `outcome`, as in `Sample`: -1 where a limit ended the game."""
    return xp.where(truncated, -1, xp.sign(outcome).astype(np.int32) + 1)


def _scan(step: Callable[[Any, Any], Any], carry: Any, xs: Sequence[Any], reverse: bool) -> tuple[Any, Any]:
    """`jax.lax.scan` in NumPy, backwards."""
    assert reverse
    rows = []
    for index in reversed(range(len(xs[0]))):
        carry, row = step(carry, [x[index] for x in xs])
        rows.append(row)
    return carry, tuple(np.stack(column[::-1]) for column in zip(*rows, strict=True))
