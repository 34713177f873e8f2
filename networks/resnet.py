"""A residual tower without batch statistics (He et al. 2016; Brock et al. 2021) in Flax."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util

from podzero.config import NestedConfig, ResNetConfig
from podzero.core.types import EnvSpec, Network, Params, ValuesFrom
from podzero.networks.layers import (
    HeadOutputs,
    Heads,
    actions_are_squares,
    check_boards,
    compute_dtype,
    convolve,
    flax_network,
    pooled,
    standardize,
)


def residual_start(blocks: int) -> float:
    """The initial gain of each of `blocks` residual branches: `1 / sqrt(blocks)`.

    A branch adds its squared gain times the variance of its input, so the variance grows at most e-fold over a tower of
    any depth. The gain is learned per channel.
    """
    # A gain that starts at zero (SkipInit, De and Smith 2020) is stable at any depth but learns more slowly: on solved
    # connect-four positions, a 32x3 tower reached a value loss of 0.46 after 120 steps from 0.5, and 0.53 from zero.
    return 1.0 / math.sqrt(blocks)


class Conv(nn.Module):
    """A convolution with standardized weights.

    If `folded`, the parameter `kernel` is standardized already, by `fold`, and there is no gain.
    """

    features: int
    folded: bool
    start: float = 1.0
    """Initial gain."""
    size: int = 3
    """Height and width of the kernel."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, H, W, in]` to `[B, H, W, features]`."""
        shape = (self.size, self.size, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        if not self.folded:
            gain = self.param("gain", nn.initializers.constant(self.start), (self.features,))
            kernel = standardize(kernel, gain)
        return convolve(x, kernel, bias)


class Block(nn.Module):
    """A pre-activation residual block: `x + conv(activate(conv(activate(x))))`.

    With `pooling`, the pooled inner activations add a bias to each channel.
    """

    folded: bool
    start: float
    """Initial gain of the branch."""
    pooling: bool = False
    activate: Callable[[jax.Array], jax.Array] = nn.relu

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, H, W, C]` to the same shape."""
        channels = x.shape[-1]
        y = Conv(channels, self.folded, name="conv_0")(self.activate(x))
        if self.pooling:
            board = pooled(self.activate(y).reshape(x.shape[0], -1, channels))
            # It starts at zero, so that an untrained block is one without pooling.
            bias = nn.Dense(channels, dtype=x.dtype, kernel_init=nn.initializers.zeros, name="pooling")(board)
            y = y + bias[:, None, None]
        y = Conv(channels, self.folded, self.start, name="conv_1")(self.activate(y))
        return x + y


class Tower(nn.Module):
    """A stem, residual blocks, and the heads."""

    config: ResNetConfig | NestedConfig
    folded: bool
    """See `Conv`."""
    start: float
    """Initial gain of the blocks."""
    block: Callable[..., Callable[[jax.Array], jax.Array]]
    """Makes a block, from `folded`, `start` and `pooling` as `Block` has them."""
    pooling_every: int
    """Every so many blocks, one pools over the board; at 0 none does."""
    make_heads: Callable[..., Heads]
    activate: Callable[[jax.Array], jax.Array] = nn.relu

    @nn.compact
    def __call__(self, observation: jax.Array, auxiliary: bool = False) -> HeadOutputs:
        """Maps `[B, H, W, C]` of any real dtype or bool to the outputs of `Heads`."""
        config, every = self.config, self.pooling_every
        x = jnp.asarray(observation, compute_dtype(config.compute_dtype))
        x = Conv(config.channels, self.folded, name="stem")(x)
        block = nn.remat(self.block) if config.remat else self.block
        for index in range(config.blocks):
            pooling = every > 0 and index % every == every - 1
            x = block(self.folded, self.start, pooling, name=f"block_{index}")(x)
        assert x.shape == (*observation.shape[:3], config.channels), x.shape
        features = self.activate(x).reshape(x.shape[0], -1, config.channels)
        outputs: HeadOutputs = self.make_heads(name="heads")(features, auxiliary)
        return outputs


def resnet(config: ResNetConfig, spec: EnvSpec, folded: bool = False) -> Network:
    """The network for the boards of `spec`: to train, or for parameters of acting if `folded`."""
    check_boards(spec, config.name)
    every = 2 if config.global_pooling else 0
    make_heads = resnet_heads(config, spec)
    module = Tower(config, folded, residual_start(config.blocks), Block, every, make_heads)
    values_from = None if folded else make_heads(name=None).values_from
    return flax_network(module, spec, config.auxiliary and not folded, values_from)


def resnet_heads(config: ResNetConfig, spec: EnvSpec) -> Callable[..., Heads]:
    """What makes the heads of a ResNet; it takes their name."""
    pooled = config.global_pooling and actions_are_squares(spec)
    # One player's sums of rewards differ by orders of magnitude, which a distribution over bins predicts well.
    values_from: ValuesFrom = "distribution" if spec.players == 1 else None
    return partial(Heads, spec.num_actions, config.value_hidden, pooled, spec.values, values_from, config.ownership)


class Layer(NamedTuple):
    """A convolution or a dense layer of a folded network."""

    kernel: Any
    """`[3, 3, in, out]` of a convolution, `[in, out]` of a dense layer; a NumPy or JAX array."""
    bias: Any
    """`[out]`."""


def layers_of(params: Params) -> dict[str, Layer]:
    """The layers of a folded ResNet, by names such as `stem`, `block_0/conv_1`, `heads/policy_logits`."""
    found = traverse_util.flatten_dict(params, is_leaf=lambda _, node: "kernel" in node, sep="/")  # type: ignore[no-untyped-call]
    return {name: Layer(**layer) for name, layer in found.items()}
