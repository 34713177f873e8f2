"""The targets of MuZero's windows: n-step returns and rewards, and which positions are trained on (Schrittwieser et al.
2020).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from podzero.returns import nstep_returns
from podzero.types import Window


class Targets(NamedTuple):
    """Targets of B windows at the positions 0 to K and the steps between them; zero where masked.

    The end of a terminated episode is an absorbing state: values and rewards after it are trained towards zero. Nothing
    is known of what follows a time limit, so positions from there on are masked.
    """

    value: jax.Array
    """`[B, K + 1]` float32."""
    reward: jax.Array
    """`[B, K]` float32."""
    value_mask: jax.Array
    """`[B, K + 1]` bool, positions whose value is trained."""
    reward_mask: jax.Array
    """`[B, K]` bool, steps whose reward is trained."""
    policy_mask: jax.Array
    """`[B, K + 1]` bool, positions whose policy is trained: those that an action follows."""
    state_mask: jax.Array
    """`[B, K]` bool, positions 1 to K that were observed, including the last one of an episode."""


def nstep_targets(window: Window, discount: float, td_steps: int, unroll_steps: int) -> Targets:
    """The targets of windows, with n-step returns as values.

    The value at position L is zero where the episode terminated and the search value where a time limit truncated it.

    Args:
      window: batched; entries after its `length` are ignored.
      discount: per step.
      td_steps: n.
      unroll_steps: K.
    """
    length, terminated = jnp.asarray(window.length)[:, None], jnp.asarray(window.terminated)[:, None]
    positions = jnp.arange(unroll_steps + td_steps + 1)
    exists = (positions < length) | ((positions == length) & ~terminated)
    reward = jnp.where(positions[:-1] < length, window.reward, 0.0)
    value = jnp.where(exists, window.value, 0.0)
    returns = nstep_returns(jnp, reward, value, length[:, 0], discount, td_steps, unroll_steps)
    acted = positions[: unroll_steps + 1] < length
    return Targets(
        value=jnp.where(acted, returns, 0.0),
        reward=reward[:, :unroll_steps],
        value_mask=acted | terminated,
        reward_mask=acted[:, :-1] | terminated,
        policy_mask=acted,
        state_mask=positions[1 : unroll_steps + 1] <= length,
    )
