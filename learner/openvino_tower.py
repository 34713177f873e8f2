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
from podzero.inference.openvino_network import FROM_CHANNELS_LAST, TO_CHANNELS_LAST, CpuCompiler, infer
from podzero.networks import make_network
from podzero.networks.layers import HeadOutputs, Heads, convolve, fold

Tower = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""Activations `[B, H, W, C]`, kernels `[2 N, 3, 3, C, C]`, biases `[2 N, C]` of N blocks to `[B, H, W, C]`; float32."""

_Build = Callable[[tuple[int, ...], int], Any]

_TO_OUT_IN, _TO_IN_OUT = (3, 2, 0, 1), (2, 3, 0, 1)
"""Permutations of kernels `[3, 3, in, out]`."""


def make_tower(threads: int) -> Tower:
    """The tower as a differentiable function for JAX programs on one CPU device.

    Each block is `x + conv(relu(conv(relu(x))))`. Activations and gradients are bfloat16, sums of products float32.
    """
    compiler, one_at_a_time = CpuCompiler(threads, "bf16"), threading.Lock()

    @cache
    def engine(build: _Build, shape: tuple[int, ...], layers: int) -> Any:
        return compiler.compile(build(shape, layers))

    def call(build: _Build, like: Sequence[jax.Array], *inputs: jax.Array) -> Any:
        """Runs a model; its results have the shapes of `like`."""

        def on_host(*arrays: Any) -> list[np.ndarray[Any, Any]]:
            activations, kernels, *_ = arrays
            # XLA may call for several microbatches at once, but an inference request serves one call.
            with one_at_a_time:
                return infer(engine(build, activations.shape, len(kernels)), *map(np.asarray, arrays))

        return jax.pure_callback(on_host, list(like), *inputs)

    @jax.custom_vjp
    def tower(x: jax.Array, kernels: jax.Array, biases: jax.Array) -> jax.Array:
        return cast(jax.Array, call(forward_model, [x], x, kernels, biases)[0])

    def forward(*inputs: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        return tower(*inputs), inputs

    def backward(inputs: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(call(backward_model, inputs, *inputs, gradient))

    tower.defvjp(forward, backward)
    return tower


def forward_model(shape: tuple[int, ...], layers: int) -> Any:
    """An OpenVINO model of `Tower`."""
    tower = _TowerBuilder(shape, layers)
    return tower.model([tower.result()])


def backward_model(shape: tuple[int, ...], layers: int) -> Any:
    """An OpenVINO model from the inputs of `Tower` and the gradient of its result to the gradients of those inputs."""
    # It recomputes the activations, which costs less than sending them to JAX and back.
    tower = _TowerBuilder(shape, layers)
    gradient = tower.parameter(*shape)
    return tower.model(tower.gradients(gradient), gradient)


class _TowerBuilder:
    """The tower in operations of OpenVINO's opset. Tensors are `[B, C, H, W]` in bfloat16."""

    def __init__(self, shape: tuple[int, ...], layers: int) -> None:
        self._openvino = import_openvino()
        self._ops = ops = self._openvino.opset13
        self._shape, self._channels = shape, shape[-1]
        x = self.parameter(*shape)
        kernels = self.parameter(layers, 3, 3, self._channels, self._channels)
        biases = self.parameter(layers, self._channels)
        self._inputs = (x, kernels, biases)
        self._zero = self._bfloat16(ops.constant(np.float32(0)))
        self._kernels = [ops.squeeze(one, [0]) for one in ops.split(self._bfloat16(kernels), 0, layers).outputs()]
        rows = ops.reshape(self._bfloat16(biases), [layers, self._channels, 1, 1], False)
        self._biases = ops.split(rows, 0, layers).outputs()
        self._activations: list[Any] = []
        """The input of each convolution, after relu."""
        self._y = self._tower(ops.transpose(self._bfloat16(x), FROM_CHANNELS_LAST))

    def parameter(self, *shape: int) -> Any:
        """A float32 input."""
        return self._ops.parameter(list(shape), np.float32)

    def model(self, outputs: Sequence[Any], *more_inputs: Any) -> Any:
        """A model that returns `outputs` in float32."""
        return self._openvino.Model([self._ops.convert(one, "f32") for one in outputs], [*self._inputs, *more_inputs])

    def result(self) -> Any:
        """The tower's result, `[B, H, W, C]`."""
        return self._ops.transpose(self._y, TO_CHANNELS_LAST)

    def gradients(self, gradient: Any) -> list[Any]:
        """The gradients of the three inputs, given that of `result`."""
        ops = self._ops
        gradient = ops.transpose(self._bfloat16(gradient), FROM_CHANNELS_LAST)
        kernels, biases = [], []
        for last in reversed(range(1, len(self._kernels), 2)):
            branch = gradient
            for layer in (last, last - 1):
                kernels.append(self._kernel_gradient(layer, branch))
                biases.append(ops.reduce_sum(branch, [0, 2, 3], False))
                branch = self._input_gradient(layer, branch)
            gradient = ops.add(gradient, branch)
        stacked = [ops.concat([ops.unsqueeze(one, [0]) for one in reversed(each)], 0) for each in (kernels, biases)]
        return [ops.transpose(gradient, TO_CHANNELS_LAST), *stacked]

    def _tower(self, x: Any) -> Any:
        for index in range(0, len(self._kernels), 2):
            x = self._ops.add(x, self._layer(self._layer(x, index), index + 1))
        return x

    def _layer(self, x: Any, layer: int) -> Any:
        """`conv(relu(x))` with bias."""
        self._activations.append(self._ops.relu(x))
        kernel = self._ops.transpose(self._kernels[layer], _TO_OUT_IN)
        return self._ops.add(self._convolve(self._activations[-1], kernel), self._biases[layer])

    def _input_gradient(self, layer: int, gradient: Any) -> Any:
        """The gradient of a layer's input: a convolution with the kernel rotated by 180 degrees, masked by relu."""
        ops, shape = self._ops, [9, self._channels, self._channels]
        turned = ops.gather(ops.reshape(self._kernels[layer], shape, False), np.arange(8, -1, -1), 0)
        kernel = ops.transpose(ops.reshape(turned, [3, 3, *shape[1:]], False), _TO_IN_OUT)
        passes = ops.greater(self._activations[layer], self._zero)
        return ops.select(passes, self._convolve(gradient, kernel), self._zero)

    def _kernel_gradient(self, layer: int, gradient: Any) -> Any:
        """The gradient of a kernel, `[3, 3, in, out]`: one matrix product per tap."""
        ops, (_, height, width, channels) = self._ops, self._shape
        padded = ops.pad(self._activations[layer], [0, 0, 1, 1], [0, 0, 1, 1], "constant", self._zero)
        rows, products = self._rows(gradient), []
        for top, left in np.ndindex(3, 3):
            shifted = ops.slice(padded, [top, left], [top + height, left + width], [1, 1], [2, 3])
            products.append(ops.unsqueeze(ops.matmul(self._rows(shifted), rows, True, False), [0]))
        return ops.reshape(ops.concat(products, 0), [3, 3, channels, channels], False)

    def _convolve(self, x: Any, kernel: Any) -> Any:
        """A same-padded convolution; the kernel is `[out, in, 3, 3]`."""
        return self._ops.convolution(x, kernel, [1, 1], [1, 1], [1, 1], [1, 1])

    def _rows(self, x: Any) -> Any:
        """`[B, C, H, W]` as `[B * H * W, C]`."""
        return self._ops.reshape(self._ops.transpose(x, TO_CHANNELS_LAST), [-1, self._channels], False)

    def _bfloat16(self, x: Any) -> Any:
        return self._ops.convert(x, "bf16")


def host_resnet(config: ResNetConfig, spec: EnvSpec) -> Network:
    """The network `resnet` for training on a CPU, equal to `make_network` up to bfloat16 rounding.

    If JAX has an accelerator or several devices, XLA computes the whole network instead.
    """
    network, heads = make_network(config, spec), Heads(spec.num_actions, config.value_hidden, values=spec.values)
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
