"""The layers of the Haiku networks: float32 parameters, computed in the dtype of their input."""

from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp
from jax import lax

from podzero.networks.standardized import convolve, standardize


class Conv(hk.Module):
    """A 3x3 convolution with standardized weights; `folded` when its kernel has been through `fold`."""

    def __init__(self, features: int, folded: bool, name: str, start: float = 1.0, stride: int = 1) -> None:
        super().__init__(name=name)
        self._features = features
        self._folded = folded
        self._start = start
        self._stride = stride

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, H, W, in]` to `[B, ceil(H / stride), ceil(W / stride), features]`."""
        shape = (3, 3, x.shape[-1], self._features)
        kernel = hk.get_parameter("kernel", shape, init=_variance_scaling(1.0))
        bias = hk.get_parameter("bias", (self._features,), init=jnp.zeros)
        if not self._folded:
            gain = hk.get_parameter("gain", (self._features,), init=hk.initializers.Constant(self._start))
            kernel = standardize(kernel, gain)
        return convolve(x, kernel, bias, self._stride)


class Block(hk.Module):
    """A pre-activation residual block: `x + conv(relu(conv(relu(x))))`."""

    def __init__(self, folded: bool, start: float, name: str) -> None:
        super().__init__(name=name)
        self._folded = folded
        self._start = start

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, H, W, C]` to the same shape."""
        channels = x.shape[-1]
        y = Conv(channels, self._folded, "conv_0")(jax.nn.relu(x))
        y = Conv(channels, self._folded, "conv_1", self._start)(jax.nn.relu(y))
        return x + y


class Dense(hk.Module):
    """A dense layer that computes in the dtype of its input from float32 parameters, as Flax's does."""

    def __init__(self, features: int, scale: float, name: str) -> None:
        super().__init__(name=name)
        self._features = features
        self._scale = scale

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[..., in]` to `[..., features]`."""
        kernel = hk.get_parameter("kernel", (x.shape[-1], self._features), init=_variance_scaling(self._scale))
        bias = hk.get_parameter("bias", (self._features,), init=jnp.zeros)
        return x @ kernel.astype(x.dtype) + bias.astype(x.dtype)


class LayerNorm(hk.Module):
    """Layer normalization over the last axis (Ba et al. 2016), computed in float32."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[..., width]` to the same shape and dtype."""
        scale = hk.get_parameter("scale", x.shape[-1:], init=jnp.ones)
        offset = hk.get_parameter("offset", x.shape[-1:], init=jnp.zeros)
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        normal = centred * lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
        return (normal * scale + offset).astype(x.dtype)


class Perceptron(hk.Module):
    """`layers` times: a dense layer, layer normalization, relu."""

    def __init__(self, width: int, layers: int, name: str) -> None:
        super().__init__(name=name)
        self._width = width
        self._layers = layers

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[..., in]` to `[..., width]`."""
        for index in range(self._layers):
            x = Dense(self._width, 2.0, f"hidden_{index}")(x)
            x = jax.nn.relu(LayerNorm(f"norm_{index}")(x))
        return x


def _variance_scaling(scale: float) -> hk.initializers.Initializer:
    return hk.initializers.VarianceScaling(scale, "fan_in", "truncated_normal")  # type: ignore[no-untyped-call]
