"""The ResNet for training on a CPU: OpenVINO computes its tower and the gradients, JAX the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config import ResNetConfig
from podzero.core.importing import import_openvino
from podzero.core.machine import has_bfloat16_instructions, usable_cpus
from podzero.core.types import Array, EnvSpec, Network, Params, Prediction
from podzero.inference.openvino_network import FROM_CHANNELS_LAST, TO_CHANNELS_LAST, Precision, cpu_compiler, infer
from podzero.networks import make_network
from podzero.networks.layers import HeadOutputs, convolve, fold, side_factor
from podzero.networks.resnet import resnet_heads

Tower = Callable[[jax.Array, tuple[jax.Array, ...]], jax.Array]
"""Activations `[B, H, W, C]` and the weights of N blocks to `[B, H, W, C]`; float32. The weights are kernels
`[2 N, 3, 3, C, C]` and biases `[2 N, C]`; if every second block pools, also kernels `[N // 2, 3 C, C]` and biases
`[N // 2, C]` of what is pooled."""

_TO_OUT_IN, _TO_IN_OUT = (3, 2, 0, 1), (2, 3, 0, 1)
"""Permutations of kernels `[3, 3, in, out]`."""


def make_tower(threads: int) -> Tower:
    """The tower as a differentiable function for JAX programs on one CPU device.

    Each block is that of `podzero.networks.resnet`. Activations and gradients are bfloat16, sums of products float32;
    on a CPU without bfloat16 instructions all are float32.
    """
    precision: Precision = "bf16" if has_bfloat16_instructions() else "f32"
    compile_model, one_at_a_time = cpu_compiler(threads, precision), threading.Lock()

    @cache
    def engine(shapes: Sequence[tuple[int, ...]], backward: bool) -> Any:
        return compile_model(_model(shapes, backward, precision))

    def call(backward: bool, like: Sequence[jax.Array], *inputs: jax.Array) -> Any:
        """Runs a model; its results have the shapes of `like`."""

        def on_host(*arrays: Any) -> list[np.ndarray[Any, Any]]:
            # XLA may call for several microbatches at once, but an inference request serves one call.
            with one_at_a_time:
                return infer(engine(tuple(each.shape for each in arrays), backward), *map(np.asarray, arrays))

        return jax.pure_callback(on_host, list(like), *inputs)

    @jax.custom_vjp
    def tower(x: jax.Array, weights: tuple[jax.Array, ...]) -> jax.Array:
        return cast(jax.Array, call(False, [x], x, *weights)[0])

    def forward(x: jax.Array, weights: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        return tower(x, weights), (x, *weights)

    def backward(inputs: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        of_x, *of_weights = call(True, inputs, *inputs, gradient)
        return of_x, tuple(of_weights)

    tower.defvjp(forward, backward)
    return tower


class _Pooling(NamedTuple):
    """What a block has pooled, and how it uses it."""

    activations: Any
    """`[B, C, H, W]`, what was pooled."""
    highest: Any
    """`[B, C, 1, 1]`, the maximum of each channel."""
    board: Any
    """`[B, 3 C]`, as `pooled` gives it."""
    kernel: Any
    """`[3 C, C]`, from which the bias of each channel is made."""


def _model(shapes: Sequence[tuple[int, ...]], backward: bool, precision: Precision) -> Any:
    """An OpenVINO model of `Tower`; or `backward`, from its inputs and the gradient of its result to their gradients.

    `shapes` are those of the inputs. Tensors are `[B, C, H, W]` in this precision.
    """
    openvino = import_openvino()
    ops, (shape, (layers, *_), *_) = openvino.opset13, shapes
    inputs = [ops.parameter(list(size), np.float32) for size in shapes]
    x, kernels, biases, *more = (ops.convert(each, precision) for each in inputs)
    kernels = _split(ops, kernels)
    biases = ops.split(ops.reshape(biases, [layers, shape[-1], 1, 1], False), 0, layers).outputs()
    gradient = more.pop() if backward else None
    pool_kernels, pool_biases = (_split(ops, each) for each in more) if more else ([], [])
    y, activations, poolings = ops.transpose(x, FROM_CHANNELS_LAST), [], {}
    for first in range(0, layers, 2):
        branch = y
        for layer in (first, first + 1):
            activations.append(ops.relu(branch))
            kernel = ops.transpose(kernels[layer], _TO_OUT_IN)
            branch = ops.add(_convolve(ops, activations[layer], kernel), biases[layer])
            if layer % 4 == 2 and pool_kernels:
                pooling = poolings[layer] = _pool(ops, ops.relu(branch), pool_kernels[layer // 4], shape)
                bias = ops.add(ops.matmul(pooling.board, pooling.kernel, False, False), pool_biases[layer // 4])
                branch = ops.add(branch, ops.reshape(bias, [-1, shape[-1], 1, 1], False))
        y = ops.add(y, branch)
    outputs = [ops.transpose(y, TO_CHANNELS_LAST)]
    if backward:
        # It recomputes the activations, which costs less than sending them to JAX and back.
        last = ops.transpose(gradient, FROM_CHANNELS_LAST)
        outputs = _gradients(ops, last, activations, kernels, poolings, shape)
    return openvino.Model([ops.convert(each, "f32") for each in outputs], inputs)


def _split(ops: Any, stacked: Any) -> list[Any]:
    """The entries of the first axis."""
    count = stacked.get_output_partial_shape(0)[0].get_length()
    return [ops.squeeze(each, [0]) for each in ops.split(stacked, 0, count).outputs()]


def _pool(ops: Any, activations: Any, kernel: Any, shape: Sequence[int]) -> _Pooling:
    """`podzero.networks.layers.pooled` of activations `[B, C, H, W]`."""
    mean, highest = ops.reduce_mean(activations, [2, 3], True), ops.reduce_max(activations, [2, 3], True)
    scaled = ops.multiply(mean, _number(ops, side_factor(shape[1] * shape[2]), mean))
    board = ops.reshape(ops.concat([mean, scaled, highest], 1), [-1, 3 * shape[-1]], False)
    return _Pooling(activations, highest, board, kernel)


def _number(ops: Any, number: float, like: Any) -> Any:
    """A constant in the dtype of `like`."""
    return ops.convert_like(ops.constant(np.float32(number)), like)


def _gradients(
    ops: Any, gradient: Any, activations: list[Any], kernels: list[Any], poolings: Mapping[int, _Pooling],
    shape: Sequence[int],
) -> list[Any]:  # fmt: skip
    """The gradients of the inputs, given that of the result, the activations before each convolution, and what was
    pooled after some.
    """
    _, height, width, channels = shape
    zero = _number(ops, 0.0, gradient)

    def rows(x: Any) -> Any:
        """`[B, C, H, W]` as `[B * H * W, C]`."""
        return ops.reshape(ops.transpose(x, TO_CHANNELS_LAST), [-1, channels], False)

    def of_input(layer: int, gradient: Any) -> Any:
        """A convolution with the kernel rotated by 180 degrees, masked by relu."""
        turned = ops.gather(ops.reshape(kernels[layer], [9, channels, channels], False), np.arange(8, -1, -1), 0)
        kernel = ops.transpose(ops.reshape(turned, [3, 3, channels, channels], False), _TO_IN_OUT)
        return ops.select(ops.greater(activations[layer], zero), _convolve(ops, gradient, kernel), zero)

    def of_kernel(layer: int, gradient: Any) -> Any:
        """`[3, 3, in, out]`: one matrix product per tap."""
        padded = ops.pad(activations[layer], [0, 0, 1, 1], [0, 0, 1, 1], "constant", zero)
        gradients, products = rows(gradient), []
        for top, left in np.ndindex(3, 3):
            shifted = ops.slice(padded, [top, left], [top + height, left + width], [1, 1], [2, 3])
            products.append(ops.unsqueeze(ops.matmul(rows(shifted), gradients, True, False), [0]))
        return ops.reshape(ops.concat(products, 0), [3, 3, channels, channels], False)

    def of_pooled(pooling: _Pooling, of_bias: Any) -> Any:
        """The gradient `[B, C, H, W]` of what was pooled, given that of the channels' bias `[B, C]`."""
        of_board = ops.reshape(ops.matmul(of_bias, pooling.kernel, False, True), [-1, 3 * channels, 1, 1], False)
        mean, scaled, highest = ops.split(of_board, 1, 3).outputs()
        each = ops.add(mean, ops.multiply(scaled, _number(ops, side_factor(height * width), mean)))
        # Squares with the same maximum share its gradient, as in JAX.
        equal = ops.convert_like(ops.equal(pooling.activations, pooling.highest), highest)
        share = ops.divide(highest, ops.reduce_sum(equal, [2, 3], True))
        found = ops.add(ops.multiply(each, _number(ops, 1 / (height * width), each)), ops.multiply(equal, share))
        return ops.select(ops.greater(pooling.activations, zero), found, zero)

    of_kernels, of_biases, of_pool_kernels, of_pool_biases = [], [], [], []
    for last in reversed(range(1, len(kernels), 2)):
        branch = gradient
        for layer in (last, last - 1):
            if layer in poolings:
                of_bias = ops.reduce_sum(branch, [2, 3], False)
                of_pool_kernels.append(ops.matmul(poolings[layer].board, of_bias, True, False))
                of_pool_biases.append(ops.reduce_sum(of_bias, [0], False))
                branch = ops.add(branch, of_pooled(poolings[layer], of_bias))
            of_kernels.append(of_kernel(layer, branch))
            of_biases.append(ops.reduce_sum(branch, [0, 2, 3], False))
            branch = of_input(layer, branch)
        gradient = ops.add(gradient, branch)
    found = (of_kernels, of_biases, *((of_pool_kernels, of_pool_biases) if poolings else ()))
    stacked = [ops.concat([ops.unsqueeze(one, [0]) for one in reversed(each)], 0) for each in found]
    return [ops.transpose(gradient, TO_CHANNELS_LAST), *stacked]


def _convolve(ops: Any, x: Any, kernel: Any) -> Any:
    """A same-padded convolution; the kernel is `[out, in, 3, 3]`."""
    return ops.convolution(x, kernel, [1, 1], [1, 1], [1, 1], [1, 1])


def host_resnet(config: ResNetConfig, spec: EnvSpec) -> Network:
    """The network `resnet` for training on a CPU, equal to `make_network` up to rounding.

    If JAX has an accelerator or several devices, XLA computes the whole network instead.
    """
    network = make_network(config, spec)
    heads = resnet_heads(config, spec)(name=None)
    tower = make_tower(threads=usable_cpus())

    def evaluate(params: Params, observation: Array, auxiliary: bool = config.auxiliary) -> HeadOutputs:
        if jax.default_backend() != "cpu" or jax.device_count() > 1:
            return network.apply_all(params, observation) if network.apply_all else network.apply(params, observation)
        layers = cast(Mapping[str, Mapping[str, Params]], fold(params))
        x = convolve(jnp.asarray(observation, jnp.float32), layers["stem"]["kernel"], layers["stem"]["bias"])
        blocks = [layers[f"block_{number}"] for number in range(config.blocks)]
        kinds = [[block[half] for block in blocks for half in ("conv_0", "conv_1")]]
        kinds += [pools] if (pools := [block["pooling"] for block in blocks if "pooling" in block]) else []
        stacked = (jnp.stack([layer[name] for layer in kind]) for kind in kinds for name in ("kernel", "bias"))
        x = tower(x, tuple(stacked))
        features = jax.nn.relu(x).reshape(x.shape[0], -1, config.channels)
        return cast(HeadOutputs, heads.apply({"params": layers["heads"]}, features, auxiliary))

    def apply(params: Params, observation: Array) -> tuple[jax.Array, jax.Array]:
        logits, value, *_ = evaluate(params, observation, auxiliary=False)
        return logits, value

    def apply_all(params: Params, observation: Array) -> tuple[jax.Array, jax.Array, Prediction]:
        return cast(tuple[jax.Array, jax.Array, Prediction], evaluate(params, observation))

    return network._replace(apply=apply, apply_all=apply_all if network.apply_all else None)
