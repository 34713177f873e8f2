"""The targets of games that were played: of one finished game in NumPy, of all games of a history in JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config import ActorsConfig
from podzero.core.types import Array


class Plies(NamedTuple):
    """What targets are made from: one ply of B games, or the H rows of a history. The fields are those of `Move`, but
    games are the last axis.
    """

    value: Array
    action: Array
    player: Array
    rewards: Array
    """`[P, B]`."""
    done: Array
    truncated: Array


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
    """The targets of all positions of a history `[H, ...]`, computed by `xp`, `jax.numpy` or `numpy`.

    The lambda-return (Sutton and Barto 2018, section 12.1) is `G_t = r_t + d * ((1 - l) * v_(t+1) + l * G_(t+1))`. All
    terms are those of the player who moves at t; d is the discount, l is `td_lambda`, v the search's root value, and v
    and G are zero after the last move. With l = 1 it is the outcome. Where each player has a value (`EnvSpec.values`),
    the targets are the outcomes of all.
    """
    rows, batch = plies.done.shape
    players = plies.rewards.shape[1]
    assert plies.value.shape == plies.player.shape == (rows, batch)
    assert players == max(2, values)
    # The recursion keeps the returns of all players, since any of them may move next.
    mine = xp.arange(players)[:, None] == plies.player[:, None]  # [H, P, B]
    value = xp.where(mine, plies.value[:, None], -plies.value[:, None])
    cut = plies.done & plies.truncated
    # A truncated game has no outcome: the root value of its last position replaces the rewards that would follow.
    rewards = xp.where(cut[:, None], value, plies.rewards)

    def returns(td_lambda: float) -> Any:
        """The lambda-returns of all players, `[H, P, B]`."""

        def step(later: Any, ply: Sequence[Any]) -> tuple[Any, Any]:
            reward, value, done = ply
            # Backwards in time: `done` keeps what follows in the column, the next game, out of this one.
            now = reward + discount * xp.where(done, np.float32(0.0), later)
            return (now if td_lambda == 1.0 else (1.0 - td_lambda) * value + td_lambda * now), now

        scan = _backwards if xp is np else partial(jax.lax.scan, reverse=True)
        return scan(step, xp.zeros_like(rewards[0]), (rewards, value, plies.done))[1]

    def own(each: Any) -> Any:
        """`[H, B]`, of the player to move."""
        return xp.sum(xp.where(mine, each, np.float32(0.0)), axis=1)

    outcomes = returns(1.0)
    lambda_return = own(outcomes if config.td_lambda == 1.0 else returns(config.td_lambda))
    if values > 1:
        # The players' numbers, from the player to move on.
        order = (plies.player[:, None] + xp.arange(players)[:, None]) % players
        target = xp.clip(xp.take_along_axis(outcomes, order, axis=1), -1.0, 1.0)
    else:
        target = value_targets(lambda_return, plies.value, config.root_value_weight, xp)
    end, truncated = ends(plies, xp)
    next_action, next_player = (xp.roll(leaf, -1, axis=0) for leaf in (plies.action, plies.player))
    return Targets(
        value=target,
        outcome=own(outcomes),
        lambda_return=lambda_return,
        truncated=truncated,
        moves_left=xp.where(truncated, -1, end - xp.arange(rows, dtype=np.int32)[:, None] + 1),
        # A reply only if the opponent takes it: some games let a player move twice in a row.
        reply=xp.where(~plies.done & (next_player != plies.player), next_action, -1),
    )


def ends(plies: Plies, xp: Any = jnp) -> tuple[Any, Any]:
    """The row in which each position's game ends, `[H, B]` int32 (H if it is unfinished), and whether by a limit."""
    rows = len(plies.done)
    # Both in one number, so that one running minimum finds them, without a gather, which is slow on TPUs.
    coded = xp.where(plies.done, 2 * xp.arange(rows, dtype=np.int32)[:, None] + plies.truncated, np.int32(2 * rows))
    found = np.minimum.accumulate(coded[::-1])[::-1] if xp is np else jax.lax.cummin(coded, axis=0, reverse=True)
    return found // 2, found % 2 == 1


def value_targets(returns: Array, root_values: Array, root_value_weight: float, xp: Any = np) -> Any:
    """Value targets for the player to move, of the shape of `returns`: `w * v_t + (1 - w) * G_t`.

    The search's root value `v_t` lowers the variance of the lambda-return `G_t` (Young et al., Lessons from AlphaZero,
    2018: averaging z and q).
    """
    return xp.clip(root_value_weight * root_values + (1.0 - root_value_weight) * returns, -1.0, 1.0)


def outcome_classes(outcome: Array, truncated: Array, xp: Any = np) -> Any:
    """The target of the auxiliary head `outcome`, as in `Sample`: -1 where a limit ended the game."""
    return xp.where(truncated, -1, xp.sign(outcome).astype(np.int32) + 1)


def owner_classes(ownership: Array, player: Array, truncated: Array, xp: Any = np) -> Any:
    """The target of the auxiliary head `ownership`, `[T, S]` int8 as in `Sample`, for the players `[T]` to move:
    -1 where a limit ended the game, else from `View.ownership` `[T, 2, S]` at its end.
    """
    owners = 1 + xp.where((player == 0)[:, None], ownership[:, 0], ownership[:, 1])
    return xp.where(truncated[:, None], -1, owners).astype(np.int8)


def _backwards(step: Callable[[Any, Any], Any], carry: Any, xs: Sequence[Any]) -> tuple[Any, Any]:
    """`jax.lax.scan` in NumPy, from the last row to the first."""
    rows = []
    for x in zip(*(x[::-1] for x in xs), strict=True):
        carry, row = step(carry, x)
        rows.append(row)
    return carry, np.stack(rows[::-1])
