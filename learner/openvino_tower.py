"""The ResNet for training on a CPU: OpenVINO computes its tower and the gradients in bfloat16, JAX the rest."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config import ResNetConfig
from podzero.core.importing import import_openvino
from podzero.core.types import Array, EnvSpec, Network, Params, Prediction
from podzero.inference.openvino_network import FROM_CHANNELS_LAST, TO_CHANNELS_LAST, cpu_compiler, infer
from podzero.networks import make_network
from podzero.networks.layers import HeadOutputs, Heads, convolve, fold

Tower = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""Activations `[B, H, W, C]`, kernels `[2 N, 3, 3, C, C]`, biases `[2 N, C]` of N blocks to `[B, H, W, C]`; float32."""

_TO_OUT_IN, _TO_IN_OUT = (3, 2, 0, 1), (2, 3, 0, 1)
"""Permutations of kernels `[3, 3, in, out]`."""


def make_tower(threads: int) -> Tower:
    """The tower as a differentiable function for JAX programs on one CPU device.

    Each block is `x + conv(relu(conv(relu(x))))`. Activations and gradients are bfloat16, sums of products float32.
    """
    compile_model, one_at_a_time = cpu_compiler(threads, "bf16"), threading.Lock()

    @cache
    def engine(shape: tuple[int, ...], layers: int, backward: bool) -> Any:
        return compile_model(_model(shape, layers, backward))

    def call(backward: bool, like: Sequence[jax.Array], *inputs: jax.Array) -> Any:
        """Runs a model; its results have the shapes of `like`."""

        def on_host(*arrays: Any) -> list[np.ndarray[Any, Any]]:
            activations, kernels, *_ = arrays
            # XLA may call for several microbatches at once, but an inference request serves one call.
            with one_at_a_time:
                return infer(engine(activations.shape, len(kernels), backward), *map(np.asarray, arrays))

        return jax.pure_callback(on_host, list(like), *inputs)

    @jax.custom_vjp
    def tower(x: jax.Array, kernels: jax.Array, biases: jax.Array) -> jax.Array:
        return cast(jax.Array, call(False, [x], x, kernels, biases)[0])

    def forward(*inputs: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        return tower(*inputs), inputs

    def backward(inputs: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(call(True, inputs, *inputs, gradient))

    tower.defvjp(forward, backward)
    return tower


def _model(shape: tuple[int, ...], layers: int, backward: bool) -> Any:
    """An OpenVINO model of `Tower`; or `backward`, from its inputs and the gradient of its result to their gradients.

    Tensors are `[B, C, H, W]` in bfloat16.
    """
    openvino = import_openvino()
    ops, channels = openvino.opset13, shape[-1]
    sizes = [shape, (layers, 3, 3, channels, channels), (layers, channels), *([shape] if backward else [])]
    inputs = [ops.parameter(list(size), np.float32) for size in sizes]
    x, kernels, biases, *gradient = (ops.convert(each, "bf16") for each in inputs)
    kernels = [ops.squeeze(each, [0]) for each in ops.split(kernels, 0, layers).outputs()]
    biases = ops.split(ops.reshape(biases, [layers, channels, 1, 1], False), 0, layers).outputs()
    y, activations = ops.transpose(x, FROM_CHANNELS_LAST), []
    for first in range(0, layers, 2):
        branch = y
        for layer in (first, first + 1):
            activations.append(ops.relu(branch))
            kernel = ops.transpose(kernels[layer], _TO_OUT_IN)
            branch = ops.add(_convolve(ops, activations[layer], kernel), biases[layer])
        y = ops.add(y, branch)
    outputs = [ops.transpose(y, TO_CHANNELS_LAST)]
    if backward:
        # It recomputes the activations, which costs less than sending them to JAX and back.
        outputs = _gradients(ops, ops.transpose(*gradient, FROM_CHANNELS_LAST), activations, kernels, shape)
    return openvino.Model([ops.convert(each, "f32") for each in outputs], inputs)


def _gradients(ops: Any, gradient: Any, activations: list[Any], kernels: list[Any], shape: Sequence[int]) -> list[Any]:
    """The gradients of the three inputs, given that of the result and the activations before each convolution."""
    _, height, width, channels = shape
    zero = ops.convert(ops.constant(np.float32(0)), "bf16")

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

    of_kernels, of_biases = [], []
    for last in reversed(range(1, len(kernels), 2)):
        branch = gradient
        for layer in (last, last - 1):
            of_kernels.append(of_kernel(layer, branch))
            of_biases.append(ops.reduce_sum(branch, [0, 2, 3], False))
            branch = of_input(layer, branch)
        gradient = ops.add(gradient, branch)
    stacked = [ops.concat([ops.unsqueeze(one, [0]) for one in reversed(each)], 0) for each in (of_kernels, of_biases)]
    return [ops.transpose(gradient, TO_CHANNELS_LAST), *stacked]


def _convolve(ops: Any, x: Any, kernel: Any) -> Any:
    """A same-padded convolution; the kernel is `[out, in, 3, 3]`."""
    return ops.convolution(x, kernel, [1, 1], [1, 1], [1, 1], [1, 1])


def host_resnet(config: ResNetConfig, spec: EnvSpec) -> Network:
    """The network `resnet` for training on a CPU, equal to `make_network` up to bfloat16 rounding.

    If JAX has an accelerator or several devices, XLA computes the whole network instead.
    """
    network, options = make_network(config, spec), {"values": spec.values, "ownership": spec.squares > 0}
    heads = Heads(spec.num_actions, config.value_hidden, **options)
    tower = make_tower(threads=len(os.sched_getaffinity(0)))

    def evaluate(params: Params, observation: Array, auxiliary: bool) -> HeadOutputs:
        if jax.default_backend() != "cpu" or jax.device_count() > 1:
            return network.apply_all(params, observation) if network.apply_all else network.apply(params, observation)
        layers = cast(Mapping[str, Mapping[str, Params]], fold(params))
        x = convolve(jnp.asarray(observation, jnp.float32), layers["stem"]["kernel"], layers["stem"]["bias"])
        convolutions = [layers[f"block_{block}"][f"conv_{half}"] for block in range(config.blocks) for half in (0, 1)]
        x = tower(x, *(jnp.stack([layer[name] for layer in convolutions]) for name in ("kernel", "bias")))
        features = jax.nn.relu(x).reshape(x.shape[0], -1, config.channels)
        return cast(HeadOutputs, heads.apply({"params": layers["heads"]}, features, auxiliary))

    def apply(params: Params, observation: Array) -> tuple[jax.Array, jax.Array]:
        logits, value, *_ = evaluate(params, observation, auxiliary=False)
        return logits, value

    def apply_all(params: Params, observation: Array) -> tuple[jax.Array, jax.Array, Prediction]:
        return cast(tuple[jax.Array, jax.Array, Prediction], evaluate(params, observation, auxiliary=True))

    return Network(network.init, apply, apply_all if config.auxiliary else None)
