"""The network in int8 on CPUs, by OpenVINO: built, calibrated, compared with float32, and called from JAX programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import jax
import numpy as np

from podzero.config import Experiment
from podzero.core.importing import import_openvino
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvSpec, EnvState, Params
from podzero.inference.agreement import AgreementCheck, CalibrationPositions, RecentPositions, random_positions
from podzero.inference.evaluation_cache import EvaluationCache
from podzero.networks.layers import VALUE_BINS, side_factor
from podzero.networks.resnet import Layer, layers_of
from podzero.search import Evaluate

FROM_CHANNELS_LAST, TO_CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""Permutations between JAX's `[B, H, W, C]` and OpenVINO's `[B, C, H, W]`."""


Precision = Literal["f32", "bf16"]


def cpu_compiler(threads: int, precision: Precision) -> Callable[[Any], Any]:
    """Compiles an `openvino.Model` for the CPU to the inference request for `infer`; `precision` is that of everything
    that is not quantized.
    """
    core = import_openvino().Core()
    settings = {
        # All threads share one batch; "THROUGHPUT" would divide them among several.
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        # Without a hint, OpenVINO chooses bfloat16 on CPUs that have it.
        "INFERENCE_PRECISION_HINT": precision,
        # Pinning would put several processes on the same cores.
        "ENABLE_CPU_PINNING": False,
    }
    return lambda model: core.compile_model(model, "CPU", settings).create_infer_request()


def infer(request: Any, *inputs: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Runs a model; returns copies of its outputs."""
    outputs = request.infer(dict(enumerate(inputs)), share_inputs=True)
    return [outputs[index] for index in range(len(outputs))]


_LEVELS = 256
"""Values of a quantized activation."""
_LARGEST_WEIGHT = 127
_LEAST_RANGE = 1e-6
"""Smallest range of an activation, which may be zero in all calibration positions."""


class _Builder:
    """Builds the network as an OpenVINO model: in float32, or in int8 with the `ranges` of its N activations, `[N, 2]`.

    In int8 all convolutions, including the heads' 1x1 convolutions, have weights quantized symmetrically with one scale
    per output channel, and inputs with one range per tensor. The residual stream and the dense layers of the heads stay
    in float32. Tensors are `[B, C, H, W]`.
    """

    def __init__(self, layers: Mapping[str, Layer], ranges: np.ndarray[Any, Any] | None = None) -> None:
        self._openvino = import_openvino()
        self._ops = self._openvino.opset13
        self._layers = layers
        self._ranges = None if ranges is None else iter(ranges)
        self._extremes: list[Any] = []

    def build(self, batch: int, board: tuple[int, ...], dtype: str) -> Any:
        """The model: observations `[batch, *board]` of the `dtype` (uint8 for `bool`) to logits and value, `[B, A + 1]`
        float32. In float32 its second output is the ranges, the minimum and maximum of each activation.
        """
        ops = self._ops
        observation = ops.parameter([batch, *board], np.uint8 if dtype == "bool" else np.dtype(dtype))
        x = ops.transpose(ops.convert(observation, np.float32), FROM_CHANNELS_LAST)
        evaluation = self._heads(self._tower(x), batch)
        outputs = [evaluation] if self._ranges else [evaluation, ops.concat(self._extremes, 0)]
        return self._openvino.Model(outputs, [observation])

    def _tower(self, x: Any) -> Any:
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
            pooled, board = self._pooled(policy_planes), self._pooled(value_planes)
            bias = ops.unsqueeze(self._dense(pooled, "heads/policy_pooled"), [2, 3])
            planes = ops.transpose(ops.relu(ops.add(policy_planes, bias)), TO_CHANNELS_LAST)
            logits = ops.reshape(self._dense(planes, "heads/policy_squares"), [batch, -1], False)
            if "heads/policy_other" in layers:
                logits = ops.concat([logits, self._dense(pooled, "heads/policy_other")], 1)
        else:
            logits = self._dense(self._flat(policy_planes, batch), "heads/policy_logits")
            board = self._flat(value_planes, batch)
        hidden = ops.relu(self._dense(board, "heads/value_hidden"))
        last = self._dense(hidden, "heads/value")
        distributed = last.get_output_shape(0)[1] == len(VALUE_BINS)
        value = ops.matmul(ops.softmax(last, 1), VALUE_BINS[:, None], False, False) if distributed else ops.tanh(last)
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


PIECE = 64
"""Batch size of OpenVINO. In training, the cache answers all but about 50 of 128 requests. For a 64x5 network smaller
batches are not faster; for 32x3 they are slower (11 us per position at 16, 8 at 32, 6.5 at 64, 6 at 128)."""
_VERSIONS = 2
"""Most loaded versions: the one in use and the next."""

_Evaluation = np.ndarray[Any, Any]
"""`[N, A + 1]` float32: logits, then the value."""


class QuantizedNetwork:
    """Loads versions of the parameters and evaluates positions with them.

    A token stands for each loaded version in JAX programs, so that a search evaluates all its positions with one
    version even if newer ones are loaded meanwhile. `load` may run in another thread than evaluations, but only one
    program may evaluate at a time.
    """

    def __init__(
        self, spec: EnvSpec, cache_mib: float, threads: int, batch: int, positions: CalibrationPositions
    ) -> None:
        """Observations must be boards; a search evaluates `batch` at once. The first calibration is on `positions`."""
        self._spec = spec
        self._piece = min(PIECE, batch)
        self._cache = EvaluationCache(cache_mib, spec.num_actions + 1)
        self._positions = RecentPositions(positions)
        self._compile = cpu_compiler(threads, "f32")
        self._engines: dict[int, Any] = {}
        self._loaded = 0
        self._check = AgreementCheck()

    def load(self, params: Params) -> np.int32:
        """Builds, calibrates and compiles a version; if its errors exceed the limits, in float32 instead of int8.

        `params` come from the `fold` of `podzero.networks.make_inference`. Returns the version's token, `[]` int32; the
        two newest tokens are valid.
        """
        form = self._piece, self._spec.observation_shape, self._spec.observation_dtype
        layers = layers_of(jax.tree.map(partial(np.asarray, dtype=np.float32), jax.device_get(params)))
        reference = self._compile(_Builder(layers).build(*form))
        calibration, held_back = self._positions.split()
        _, extremes = self._in_pieces(reference, calibration.observation)
        ranges = np.stack([extremes[..., 0].min(axis=0), extremes[..., 1].max(axis=0)], axis=-1)
        engine = self._compile(_Builder(layers, ranges).build(*form))
        expected, quantized = (self._evaluations(one, held_back.observation) for one in (reference, engine))
        if not self._check.accepts(expected, quantized, held_back.legal, "float32"):
            engine = reference
        self._loaded += 1
        self._engines[self._loaded] = engine
        self._engines.pop(self._loaded - _VERSIONS, None)
        return np.int32(self._loaded)

    def evaluation(self, env: Env) -> Evaluate:
        """The evaluation for searches whose parameters are a token; samples their states for later calibrations."""

        def evaluate(token: Params, key: Array, states: EnvState) -> tuple[jax.Array, jax.Array]:
            del key
            view = jax.vmap(env.view)(states)
            like = np.zeros((view.legal.shape[0], self._spec.num_actions + 1), np.float32)
            evaluation = jax.pure_callback(self._recorded, like, token, view.observation, view.legal)
            return evaluation[:, :-1], evaluation[:, -1]

        return evaluate

    def evaluate(self, token: Array, observation: Array) -> _Evaluation:
        """Evaluates observations `[B, H, W, P]` on the host: `[B, A + 1]` float32, logits and value."""
        evaluate = partial(self._evaluations, self._engines[int(token)])
        return self._cache(int(token), np.asarray(observation), evaluate)

    def metrics(self) -> dict[str, float]:
        """`AgreementCheck.metrics`, and `int8/cached`, the share of all evaluations that the cache answered."""
        metrics = self._check.metrics()
        return metrics | {"int8/cached": self._cache.found / max(self._cache.asked, 1)} if metrics else {}

    def _recorded(self, token: Array, observation: Array, legal: Array) -> _Evaluation:
        self._positions.add(CalibrationPositions(np.asarray(observation), np.asarray(legal)))
        return self.evaluate(token, observation)

    def _evaluations(self, engine: Any, observations: np.ndarray[Any, Any]) -> _Evaluation:
        evaluations: _Evaluation = np.concatenate(self._in_pieces(engine, observations)[0])
        return evaluations[: len(observations)]

    def _in_pieces(self, engine: Any, observations: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Evaluates observations `[N, ...]` in pieces, repeating some to fill the last; outputs are `[pieces, ...]`."""
        pieces = math.ceil(len(observations) / self._piece)
        plain = observations.view(np.uint8) if observations.dtype == np.bool_ else observations
        filled = plain[np.resize(np.arange(len(observations)), pieces * self._piece)]
        results = [infer(engine, piece) for piece in np.split(filled, pieces)]
        return [np.stack(outputs) for outputs in zip(*results, strict=True)]


def quantized_network(experiment: Experiment, env: Env, batch: int) -> QuantizedNetwork:
    """The network in int8, first calibrated on random games, for searches that evaluate `batch` positions at once."""
    positions = random_positions(env, jax.random.key(experiment.seed))
    actors = experiment.actors
    return QuantizedNetwork(env.spec, actors.cache_mib, max(1, round(actors.cpus)), batch, positions)
