"""Exports an agent: from a player's name to checked files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from podzero.config import EnvConfig, Experiment, GymnasiumConfig
from podzero.core.errors import ConfigError, nearest
from podzero.core.types import EnvSpec
from podzero.envs import VectorEnv, make_env, simulator_errors, spec_of
from podzero.files.players import PREFIX, TrainedPlayer, full_name, parse_player, zoo_card
from podzero.inference import random_positions
from podzero.networks import trainable_network
from podzero.networks.snapshots import check_matches, load_snapshot
from podzero.tools.export.files import FORMATS, Arrays, Call, Format, check_writable, written_together
from podzero.tools.export.functions import BATCH, ExportError, Function, functions_of

MOST_BYTES = 2**31 - 2**24
"""Largest size of all parameters: files of both formats are limited to 2 GiB (by Protocol Buffers and FlatBuffers)."""


def format_of(file: Path) -> Format:
    """The format for a file's suffix."""
    if file.suffix not in FORMATS:
        raise ConfigError(
            f"--to {file}: unknown suffix '{file.suffix}'{nearest(file.suffix, FORMATS)}; expected one of "
            f"{', '.join(FORMATS)}"
        )
    return FORMATS[file.suffix]


def trained_agent(who: str) -> TrainedPlayer:
    """Parses the name of a trained player."""
    player = parse_player(who)
    if not isinstance(player, TrainedPlayer):
        raise ConfigError(
            f"player '{who}' has no network to export; expected a working directory as DIR or DIR@STEP, or zoo:NAME"
        )
    return player


def export_agent(who: str, file: Path) -> dict[str, Any]:
    """Writes an agent's network to a file and checks its results against JAX.

    A learned model is written to one file per network: `NAME.representation.onnx`, `NAME.prediction.onnx` and
    `NAME.dynamics.onnx` instead of `NAME.onnx`.

    Args:
      who: a trained player, see `podzero.files.players`.
      file: the file to write or replace; its suffix is one of `FORMATS`.

    Returns:
      `player`, `files`, `metadata` (written to each file), `differences` (the largest of each output, see
      `greatest_difference`), `bound` (see `BOUND`) and `batch_sizes`.

    Raises:
      ConfigError: there is no such player, it has no network, the suffix is unknown, or a package is not installed.
      WorkdirError, SnapshotError: the working directory or the snapshot cannot be read.
      ExportError: the format cannot express the network, the file cannot be written, or its results differ from JAX's.
      EnvironmentFailed, SimulatorError: the environment failed while the positions for the check were played.
    """
    kind, player = format_of(file), trained_agent(who)
    check_writable(file)
    experiment = player.workdir.experiment()
    spec = spec_of(experiment.env)
    snapshot = load_snapshot(player.workdir.snapshots, player.step)
    origin = f"{player.workdir.snapshots} at step {snapshot.version}"
    check_matches(snapshot.params, trainable_network(experiment.network, spec), origin)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(snapshot.params))
    if size > MOST_BYTES:
        raise ExportError(f"the parameters of this network take {size:,} bytes; a file can hold at most {MOST_BYTES:,}")
    metadata = _metadata(who, experiment, spec, snapshot.version)
    # Accelerators would otherwise round the inputs of matrix products.
    with jax.default_matmul_precision("highest"):
        functions = functions_of(experiment.network, spec, snapshot.params)
        count = max(BATCH_SIZES)
        inputs = {"observation": observations_of(experiment.env, spec, count), "action": random_actions(spec, count, 0)}
        files: list[Path] = []
        differences: dict[str, float] = {}
        with written_together(file) as folder:
            for function, (given, expected) in zip(functions, references(functions, inputs), strict=True):
                files.append(file if function.name == "network" else file.with_suffix(f".{function.name}{file.suffix}"))
                partial = folder / files[-1].name
                partial.write_bytes(kind.encode(function, metadata | _shapes(function, expected)))
                differences |= check_file(files[-1], kind.load(partial), given, expected)
    return {
        "player": full_name(who, player, snapshot.version),
        "files": [str(one) for one in files],
        "metadata": metadata,
        "differences": differences,
        "bound": BOUND,
        "batch_sizes": list(BATCH_SIZES),
    }


def _metadata(who: str, experiment: Experiment, spec: EnvSpec, step: int) -> dict[str, Any]:
    """The description of the agent in a file."""
    about = {
        "game": spec.name,
        "players": spec.players,
        "actions": spec.num_actions or list(spec.action_shape),
        "observation_shape": list(spec.observation_shape),
        "observation_dtype": spec.observation_dtype,
        "step": step,
        "experiment": experiment.name,
        "network": experiment.network.name,
        "podzero": version("podzero"),
    }
    commit = {"trained_with_commit": zoo_card(who.removeprefix(PREFIX))["commit"]} if who.startswith(PREFIX) else {}
    return about | commit


def _shapes(function: Function, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a function in a file: its name, and the shapes of its inputs and outputs."""
    return {
        "function": function.name,
        "inputs": {name: [BATCH, *one.shape] for name, one in function.inputs.items()},
        "outputs": {name: [BATCH, *one.shape[1:]] for name, one in outputs.items()},
    }


BATCH_SIZES = (1, 7, 64)
"""Batch sizes with which a file is checked, ascending."""
BOUND = 1e-4
"""Largest allowed `greatest_difference`. Float32 sums in another order differ by 1e-6 to 1e-5; bfloat16 would differ by
more than 1e-3."""
_SIDE_BY_SIDE = 16
"""Gymnasium environments per vector environment."""


def observations_of(env: EnvConfig, spec: EnvSpec, count: int) -> np.ndarray[Any, Any]:
    """Observations of uniformly random play, `[count, *observation_shape]` float32."""
    if not isinstance(env, GymnasiumConfig):
        with simulator_errors():
            return random_positions(make_env(env), jax.random.key(0), count).observation.astype(np.float32)
    with closing(VectorEnv(env, _SIDE_BY_SIDE, seed=0)) as environments:
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
    """The inputs and JAX's outputs of each function."""
    # By name, outputs become inputs of later functions: `latent`, for example.
    values, found = dict(inputs), []
    for function in functions:
        given = {name: values[name] for name in function.inputs}
        outputs = jax.device_get(jax.jit(function.call)(function.params, *given.values()))
        values |= outputs
        found.append((given, outputs))
    return found


def check_file(file: Path, call: Call, inputs: Arrays, expected: Arrays) -> dict[str, float]:
    """Compares a file's function with JAX in batches of several sizes.

    Args:
      file: the file, for error messages.
      call: the file's function.
      inputs: `[N, ...]` each, with N at least the last of `BATCH_SIZES`.
      expected: JAX's outputs, `[N, ...]` each.

    Returns:
      the `greatest_difference` of each output.
    """
    differences = dict.fromkeys(expected, 0.0)
    for size in BATCH_SIZES:
        found = call({name: rows[:size] for name, rows in inputs.items()})
        for name, rows in expected.items():
            if name not in found or found[name].shape != rows[:size].shape:
                raise ExportError(f"{file}: output {name} of a batch of {size} is missing or has another shape")
            differences[name] = max(differences[name], greatest_difference(found[name], rows[:size]))
            if differences[name] > BOUND:
                raise ExportError(
                    f"{file} was not kept: its {name} differs from JAX by {differences[name]:.2g} with a batch of "
                    f"{size}; at most {BOUND:g} is allowed"
                )
    return differences


def greatest_difference(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """`max |found - expected| / max(1, max |expected|)`; infinite if a number is not finite."""
    # The difference of infinities is NaN and refused below.
    with np.errstate(invalid="ignore"):
        difference = float(np.max(np.abs(found - expected)))
    return difference / max(1.0, float(np.max(np.abs(expected)))) if np.isfinite(difference) else float("inf")
