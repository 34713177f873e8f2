"""A residual network for boards in Haiku."""

from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp


class Block(hk.Module):
    """Two convolutions, each after layer normalization and relu (He et al. 2016)."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, H, W, C]` to the same shape."""
        y = x
        for _ in range(2):
            y = hk.LayerNorm(axis=-1, create_scale=True, create_offset=True)(y)
            y = hk.Conv2D(x.shape[-1], kernel_shape=3)(jax.nn.relu(y))
        return x + y


class HaikuResNet(hk.Module):
    """A residual tower with policy and value heads, which begin at zero: at first all moves are equally good."""

    def __init__(self, num_actions: int, channels: int = 32, blocks: int = 3, name: str | None = None) -> None:
        super().__init__(name)
        self.num_actions, self.channels, self.blocks = num_actions, channels, blocks

    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps observations `[B, H, W, planes]` to policy logits `[B, A]` and values `[B]` in [-1, 1]."""
        x = hk.Conv2D(self.channels, kernel_shape=3)(observation)
        for _ in range(self.blocks):
            x = Block()(x)
        x = hk.Flatten()(jax.nn.relu(hk.Linear(16)(x)))
        value = hk.Linear(1, w_init=jnp.zeros)(jax.nn.relu(hk.Linear(64)(x)))
        return hk.Linear(self.num_actions, w_init=jnp.zeros)(x), jnp.tanh(value[:, 0])
