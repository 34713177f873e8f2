"""KataGo's tower of nested bottleneck blocks, which gives more for its time than plain residual blocks, in Flax.

It follows "Nested Bottleneck Residual Nets" in https://github.com/lightvector/KataGo (docs/KataGoMethods.md), with
standardized weights in place of fixed scales, and the pooling of `Block`. Its b10c256nbt has 10 blocks of 256 channels.
"""

from __future__ import annotations

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from podzero.config import NestedConfig
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec, Network
from podzero.networks.layers import Heads, actions_are_squares, check_boards, flax_network
from podzero.networks.resnet import Block, Conv, Tower, residual_start

PAIRS = 2
"""Residual pairs of 3x3 convolutions in a block."""
POOLING_EVERY = 3
"""Every third block pools over the board."""


def mish(x: jax.Array) -> jax.Array:
    """`x tanh(softplus(x))` (Misra 2019, https://arxiv.org/abs/1908.08681), by one exponential.

    With `n = e^x (e^x + 2)`, `tanh(log(1 + e^x)) = n / (n + 2)`.
    """
    # softplus compares its argument with itself to keep NaNs, which a TPU writes out as masks beside each convolution.
    # From 20 on the factor is one in float32; a larger exponential would overflow.
    e = jnp.exp(jnp.minimum(x, 20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


class NestedBlock(nn.Module):
    """A 1x1 convolution to half the channels, residual pairs of 3x3 convolutions there, and a 1x1 convolution back."""

    folded: bool
    """See `Conv`."""
    start: float
    """Initial gain of the last convolution."""
    pooling: bool = False
    """Whether the first pair pools over the board."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, H, W, C]` to the same shape."""
        channels = x.shape[-1]
        y = Conv(channels // 2, self.folded, size=1, name="down")(mish(x))
        for index in range(PAIRS):
            pooling = self.pooling and index == 0
            y = Block(self.folded, residual_start(PAIRS), pooling, mish, name=f"pair_{index}")(y)
        return x + Conv(channels, self.folded, self.start, size=1, name="up")(mish(y))


def nested(config: NestedConfig, spec: EnvSpec, folded: bool = False) -> Network:
    """The network for boards of `spec`, a game for two; the value is the expected outcome. `folded`: as in `resnet`."""
    check_boards(spec, config.name)
    if spec.players != 2 or spec.values != 1:
        raise ConfigError(
            f"network.name = 'nested' predicts loss, draw and win, as of a zero-sum game for two; '{spec.name}' has "
            f"{spec.players} player(s) and {spec.values} value(s). Set network.name=resnet"
        )
    # The pairs raise the variance to about (1 + 1 / 2) ** 2 = 1.5 ** 2 before the last convolution.
    start = residual_start(config.blocks) / 1.5
    pooled, owners = actions_are_squares(spec), config.ownership
    heads = partial(Heads, spec.num_actions, config.value_hidden, pooled, values_from="outcome", ownership=owners)
    module = Tower(config, folded, start, NestedBlock, POOLING_EVERY, heads, mish)
    return flax_network(module, spec, config.auxiliary and not folded, None if folded else "outcome")
