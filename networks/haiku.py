"""The layers of MuZero's networks in Haiku. They keep float32 parameters and compute in the dtype of their input."""

from __future__ import annotations

from dataclasses import dataclass

import haiku as hk
import jax
import jax.numpy as jnp

from podzero.networks.layers import convolve, standardize


@dataclass
class HaikuConv(hk.Module):
    """A 3x3 convolution with standardized weights."""

    features: int
    name: str
    start: float = 1.0
    """Initial gain."""
    stride: int = 1

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, H, W, in]` to `[B, ceil(H / stride), ceil(W / stride), features]`."""
        shape = (3, 3, x.shape[-1], self.features)
        kernel = hk.get_parameter("kernel", shape, init=_variance_scaling(1.0))
        bias = hk.get_parameter("bias", (self.features,), init=jnp.zeros)
        gain = hk.get_parameter("gain", (self.features,), init=hk.initializers.Constant(self.start))
        return convolve(x, standardize(kernel, gain), bias, self.stride)


@dataclass
class HaikuBlock(hk.Module):
    """A pre-activation residual block: `x + conv(relu(conv(relu(x))))`."""

    start: float
    """Initial gain of the branch."""
    name: str

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, H, W, C]` to the same shape."""
        channels = x.shape[-1]
        y = HaikuConv(channels, "conv_0")(jax.nn.relu(x))
        y = HaikuConv(channels, "conv_1", self.start)(jax.nn.relu(y))
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
