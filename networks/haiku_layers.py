"""The layers of the Haiku networks: float32 parameters, computed in the dtype of their input."""

from __future__ import annotations

from dataclasses import dataclass

import haiku as hk
import jax
import jax.numpy as jnp

from podzero.networks.standardized import convolve, standardize


@dataclass
class Conv(hk.Module):
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
class Block(hk.Module):
    """A pre-activation residual block: `x + conv(relu(conv(relu(x))))`."""

    folded: bool
    start: float
    """Initial gain of the branch."""
    name: str

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, H, W, C]` to the same shape."""
        channels = x.shape[-1]
        y = Conv(channels, self.folded, "conv_0")(jax.nn.relu(x))
        y = Conv(channels, self.folded, "conv_1", self.start)(jax.nn.relu(y))
        return x + y


@dataclass
class Dense(hk.Module):
    """A dense layer that computes in the dtype of its input from float32 parameters, as Flax's does."""

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
class MLP(hk.Module):
    """`layers` times: a dense layer, layer normalization, relu."""

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
