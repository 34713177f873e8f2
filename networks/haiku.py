"""Haiku layers, and the ResNet of `resnet.py` in Haiku: the same function of the same parameters.

The layers keep float32 parameters and compute in the dtype of their input. MuZero's networks use them too.
"""

from __future__ import annotations

from dataclasses import dataclass

import haiku as hk
import jax
import jax.numpy as jnp

from podzero.config import ResNetConfig
from podzero.networks.layers import (
    LAST_LAYER_SCALE,
    POLICY_PLANES,
    VALUE_PLANES,
    check_boards,
    compute_dtype,
    convolve,
    fold,
    standardize,
    values_of,
)
from podzero.networks.resnet import residual_start
from podzero.types import Array, EnvSpec, Network, Params


@dataclass
class HaikuConv(hk.Module):
    """A 3x3 convolution with standardized weights; `folded` if `fold` has standardized its kernel already."""

    features: int
    folded: bool
    name: str
    start: float = 1.0
    """Initial gain."""
    stride: int = 1

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, H, W, in]` to `[B, ceil(H / stride), ceil(W / stride), features]`."""
        shape = (3, 3, x.shape[-1], self.features)
        kernel = hk.get_parameter("kernel", shape, init=_variance_scaling(1.0))
        bias = hk.get_parameter("bias", (self.features,), init=jnp.zeros)
        if not self.folded:
            gain = hk.get_parameter("gain", (self.features,), init=hk.initializers.Constant(self.start))
            kernel = standardize(kernel, gain)
        return convolve(x, kernel, bias, self.stride)


@dataclass
class HaikuBlock(hk.Module):
    """A pre-activation residual block: `x + conv(relu(conv(relu(x))))`."""

    folded: bool
    start: float
    """Initial gain of the branch."""
    name: str

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, H, W, C]` to the same shape."""
        channels = x.shape[-1]
        y = HaikuConv(channels, self.folded, "conv_0")(jax.nn.relu(x))
        y = HaikuConv(channels, self.folded, "conv_1", self.start)(jax.nn.relu(y))
        return x + y


@dataclass
class Dense(hk.Module):
    """A dense layer with float32 parameters that computes in the dtype of its input, as Flax's does."""

    features: int
    scale: float
    """Variance scale of the initial kernel."""
    name: str

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[..., in]` to `[..., features]`."""
        kernel = hk.get_parameter("kernel", (x.shape[-1], self.features), init=_variance_scaling(self.scale))
        bias = hk.get_parameter("bias", (self.features,), init=jnp.zeros)
        return x @ kernel.astype(x.dtype) + bias.astype(x.dtype)


@dataclass
class HaikuMLP(hk.Module):
    """`layers` dense layers, each followed by layer normalization and relu."""

    width: int
    layers: int
    name: str

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[..., in]` to `[..., width]`."""
        for index in range(self.layers):
            x = Dense(self.width, 2.0, f"hidden_{index}")(x)
            x = jax.nn.relu(layer_norm(x, f"norm_{index}"))
        return x


def layer_norm(x: jax.Array, name: str) -> jax.Array:
    """Layer normalization over the last axis (Ba et al. 2016), computed in float32."""
    norm = hk.LayerNorm(axis=-1, create_scale=True, create_offset=True, name=name)
    return norm(x.astype(jnp.float32)).astype(x.dtype)


def _variance_scaling(scale: float) -> hk.initializers.Initializer:
    return hk.initializers.VarianceScaling(scale, "fan_in", "truncated_normal")  # type: ignore[no-untyped-call]


@dataclass
class HaikuHeads(hk.Module):
    """Policy and value heads; see `podzero.networks.layers.Heads`."""

    num_actions: int
    value_hidden: int
    values: int
    name: str = "heads"

    def __call__(self, features: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, S, C]` to float32 logits `[B, A]` and values in [-1, 1], see `values_of`."""
        batch = features.shape[0]
        planes = jax.nn.relu(Dense(POLICY_PLANES, 2.0, "policy_planes")(features))
        # The last layers compute in float32, whatever the tower's dtype.
        planes = planes.reshape(batch, -1).astype(jnp.float32)
        logits = Dense(self.num_actions, LAST_LAYER_SCALE, "policy_logits")(planes)

        planes = jax.nn.relu(Dense(VALUE_PLANES, 2.0, "value_planes")(features))
        planes = jax.nn.relu(Dense(self.value_hidden, 2.0, "value_hidden")(planes.reshape(batch, -1)))
        return logits, values_of(Dense(self.values, LAST_LAYER_SCALE, "value")(planes.astype(jnp.float32)))


@dataclass
class HaikuResNet(hk.Module):
    """The tower with its heads."""

    config: ResNetConfig
    num_actions: int
    values: int
    folded: bool
    name: str = "resnet"

    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, H, W, C]` of any real dtype or bool to the outputs of `HaikuHeads`."""
        config = self.config
        x = jnp.asarray(observation, compute_dtype(config.compute_dtype))
        x = HaikuConv(config.channels, self.folded, "stem")(x)
        start = residual_start(config.blocks)
        for index in range(config.blocks):
            block = HaikuBlock(self.folded, start, f"block_{index}")
            x = hk.remat(block)(x) if config.remat else block(x)
        assert x.shape == (*observation.shape[:3], config.channels), x.shape
        features = jax.nn.relu(x).reshape(x.shape[0], -1, config.channels)
        return HaikuHeads(self.num_actions, config.value_hidden, self.values)(features)


def haiku_resnet(config: ResNetConfig, spec: EnvSpec) -> Network:
    """The trainable network for the boards of `spec`.

    Raises:
      ConfigError: the observations are not boards.
    """
    check_boards(spec, config.name)
    network = _transform(config, spec, folded=False)

    def init(key: Array) -> Params:
        return network.init(key, jnp.zeros((1, *spec.observation_shape), spec.observation_dtype))

    return Network(init, network.apply)


def folded_haiku_resnet(config: ResNetConfig, spec: EnvSpec) -> Network:
    """The same network for parameters that `fold` returned: plain convolutions with biases."""
    trainable = haiku_resnet(config, spec)
    return Network(lambda key: fold(trainable.init(key)), _transform(config, spec, folded=True).apply)


def _transform(config: ResNetConfig, spec: EnvSpec, *, folded: bool) -> hk.Transformed:
    def forward(observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        return HaikuResNet(config, spec.num_actions, spec.values, folded)(observation)

    return hk.without_apply_rng(hk.transform(forward))
