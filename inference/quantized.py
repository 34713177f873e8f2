"""The network in int8 on CPUs: built, calibrated, compared with float32, and called from JAX programs."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from podzero.config import Experiment, Int8Config
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvSpec, EnvState, Params
from podzero.inference.agreement import (
    AgreementCheck,
    CalibrationPositions,
    RecentPositions,
    agreement,
    random_positions,
)
from podzero.inference.evaluation_cache import EvaluationCache
from podzero.inference.openvino_model import CpuCompiler, float_model, infer, int8_model
from podzero.networks.resnet import layers_of
from podzero.search import Evaluate

PIECE = 64
"""Batch size of OpenVINO. In training, the cache answers all but about 50 of 128 requests. For a 64x5 network smaller
batches are not faster; for 32x3 they are slower (11 us per position at 16, 8 at 32, 6.5 at 64, 6 at 128)."""
_KEPT = 2
"""Loaded versions that are kept: the one in use and the next."""

_Evaluation = np.ndarray[Any, Any]
"""`[N, A + 1]` float32: logits, then the value."""


class QuantizedNetwork:
    """Loads versions of the parameters and evaluates positions with them.

    A token stands for each loaded version in JAX programs, so that a search evaluates all its positions with one
    version even if newer ones are loaded meanwhile. `load` may run in another thread than evaluations, but only one
    program may evaluate at a time.

    Args:
      spec: the game's shapes; observations must be boards.
      config: limits of the quantization errors, and the size of the cache.
      batch: positions that a search evaluates at once.
      positions: `calibration_size` positions for the first calibration and comparison.
    """

    def __init__(
        self, spec: EnvSpec, config: Int8Config, threads: int, batch: int, positions: CalibrationPositions
    ) -> None:
        self._spec = spec
        self._piece = min(PIECE, batch)
        self._cache = EvaluationCache(config.cache_mib, spec.num_actions + 1) if config.cache_mib else None
        self._positions = RecentPositions(positions)
        self._compiler = CpuCompiler(threads, "f32")
        self._engines: dict[int, Any] = {}
        self._loaded = 0
        self._check = AgreementCheck(config)

    def load(self, params: Params) -> np.int32:
        """Builds, calibrates and compiles a version; if its errors exceed the limits, in float32 instead of int8.

        `params` come from the `fold` of `podzero.networks.make_inference`. Returns the version's token, `[]` int32; the
        two newest tokens are valid.
        """
        layers = layers_of(jax.device_get(params))
        board, dtype = self._spec.observation_shape, self._spec.observation_dtype
        reference = self._compiler.compile(float_model(layers, self._piece, board, dtype))
        calibration, held_back = self._positions.split()
        _, extremes = self._in_pieces(reference, calibration.observation)
        ranges = np.stack([extremes[..., 0].min(axis=0), extremes[..., 1].max(axis=0)], axis=-1)
        engine = self._compiler.compile(int8_model(layers, self._piece, board, dtype, ranges))
        expected, quantized = (self._evaluations(one, held_back.observation) for one in (reference, engine))
        found = agreement(expected, quantized, held_back.legal)
        if not self._check.accepts(found, "float32"):
            engine = reference
        self._loaded += 1
        self._engines = {token: kept for token, kept in self._engines.items() if token > self._loaded - _KEPT}
        self._engines[self._loaded] = engine
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
        engine, observations = self._engines[int(token)], np.asarray(observation)

        def evaluate(rows: np.ndarray[Any, Any]) -> _Evaluation:
            return self._evaluations(engine, rows)

        return self._cache(int(token), observations, evaluate) if self._cache else evaluate(observations)

    def metrics(self) -> dict[str, float]:
        """`AgreementCheck.metrics`, and `int8/cached`, the share of all evaluations that the cache answered."""
        cache = self._cache
        cached = cache.found / cache.asked if cache and cache.asked else 0.0
        metrics = self._check.metrics()
        return metrics | {"int8/cached": cached} if metrics else {}

    def _recorded(self, token: Array, observation: Array, legal: Array) -> _Evaluation:
        self._positions.add(CalibrationPositions(np.asarray(observation), np.asarray(legal)))
        return self.evaluate(token, observation)

    def _evaluations(self, engine: Any, observations: np.ndarray[Any, Any]) -> _Evaluation:
        evaluations: _Evaluation = np.concatenate(self._in_pieces(engine, observations)[0])
        return evaluations[: len(observations)]

    def _in_pieces(self, engine: Any, observations: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Evaluates observations `[N, ...]` in pieces, repeating some to fill the last; outputs are `[pieces, ...]`."""
        pieces = math.ceil(len(observations) / self._piece)
        filled = _plain(observations)[np.resize(np.arange(len(observations)), pieces * self._piece)]
        results = [infer(engine, piece) for piece in np.split(filled, pieces)]
        return [np.stack(outputs) for outputs in zip(*results, strict=True)]


def quantized_network(experiment: Experiment, env: Env, batch: int) -> QuantizedNetwork:
    """The network in int8, at first calibrated on random games, for searches that evaluate `batch` positions at once.

    Raises:
      ConfigError: OpenVINO is not installed.
    """
    positions = random_positions(env, jax.random.key(experiment.seed), calibration_size(experiment.int8, batch))
    return QuantizedNetwork(env.spec, experiment.int8, max(1, round(experiment.actors.cpus)), batch, positions)


def calibration_size(limits: Int8Config, batch: int) -> int:
    """`int8.positions` rounded up to a multiple of the batch size."""
    return batch * math.ceil(limits.positions / batch)


def _plain(observations: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The observations, with bool viewed as uint8."""
    return observations.view(np.uint8) if observations.dtype == np.bool_ else observations
