"""n-step returns, on the host with NumPy and in the loss with JAX."""

from __future__ import annotations

from typing import Any

import numpy as np


def nstep_returns(
    xp: Any, reward: Any, value: Any, length: Any, discount: float, td_steps: int, unroll_steps: int
) -> Any:
    """The n-step returns of the positions 0 to K of B windows.

    `z_k = sum_{i < m} discount^i r_{k+i} + discount^m v_{k+m}` with `m = min(n, L - k)`: no sum crosses the end of the
    episode at L.

    Args:
      xp: `numpy` or `jax.numpy`, to which the arrays belong.
      reward: `[B, K + n]` or more steps, zero from step L on.
      value: `[B, K + n + 1]` or more positions, zero at position L if the episode terminated there.
      length: `[B]` int32, L.
      discount: per step.
      td_steps: n.
      unroll_steps: K.

    Returns:
      `[B, K + 1]`; entries from position L on are meaningless.
    """
    position = np.arange(unroll_steps + 1)
    bootstrap = xp.minimum(position + td_steps, length[:, None])
    bootstrap_discount = discount ** xp.maximum(bootstrap - position, 0)
    ahead = np.arange(unroll_steps + td_steps)[:, None] - position  # of a step (row) from a position (column)
    reward_discount = np.where((ahead >= 0) & (ahead < td_steps), discount ** np.maximum(ahead, 0), 0.0)
    # A sum instead of a matrix product, which accelerators would compute in bfloat16.
    rewards = xp.sum(reward[:, : unroll_steps + td_steps, None] * reward_discount, axis=1)
    return rewards + bootstrap_discount * xp.take_along_axis(value, bootstrap, axis=1)
