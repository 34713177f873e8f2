"""Whether a written file computes what JAX computes, on positions of the agent's environment."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np

from podzero.config import EnvConfig, GymnasiumConfig
from podzero.envs import make_env, make_vector_env, simulator_errors
from podzero.inference import random_positions
from podzero.tools.export.errors import ExportError
from podzero.tools.export.formats import Arrays, Call
from podzero.tools.export.functions import Function
from podzero.types import EnvSpec

BATCH_SIZES = (1, 7, 64)
"""The batches in which a file is called; the last one holds all positions."""
BOUND = 1e-4
"""The greatest difference that a file may have; see `greatest_difference`. Float32 rounds to about 1e-7, and sums in
another order differ by 1e-6 to 1e-5; bfloat16 would differ by more than 1e-3."""
_SIDE_BY_SIDE = 16
"""Gymnasium environments that act together."""


def observations_of(env: EnvConfig, spec: EnvSpec, count: int) -> np.ndarray[Any, Any]:
    """Observations of uniformly random play, `[count, *observation_shape]` float32.

    Raises:
      EnvironmentFailed, SimulatorError: the environments, or a game on the host, failed.
    """
    if not isinstance(env, GymnasiumConfig):
        with simulator_errors():
            return random_positions(make_env(env), jax.random.key(0), count).observation.astype(np.float32)
    with closing(make_vector_env(env, _SIDE_BY_SIDE, seed=0)) as environments:
        rows = [environments.reset().observation]
        for step in range(1, -(-count // _SIDE_BY_SIDE)):
            rows.append(environments.step(random_actions(spec, _SIDE_BY_SIDE, step)).observation)
    return np.concatenate(rows)[:count].astype(np.float32)


def random_actions(spec: EnvSpec, count: int, seed: int) -> np.ndarray[Any, Any]:
    """Uniformly random actions: `[count]` int32, or `[count, D]` float32 in [-1, 1]."""
    draw = np.random.default_rng(seed)
    if spec.action_shape:
        return draw.uniform(-1.0, 1.0, (count, *spec.action_shape)).astype(np.float32)
    return draw.integers(spec.num_actions, size=count, dtype=np.int32)


def references(functions: Sequence[Function], inputs: Arrays) -> list[tuple[Arrays, Arrays]]:
    """The inputs and the outputs of each function in JAX; outputs are inputs of later functions, by their names."""
    values, found = dict(inputs), []
    for function in functions:
        given = {name: values[name] for name in function.inputs}
        outputs = jax.device_get(jax.jit(function.call)(function.params, *given.values()))
        values |= outputs
        found.append((given, outputs))
    return found


def check_file(file: Path, call: Call, inputs: Arrays, expected: Arrays) -> dict[str, float]:
    """Calls the function of a file with batches of several sizes, and compares it with JAX.

    Args:
      file: for the message.
      call: the function in it.
      inputs: `[N, ...]` each, N at least the last of `BATCH_SIZES`.
      expected: outputs for them, `[N, ...]` each.

    Returns:
      the greatest difference of each output.

    Raises:
      ExportError: an output is missing, has another shape, or differs by more than `BOUND`.
    """
    differences = dict.fromkeys(expected, 0.0)
    for size in BATCH_SIZES:
        found = call({name: rows[:size] for name, rows in inputs.items()})
        for name, rows in expected.items():
            if name not in found or found[name].shape != rows[:size].shape:
                raise ExportError(f"{file}: output {name} of a batch of {size} is missing or has another shape")
            differences[name] = max(differences[name], greatest_difference(found[name], rows[:size]))
            if not differences[name] <= BOUND:
                raise ExportError(
                    f"{file} was not kept: its {name} differs from JAX by {differences[name]:.2g} with a batch of "
                    f"{size}; at most {BOUND:g} is allowed"
                )
    return differences


def greatest_difference(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """`max |found - expected| / max(1, max |expected|)`; infinite if a number is not finite."""
    with np.errstate(invalid="ignore"):  # the difference of infinities is refused below
        difference = float(np.max(np.abs(found - expected)))
    return difference / max(1.0, float(np.max(np.abs(expected)))) if np.isfinite(difference) else float("inf")
