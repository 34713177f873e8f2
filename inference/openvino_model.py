"""OpenVINO models of a folded ResNet in float32 and int8, compiled and run on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from podzero.core.importing import import_openvino
from podzero.networks.layers import side_factor
from podzero.networks.resnet import Layer

INT8_INSTRUCTIONS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
"""Flags in /proc/cpuinfo, of which one suffices."""
BFLOAT16_INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16"})
"""Flags in /proc/cpuinfo, of which one suffices."""
CPUINFO = Path("/proc/cpuinfo")


def has_int8_instructions(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the CPU has one of `INT8_INSTRUCTIONS`; False without `cpuinfo`."""
    return not INT8_INSTRUCTIONS.isdisjoint(_flags(cpuinfo))


def has_bfloat16_instructions(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the CPU has one of `BFLOAT16_INSTRUCTIONS`; False without `cpuinfo`."""
    return not BFLOAT16_INSTRUCTIONS.isdisjoint(_flags(cpuinfo))


def _flags(cpuinfo: Path) -> list[str]:
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split()


FROM_CHANNELS_LAST, TO_CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""Permutations between JAX's `[B, H, W, C]` and OpenVINO's `[B, C, H, W]`."""


class CpuCompiler:
    """Compiles models for the CPU.

    Args:
      precision: precision of everything that is not quantized.
    """

    def __init__(self, threads: int, precision: Literal["f32", "bf16"]) -> None:
        self._core = import_openvino().Core()
        self._settings = {
            # All threads share one batch; "THROUGHPUT" would divide them among several.
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            # Without a hint, OpenVINO chooses bfloat16 on CPUs that have it.
            "INFERENCE_PRECISION_HINT": precision,
            # Pinning would put several processes on the same cores.
            "ENABLE_CPU_PINNING": False,
        }

    def compile(self, model: Any) -> Any:
        """The inference request of an `openvino.Model`, for `infer`."""
        return self._core.compile_model(model, "CPU", self._settings).create_infer_request()


def infer(request: Any, *inputs: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Runs a model; returns copies of its outputs."""
    outputs = request.infer(dict(enumerate(inputs)), share_inputs=True)
    return [outputs[index] for index in range(len(outputs))]


_LEVELS = 256
"""Values of a quantized activation."""
_LARGEST_WEIGHT = 127
_LEAST_RANGE = 1e-6
"""Smallest range of an activation, which may be zero in all calibration positions."""


def float_model(layers: Mapping[str, Layer], batch: int, board: tuple[int, ...], dtype: str) -> Any:
    """The network in float32, which also measures the ranges of the activations that `int8_model` quantizes.

    Args:
      layers: the network's layers by name, with their parameters.
      batch: batch size, B.
      board: an observation's shape, `(H, W, P)`.
      dtype: NumPy name of the observations' dtype.

    Returns:
      a model that maps observations `[B, H, W, P]` (uint8 for `bool`) to logits and value, `[B, A + 1]` float32, and to
      the minimum and maximum of each of the N quantized activations, `[N, 2]`.
    """
    return _Builder(layers, None).build(batch, board, dtype)


def int8_model(
    layers: Mapping[str, Layer], batch: int, board: tuple[int, ...], dtype: str, ranges: np.ndarray[Any, Any]
) -> Any:
    """The network with all convolutions in int8, including the heads' 1x1 convolutions.

    Weights are quantized symmetrically with one scale per output channel, activations with one range per tensor. The
    residual stream and the dense layers of the heads stay in float32. Arguments and first output are those of
    `float_model`; `ranges` is its second output.
    """
    return _Builder(layers, ranges).build(batch, board, dtype)


class _Builder:
    """Builds one model of OpenVINO operations. Tensors are `[B, C, H, W]`."""

    def __init__(self, layers: Mapping[str, Layer], ranges: np.ndarray[Any, Any] | None) -> None:
        self._openvino = import_openvino()
        self._ops = self._openvino.opset13
        self._layers = layers
        self._ranges: Iterator[Any] | None = None if ranges is None else iter(ranges)
        self._extremes: list[Any] = []

    def build(self, batch: int, board: tuple[int, ...], dtype: str) -> Any:
        """The model; see `float_model` and `int8_model`."""
        ops = self._ops
        observation = ops.parameter([batch, *board], np.uint8 if dtype == "bool" else np.dtype(dtype))
        x = ops.transpose(ops.convert(observation, np.float32), FROM_CHANNELS_LAST)
        evaluation = self._heads(self._tower(x), batch)
        outputs = [evaluation] if self._ranges else [evaluation, ops.concat(self._extremes, 0)]
        return self._openvino.Model(outputs, [observation])

    def _tower(self, x: Any) -> Any:
        """The residual tower."""
        ops, layers = self._ops, self._layers
        x = self._convolve(self._quantized(x), layers["stem"])
        for index in range(sum(name.endswith("conv_1") for name in layers)):
            y = self._convolve(self._quantized(ops.relu(x)), layers[f"block_{index}/conv_0"])
            if f"block_{index}/pooling" in layers:
                bias = self._dense(self._pooled(ops.relu(y)), f"block_{index}/pooling")
                y = ops.add(y, ops.unsqueeze(bias, [2, 3]))
            y = self._convolve(self._quantized(ops.relu(y)), layers[f"block_{index}/conv_1"])
            x = ops.add(x, y)
        return self._quantized(ops.relu(x))

    def _heads(self, features: Any, batch: int) -> Any:
        """Logits and value, `[B, A + 1]`."""
        ops, layers = self._ops, self._layers
        policy_planes = self._planes(features, layers["heads/policy_planes"])
        value_planes = self._planes(features, layers["heads/value_planes"])
        if "heads/policy_pooled" in layers:
            logits, board = self._square_logits(policy_planes, batch), self._pooled(value_planes)
        else:
            logits = self._dense(self._flat(policy_planes, batch), "heads/policy_logits")
            board = self._flat(value_planes, batch)
        hidden = ops.relu(self._dense(board, "heads/value_hidden"))
        value = ops.tanh(self._dense(hidden, "heads/value"))
        return ops.concat([logits, value], 1)

    def _planes(self, features: Any, layer: Layer) -> Any:
        """A dense layer on each square, as a 1x1 convolution."""
        return self._ops.relu(self._convolve(features, Layer(layer.kernel[None, None], layer.bias)))

    def _flat(self, planes: Any, batch: int) -> Any:
        """Planes flattened with channels last, `[B, S * C]`."""
        ops = self._ops
        return ops.reshape(ops.transpose(planes, TO_CHANNELS_LAST), [batch, -1], False)

    def _pooled(self, x: Any) -> Any:
        """The same as `podzero.networks.layers.pooled`, `[B, 3 * C]`."""
        ops, (_, _, height, width) = self._ops, x.get_output_shape(0)
        mean, maximum = (reduce(x, [2, 3], False) for reduce in (ops.reduce_mean, ops.reduce_max))
        return ops.concat([mean, ops.multiply(mean, np.float32(side_factor(height * width))), maximum], 1)

    def _square_logits(self, planes: Any, batch: int) -> Any:
        """Logits of pooled heads, `[B, A]`."""
        ops, board = self._ops, self._pooled(planes)
        bias = ops.unsqueeze(self._dense(board, "heads/policy_pooled"), [2, 3])
        planes = ops.transpose(ops.relu(ops.add(planes, bias)), TO_CHANNELS_LAST)
        logits = ops.reshape(self._dense(planes, "heads/policy_squares"), [batch, -1], False)
        if "heads/policy_other" not in self._layers:
            return logits
        return ops.concat([logits, self._dense(board, "heads/policy_other")], 1)

    def _convolve(self, x: Any, layer: Layer) -> Any:
        """A same-padded convolution with bias."""
        ops, (height, width, _, _) = self._ops, layer.kernel.shape
        kernel = np.ascontiguousarray(np.transpose(layer.kernel, (3, 2, 0, 1)))
        pads = [height // 2, width // 2]
        y = ops.convolution(x, self._weights(kernel), [1, 1], pads, pads, [1, 1])
        return ops.add(y, layer.bias.reshape(1, -1, 1, 1))

    def _weights(self, kernel: np.ndarray[Any, Any]) -> Any:
        """A kernel `[out, in, h, w]`; in an int8 model, int8 values times one scale per output channel."""
        if self._ranges is None:
            return self._ops.constant(kernel)
        values, scale = quantize_weights(kernel)
        return self._ops.multiply(self._ops.convert(self._ops.constant(values), np.float32), scale)

    def _dense(self, x: Any, name: str) -> Any:
        """A dense layer in float32: `[..., in]` to `[..., out]`."""
        kernel, bias = self._layers[name]
        return self._ops.add(self._ops.matmul(x, kernel, False, False), bias[None])

    def _quantized(self, x: Any) -> Any:
        """An activation: rounded to `_LEVELS` values in an int8 model; in a float model its range is recorded."""
        ops = self._ops
        if self._ranges is not None:
            # OpenVINO turns this operation, between int8 weights, into int8 arithmetic when it compiles the model.
            low, high = next(self._ranges)
            low, high = np.float32(min(low, 0.0)), np.float32(max(high, _LEAST_RANGE))
            return ops.fake_quantize(x, low, high, low, high, _LEVELS)
        both = [reduce(x, [0, 1, 2, 3], False) for reduce in (ops.reduce_min, ops.reduce_max)]
        self._extremes.append(ops.reshape(ops.concat([ops.reshape(one, [1], False) for one in both], 0), [1, 2], False))
        return x


def quantize_weights(kernel: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Symmetric quantization of a kernel `[out, ...]` with one scale per output channel.

    Returns int8 values in [-127, 127] of the same shape, and float32 scales `[out, 1, ...]`.
    """
    largest = np.abs(kernel).max(axis=tuple(range(1, kernel.ndim)), keepdims=True)
    scale = np.where(largest > 0, largest / _LARGEST_WEIGHT, 1.0).astype(np.float32)
    return np.rint(kernel / scale).astype(np.int8), scale
