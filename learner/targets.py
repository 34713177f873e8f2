"""What a window teaches: n-step values and rewards, and which positions teach what (Schrittwieser et al. 2020)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.types import Window


class Targets(NamedTuple):
    """Targets of B windows at the positions 0 to K and the steps between them; zero where nothing is learned.

    Beyond a true end the environment is taken to stay where it is for ever, with nothing more to gain: values and
    rewards of zero are learned there. From a time limit on, nothing is known, and nothing learned.
    """

    value: jax.Array
    """`[B, K + 1]` float32."""
    reward: jax.Array
    """`[B, K]` float32."""
    value_mask: jax.Array
    """`[B, K + 1]` bool, positions whose value is learned."""
    reward_mask: jax.Array
    """`[B, K]` bool, steps whose reward is learned."""
    policy_mask: jax.Array
    """`[B, K + 1]` bool, positions whose policy is learned: those that an action follows."""
    state_mask: jax.Array
    """`[B, K]` bool, positions 1 to K that were observed, the last one of an episode too."""


def nstep_targets(window: Window, discount: float, td_steps: int, unroll_steps: int) -> Targets:
    """The n-step targets of windows.

    `z_k = sum_{i < m} discount^i r_{k+i} + discount^m v_{k+m}` with `m = min(n, L - k)`: no sum crosses the end of the
    episode at L. v_L is zero where the episode is truly over, and the search's value where a time limit cut it off.

    Args:
      window: batched; nothing in it beyond its `length` matters.
      discount: what a reward one step later is worth.
      td_steps: n.
      unroll_steps: K.
    """
    length, over = jnp.asarray(window.length)[:, None], jnp.asarray(window.terminated)[:, None]
    positions = jnp.arange(unroll_steps + td_steps + 1)
    exists = (positions < length) | ((positions == length) & ~over)
    reward = jnp.where(positions[:-1] < length, window.reward, 0.0)
    value = jnp.where(exists, window.value, 0.0)

    learned = jnp.arange(unroll_steps + 1)
    acted = learned < length
    bootstrap = jnp.minimum(learned + td_steps, length)
    # Beyond the end the exponent has no meaning; what it would weigh is masked.
    weight = discount ** jnp.maximum(bootstrap - learned, 0)
    returns = jnp.matmul(reward, _discounts(discount, td_steps, unroll_steps), precision="highest")
    returns += weight * jnp.take_along_axis(value, bootstrap, axis=1)
    return Targets(
        value=jnp.where(acted, returns, 0.0),
        reward=reward[:, :unroll_steps],
        value_mask=acted | over,
        reward_mask=acted[:, :-1] | over,
        policy_mask=acted,
        state_mask=learned[1:] <= length,
    )


def _discounts(discount: float, td_steps: int, unroll_steps: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """`[K + n, K + 1]`: what the reward of a step (row) counts in the return from a position (column)."""
    ahead = np.arange(unroll_steps + td_steps)[:, None] - np.arange(unroll_steps + 1)
    return np.where((ahead >= 0) & (ahead < td_steps), float(discount) ** np.maximum(ahead, 0), 0.0).astype(np.float32)
