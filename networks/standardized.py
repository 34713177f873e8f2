"""Scaled weight standardization: it normalizes weights instead of activations, so that inference need not compute it.

Batch statistics would make a network stateful, and layer normalization cannot be folded away. A convolution whose
kernel is standardized (Brock, De and Smith 2021, "Characterizing signal propagation to close the performance gap in
unnormalized ResNets") needs neither: the normalized kernel is a function of the parameters alone. So `fold` computes
it once, and a plain convolution with a bias remains.

The Flax and the Haiku networks share these functions. Their convolutions have the parameters `kernel [h, w, in, out]`,
`gain [out]` and `bias [out]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from podzero.types import Params

RELU_GAIN = math.sqrt(2.0 / (1.0 - 1.0 / math.pi))
"""With this gain, about 1.71, relu of a standard normal variable has variance one."""

_EPSILON = 1e-4


def standardize(kernel: jax.Array, gain: jax.Array) -> jax.Array:
    """The kernel with which a standardized convolution convolves.

    `RELU_GAIN * gain * (W - mean) / sqrt(max(fan_in * var, 1e-4))`, mean and variance taken for each output channel.

    Args:
      kernel: `[h, w, in, out]`.
      gain: `[out]`.

    Returns:
      `[h, w, in, out]`; with gain one each output channel has zero mean and squared norm `RELU_GAIN ** 2`.
    """
    fan_in = math.prod(kernel.shape[:-1])
    mean = jnp.mean(kernel, axis=(0, 1, 2), keepdims=True)
    variance = jnp.var(kernel, axis=(0, 1, 2), keepdims=True)
    scale = lax.rsqrt(jnp.maximum(fan_in * variance, _EPSILON))
    return (kernel - mean) * (RELU_GAIN * scale * gain)


def fold(params: Params) -> Params:
    """Turns every standardized convolution of a parameter tree into a plain one.

    Args:
      params: nested mappings; a mapping with `kernel` and `gain` is a standardized convolution.

    Returns:
      The same tree of dicts with standardized kernels and without gains.
    """
    if not isinstance(params, Mapping):
        return params
    if "gain" in params and "kernel" in params:
        rest: dict[str, Any] = {name: leaf for name, leaf in params.items() if name != "gain"}
        return rest | {"kernel": standardize(params["kernel"], params["gain"])}
    return {name: fold(child) for name, child in params.items()}


def convolve(x: jax.Array, kernel: jax.Array, bias: jax.Array, stride: int = 1) -> jax.Array:
    """A same-padded convolution plus bias, in the dtype of `x`.

    Args:
      x: `[B, H, W, in]`.
      kernel: `[h, w, in, out]`.
      bias: `[out]`.
      stride: in pixels, along both sides.

    Returns:
      `[B, ceil(H / stride), ceil(W / stride), out]`.
    """
    strides, layout = (stride, stride), ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, kernel.astype(x.dtype), strides, "SAME", dimension_numbers=layout)
    return y + bias.astype(x.dtype)
