"""A network whose tower TPUs compute in int8: quantized, calibrated and compared version by version."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config import Int8Config, ResNetConfig
from podzero.inference.agreement import AgreementCheck, agreement
from podzero.inference.int8_resnet import (
    Evaluation,
    Int8Params,
    convolutions,
    float_evaluation,
    int8_evaluation,
    quantize,
)
from podzero.inference.layers import layers_of
from podzero.inference.positions import Positions, RecentPositions
from podzero.networks import make_inference
from podzero.networks.boards import compute_dtype
from podzero.protocols import ReplayWriter
from podzero.types import Array, EnvSpec, Params, Sample, StoredState, Window


class Int8Network:
    """A network for acting, as `podzero.networks.make_inference` makes it, whose tower is computed in int8.

    The parameters of a version that int8 would change too much stay as they are, and `apply` evaluates these without
    int8. Programs that call `apply` are then compiled once more.

    Args:
      config: of the network `resnet` or `haiku_resnet`.
      spec: of the game.
      limits: of the differences.
      positions: the first positions for calibration and comparison; called by the first `fold`.
    """

    def __init__(
        self, config: ResNetConfig, spec: EnvSpec, limits: Int8Config, positions: Callable[[], RecentPositions]
    ) -> None:
        folded, network = make_inference(config, spec)
        self._dtype = config.compute_dtype
        self._fold = jax.jit(folded)
        self._network = network
        self._in_float = jax.jit(partial(float_evaluation, config, spec))
        self._in_int8 = partial(int8_evaluation, config, spec)
        self._quantize = jax.jit(quantize)
        self._check = AgreementCheck(limits)
        self._first_positions = positions

    def init(self, key: Array) -> Int8Params:
        """Parameters in int8, quantized without calibration; traceable, for the shapes."""
        params = self._network.init(key)
        return quantize(params, dict.fromkeys(convolutions(layers_of(params)), jnp.ones(())))

    def fold(self, params: Params) -> Params:
        """Turns published parameters into those of `apply`: in int8, or not where that differs too much."""
        folded, (calibration, held_back) = self._fold(params), self._positions.split()
        _, largest = self._in_float(folded, calibration.observation)
        quantized = self._quantize(folded, largest)
        expected, _ = self._in_float(folded, held_back.observation)
        evaluated = self._jitted(quantized, held_back.observation)
        found = agreement(_side_by_side(expected), _side_by_side(evaluated), held_back.legal)
        return quantized if self._check.accepts(found, compute_dtype(self._dtype).name) else folded

    def apply(self, params: Params, observation: Array) -> Evaluation:
        """Observations `[B, H, W, P]` to logits `[B, A]` and values `[B]`, float32; traceable."""
        if isinstance(params, Int8Params):
            return self._in_int8(params, observation)
        return self._network.apply(params, observation)

    def note(self, batch: Any) -> None:
        """Shows what was played or evaluated, of which later calibrations take a sample; thread-safe.

        Args:
          batch: `Positions`, or what `decode` of the `RecentPositions` turns into them.
        """
        self._positions.add(batch)

    def metrics(self) -> dict[str, float]:
        """As `AgreementCheck.metrics`."""
        return self._check.metrics()

    @cached_property
    def _positions(self) -> RecentPositions:
        return self._first_positions()

    @cached_property
    def _jitted(self) -> Callable[[Int8Params, Array], Evaluation]:
        return jax.jit(self._in_int8)


class NotingWriter:
    """A `ReplayWriter` of samples that shows their positions to `note`."""

    def __init__(self, writer: ReplayWriter, note: Callable[[Positions], None]) -> None:
        self._writer = writer
        self._note = note

    def write(self, samples: Sample | Window | StoredState, priorities: np.ndarray[Any, Any] | None = None) -> None:
        """As `ReplayWriter.write`."""
        assert isinstance(samples, Sample)
        self._note(Positions(np.asarray(samples.observation), np.asarray(samples.legal)))
        self._writer.write(samples, priorities)

    def flush(self) -> None:
        """As `ReplayWriter.flush`."""
        self._writer.flush()

    def close(self) -> None:
        """As `ReplayWriter.close`."""
        self._writer.close()


def _side_by_side(evaluation: Evaluation) -> np.ndarray[Any, Any]:
    logits, value = jax.device_get(evaluation)
    return np.concatenate([logits, value[:, None]], axis=1)
