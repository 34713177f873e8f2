"""A network whose residual tower TPUs compute in int8: the JAX program, quantization and calibration.

Kernels are quantized symmetrically with one scale per output channel, the input of each convolution with one scale per
tensor (Jacob et al. 2018, without zero points, since relu precedes). Sums of products are int32. The stem, the residual
stream, pooling and the heads keep the network's dtype.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from podzero.config import ResNetConfig
from podzero.core.types import Array, EnvSpec, Params
from podzero.inference.agreement import AgreementCheck, RecentPositions
from podzero.networks import make_inference
from podzero.networks.layers import compute_dtype, convolve, pooled
from podzero.networks.resnet import Layer, layers_of, resnet_heads

LARGEST = 127
"""Largest quantized number."""
_LEAST = 1e-6
"""Smallest range of a channel or an activation, which may be zero everywhere."""
_HEADS = "heads/"

_Evaluation = tuple[jax.Array, jax.Array]
"""Logits `[B, A]` and values `[B]`, float32."""
_Convolve = Callable[[str, jax.Array], jax.Array]
"""Applies relu, then the tower's convolution of the given name."""


class Int8Convolution(NamedTuple):
    """A 3x3 convolution of the tower."""

    kernel: Array
    """`[3, 3, in, out]` int8."""
    scale: Array
    """`[out]` float32, factor on the integer sums."""
    bias: Array
    """`[out]` float32."""
    unit: Array
    """`[]` float32, scale of the quantized input."""


class Int8Params(NamedTuple):
    """The parameters of a network with its tower in int8."""

    tower: Mapping[str, Int8Convolution]
    """Convolutions by names such as `block_0/conv_1`."""
    others: Mapping[str, Layer]
    """All other layers, by name in `layers_of`."""


def float_evaluation(
    config: ResNetConfig, spec: EnvSpec, params: Params, observation: Array
) -> tuple[_Evaluation, dict[str, jax.Array]]:
    """Evaluates in float with parameters from the `fold` of `podzero.networks.make_inference`.

    Returns also the ranges for `quantize`: the largest input of each tower convolution, `[]` float32 by name.
    """
    layers, largest = layers_of(params), dict[str, jax.Array]()

    def convolved(name: str, x: jax.Array) -> jax.Array:
        x = jax.nn.relu(x)
        largest[name] = jnp.max(x).astype(jnp.float32)
        return convolve(x, layers[name].kernel, layers[name].bias)

    return _evaluation(config, spec, layers, observation, convolved), largest


def int8_evaluation(config: ResNetConfig, spec: EnvSpec, params: Int8Params, observation: Array) -> _Evaluation:
    """Evaluates with the tower in int8; arguments as for `float_evaluation`."""
    dtype = compute_dtype(config.compute_dtype)

    def convolved(name: str, x: jax.Array) -> jax.Array:
        kernel, scale, bias, unit = params.tower[name]
        # After relu, inputs lie in 0 to 127 of int8, without a zero point.
        quantized = jnp.clip(jnp.round(x.astype(jnp.float32) / unit), 0, LARGEST).astype(jnp.int8)
        return (_sums(quantized, jnp.asarray(kernel)) * scale + bias).astype(dtype)

    return _evaluation(config, spec, params.others, observation, convolved)


def quantize(params: Params, largest: Mapping[str, Array]) -> Int8Params:
    """The parameters for `int8_evaluation`, with the ranges of `float_evaluation` on the calibration positions."""
    layers = layers_of(params)

    def quantized(name: str) -> Int8Convolution:
        # In bfloat16 a quotient would be rounded twice.
        kernel, bias = (jnp.asarray(leaf, jnp.float32) for leaf in layers[name])
        ranges = jnp.maximum(jnp.max(jnp.abs(kernel), axis=(0, 1, 2)), _LEAST)
        unit = jnp.maximum(largest[name], _LEAST) / LARGEST
        values = jnp.round(kernel / (ranges / LARGEST)).astype(jnp.int8)
        return Int8Convolution(values, unit * ranges / LARGEST, bias, unit)

    tower = [name for name in layers if name.endswith(("/conv_0", "/conv_1"))]
    others = {name: layer for name, layer in layers.items() if name not in tower}
    return Int8Params({name: quantized(name) for name in tower}, others)


def _sums(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """An int8 convolution with exact sums, returned as float32."""

    def convolved(x: jax.Array, kernel: jax.Array, sums: Any) -> jax.Array:
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=layout, preferred_element_type=sums
        ).astype(jnp.float32)

    def in_float(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return convolved(x.astype(jnp.float32), kernel.astype(jnp.float32), jnp.float32)

    # XLA has no fast int8 convolution for CPUs; float32 is exact for sums below 2^24.
    return cast(jax.Array, lax.platform_dependent(x, kernel, cpu=in_float, default=partial(convolved, sums=jnp.int32)))


def _evaluation(
    config: ResNetConfig, spec: EnvSpec, layers: Mapping[str, Layer], observation: Array, convolved: _Convolve
) -> _Evaluation:
    """The network of `podzero.networks.resnet` with `convolved` as the tower's convolutions."""
    x = jnp.asarray(observation, compute_dtype(config.compute_dtype))
    x = convolve(x, layers["stem"].kernel, layers["stem"].bias)
    for index in range(config.blocks):
        y = convolved(f"block_{index}/conv_0", x)
        if (pooling := layers.get(f"block_{index}/pooling")) is not None:
            board = pooled(jax.nn.relu(y).reshape(y.shape[0], -1, config.channels))
            y += (board @ pooling.kernel.astype(y.dtype) + pooling.bias.astype(y.dtype))[:, None, None]
        x += convolved(f"block_{index}/conv_1", y)
    features = jax.nn.relu(x).reshape(x.shape[0], -1, config.channels)
    heads = {name.removeprefix(_HEADS): layer._asdict() for name, layer in layers.items() if name.startswith(_HEADS)}
    return cast(_Evaluation, resnet_heads(config, spec)(name=None).apply({"params": heads}, features)[:2])


class Int8Network:
    """The acting network of `podzero.networks.make_inference` with its tower in int8.

    If int8 changes a version's evaluations too much, `fold` leaves its parameters in float, and programs that call
    `apply` are recompiled. The first `fold` calls `positions`, which makes the first calibration positions.
    """

    def __init__(self, config: ResNetConfig, spec: EnvSpec, positions: Callable[[], RecentPositions]) -> None:
        folded, self._network = make_inference(config, spec)
        self._dtype = compute_dtype(config.compute_dtype).name
        self._fold, self._quantize = jax.jit(folded), jax.jit(quantize)
        self._in_float = jax.jit(partial(float_evaluation, config, spec))
        self._in_int8 = partial(int8_evaluation, config, spec)
        self._jitted = jax.jit(self._in_int8)
        self._check = AgreementCheck()
        self._positions = cache(positions)

    def init(self, key: Array) -> Int8Params:
        """Uncalibrated int8 parameters, for their shapes. Traceable."""
        return quantize(self._network.init(key), defaultdict(lambda: jnp.ones(())))

    def fold(self, params: Params) -> Params:
        """Converts published parameters for `apply`, to int8 unless its errors exceed the limits."""
        folded, (calibration, held_back) = self._fold(params), self._positions().split()
        _, largest = self._in_float(folded, calibration.observation)
        quantized = self._quantize(folded, largest)
        expected, _ = self._in_float(folded, held_back.observation)
        evaluated = self._jitted(quantized, held_back.observation)
        sides = _side_by_side(expected), _side_by_side(evaluated)
        accepted = self._check.accepts(*sides, held_back.legal, self._dtype)
        return quantized if accepted else folded

    def apply(self, params: Params, observation: Array) -> _Evaluation:
        """Observations `[B, H, W, P]` to logits `[B, A]` and values `[B]`, float32; traceable."""
        if isinstance(params, Int8Params):
            return self._in_int8(params, observation)
        return self._network.apply(params, observation)

    def record(self, batch: Any) -> None:
        """Offers a batch to later calibrations: what the `decode` of the `RecentPositions` accepts. Thread-safe."""
        self._positions().add(batch)

    def metrics(self) -> dict[str, float]:
        """See `AgreementCheck.metrics`."""
        return self._check.metrics()


def _side_by_side(evaluation: _Evaluation) -> np.ndarray[Any, Any]:
    logits, value = jax.device_get(evaluation)
    return np.concatenate([logits, value[:, None]], axis=1)
