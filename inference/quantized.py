"""The network on the host in int8: built, calibrated, compared with float32, and called from JAX programs."""

from __future__ import annotations

import logging
import math
from typing import Any

import jax
import numpy as np

from podzero.config import Int8Config
from podzero.inference.agreement import Agreement, agreement
from podzero.inference.layers import layers_of
from podzero.inference.openvino_model import float_model, int8_model
from podzero.inference.positions import RecentPositions
from podzero.inference.runtime import CpuCompiler, infer
from podzero.types import Array, EnvSpec, Params

log = logging.getLogger(__name__)

_KEPT = 2
"""Loaded versions that are kept: the one that is searched with, and the next."""

_Evaluation = np.ndarray[Any, Any]
"""Logits and value side by side, `[N, A + 1]` float32."""


class QuantizedNetwork:
    """Loads versions of the parameters and evaluates positions by them.

    Each loaded version has a token, which takes the place of the parameters in a JAX program. So a search that has
    begun with one version evaluates all its positions by it, whatever is loaded meanwhile.

    `load` may run in another thread than evaluations. Evaluations are made by one program at a time.

    Args:
      spec: of the game; its observations are boards.
      limits: the bounds of quantization errors.
      batch: B, the number of positions of one evaluation.
      threads: OpenVINO's compute threads.
      positions: the first calibration positions, `[N, H, W, P]`; N is a multiple of B (`calibration_size`).

    Raises:
      ConfigError: OpenVINO is not installed.
    """

    def __init__(
        self, spec: EnvSpec, limits: Int8Config, batch: int, threads: int, positions: np.ndarray[Any, Any]
    ) -> None:
        self._spec = spec
        self._limits = limits
        self._batch = batch
        self._positions = RecentPositions(_plain(positions))
        self._compiler = CpuCompiler(threads, "f32")
        self._engines: dict[int, Any] = {}
        self._loaded = 0
        self._metrics: dict[str, float] = {}
        self._warned = False

    def load(self, params: Params) -> np.int32:
        """Builds, calibrates and compiles a version, and compares it with float32.

        If the errors exceed the limits, the version is evaluated in float32.

        Args:
          params: what the `fold` of `podzero.networks.make_inference` returned.

        Returns:
          the version's token, `[]` int32, for `apply`. The two newest tokens are valid.
        """
        layers, board, dtype = layers_of(params), self._spec.observation_shape, self._spec.observation_dtype
        reference = self._compiler.compile(float_model(layers, self._batch, board, dtype))
        positions = self._positions.all()
        expected, extremes = self._outputs(reference, positions)
        ranges = np.stack([extremes[..., 0].min(axis=0), extremes[..., 1].max(axis=0)], axis=-1)
        engine = self._compiler.compile(int8_model(layers, self._batch, board, dtype, ranges))
        (quantized,) = self._outputs(engine, positions)
        found = agreement(np.concatenate(expected), np.concatenate(quantized))
        if not found.within(self._limits):
            engine = reference
        self._note(found, in_int8=engine is not reference)
        self._loaded += 1
        self._engines = {token: kept for token, kept in self._engines.items() if token > self._loaded - _KEPT}
        self._engines[self._loaded] = engine
        return np.int32(self._loaded)

    def apply(self, token: Array, observation: Array) -> tuple[jax.Array, jax.Array]:
        """The network as a JAX function: observations `[B, H, W, P]` to logits `[B, A]` and values `[B]`."""
        like = np.zeros((self._batch, self._spec.num_actions + 1), np.float32)
        evaluation = jax.pure_callback(self.evaluate, like, token, observation)
        return evaluation[:, :-1], evaluation[:, -1]

    def evaluate(self, token: Array, observation: Array) -> _Evaluation:
        """Evaluates observations `[B, H, W, P]` on the host: logits and value side by side, `[B, A + 1]` float32."""
        observations = _plain(np.asarray(observation))
        self._positions.add(observations)
        return infer(self._engines[int(token)], observations)[0]

    def metrics(self) -> dict[str, float]:
        """The newest version's agreement with float32, and `int8/quantized`: 1, or 0 if it is evaluated in float32."""
        return self._metrics

    def _outputs(self, engine: Any, positions: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Evaluates positions `[N, ...]` in N / B batches; returns each output of the engine as `[N / B, ...]`."""
        batches = positions.reshape(-1, self._batch, *positions.shape[1:])
        return [np.stack(outputs) for outputs in zip(*(infer(engine, batch) for batch in batches), strict=True)]

    def _note(self, found: Agreement, in_int8: bool) -> None:
        """Records the agreement of the newest version; the first one in float32 is a warning."""
        self._metrics = {f"int8/{name}": value for name, value in found._asdict().items()}
        self._metrics["int8/quantized"] = float(in_int8)
        if not in_int8 and not self._warned:
            self._warned = True
            log.warning(
                "int8 differs too much from float32: policy KL %.4g (int8.max_policy_kl %g), value error %.4g "
                "(int8.max_value_error %g); such versions are evaluated in float32 (metric int8/quantized)",
                found.policy_kl, self._limits.max_policy_kl, found.value_error, self._limits.max_value_error,
            )  # fmt: skip


def calibration_size(limits: Int8Config, batch: int) -> int:
    """The number of calibration positions: `int8.positions`, rounded up to a multiple of the batch size."""
    return batch * math.ceil(limits.positions / batch)


def _plain(observations: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The observations with bool as uint8, without a copy."""
    return observations.view(np.uint8) if observations.dtype == np.bool_ else observations
