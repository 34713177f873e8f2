"""Exports an agent: from a player's name to checked files, written all or none."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export

from podzero.config import EnvConfig, Experiment, GymnasiumConfig
from podzero.core.errors import ConfigError, nearest, os_errors
from podzero.core.importing import import_extra
from podzero.core.machine import usable_cpus
from podzero.core.types import EnvSpec
from podzero.envs import VectorEnv, make_env, simulator_errors, spec_of
from podzero.evaluation.episodes import uniform_actions
from podzero.evaluation.resolve import snapshot_of
from podzero.files.players import PREFIX, TrainedPlayer, full_name, parse_player, zoo_card
from podzero.files.workdir import written_together
from podzero.inference import random_positions
from podzero.networks import trainable_network
from podzero.tools.export.functions import BATCH, ExportError, Function, functions_of
from podzero.tools.export.onnx import onnx_model

MOST_BYTES = 2**31 - 2**24
"""Largest size of all parameters: files of both formats are limited to 2 GiB (by Protocol Buffers and FlatBuffers)."""
_REMEDY = "name another file with --to"


def export_agent(who: str, file: Path) -> dict[str, Any]:
    """Writes a trained agent's network to a file, whose suffix is one of `FORMATS`, and checks its results against JAX.

    A learned model becomes `NAME.representation.onnx`, `NAME.prediction.onnx` and `NAME.dynamics.onnx`.

    Returns:
      `player`, `files`, `metadata` (written to each file), `differences` (the largest of each output, see
      `greatest_difference`), `bound` (see `BOUND`) and `batch_sizes`.
    """
    player = parse_player(who)
    if not isinstance(player, TrainedPlayer):
        raise ConfigError(f"player '{who}' has no network to export; expected a run as DIR or DIR@STEP, or zoo:NAME")
    if file.suffix not in FORMATS:
        raise ConfigError(
            f"--to {file}: unknown suffix '{file.suffix}'{nearest(file.suffix, FORMATS)}; expected one of "
            f"{', '.join(FORMATS)}"
        )
    check_writable(file)
    experiment = player.workdir.experiment()
    spec = spec_of(experiment.env)
    snapshot = snapshot_of(player, trainable_network(experiment.network, spec))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(snapshot.params))
    if size > MOST_BYTES:
        raise ExportError(f"the parameters of this network take {size:,} bytes; a file can hold at most {MOST_BYTES:,}")
    metadata = _metadata(who, experiment, spec, snapshot.version)
    # Accelerators would otherwise round the inputs of matrix products.
    with jax.default_matmul_precision("highest"):
        functions = functions_of(experiment.network, spec, snapshot.params)
        count = max(BATCH_SIZES)
        actions = uniform_actions(np.random.default_rng(0), spec, (count,))
        inputs = {"observation": observations_of(experiment.env, spec, count), "action": actions}
        files: list[Path] = []
        differences: dict[str, float] = {}
        with os_errors(ExportError, f"cannot write {file}", _REMEDY), written_together(file.parent) as folder:
            for function, (given, expected) in zip(functions, references(functions, inputs), strict=True):
                files.append(file if function.name == "network" else file.with_suffix(f".{function.name}{file.suffix}"))
                partial = folder / files[-1].name
                partial.write_bytes(FORMATS[file.suffix].encode(function, metadata | _shapes(function, expected)))
                differences |= check_file(files[-1], FORMATS[file.suffix].load(partial), given, expected)
    return {
        "player": full_name(who, player, snapshot.version),
        "files": [str(one) for one in files],
        "metadata": metadata,
        "differences": differences,
        "bound": BOUND,
        "batch_sizes": list(BATCH_SIZES),
    }


def _metadata(who: str, experiment: Experiment, spec: EnvSpec, step: int) -> dict[str, Any]:
    commit = {"trained_with_commit": zoo_card(who.removeprefix(PREFIX))["commit"]} if who.startswith(PREFIX) else {}
    return {
        "game": spec.name,
        "players": spec.players,
        "actions": spec.num_actions or list(spec.action_shape),
        "observation_shape": list(spec.observation_shape),
        "observation_dtype": spec.observation_dtype,
        "step": step,
        "experiment": experiment.name,
        "network": experiment.network.name,
        "podzero": version("podzero"),
        **commit,
    }


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
"""Largest `greatest_difference`. Float32 sums in another order differ by 1e-6 to 1e-5, bfloat16 by more than 1e-3."""
_SIDE_BY_SIDE = 16
"""Gymnasium environments per vector environment."""


def observations_of(env: EnvConfig, spec: EnvSpec, count: int) -> np.ndarray[Any, Any]:
    """Observations of uniformly random play, `[count, *observation_shape]` float32."""
    if not isinstance(env, GymnasiumConfig):
        with simulator_errors():
            return random_positions(make_env(env), jax.random.key(0), count).observation.astype(np.float32)
    with closing(VectorEnv(env, _SIDE_BY_SIDE, seed=0)) as environments:
        rows, draw = [environments.reset().observation], np.random.default_rng(0)
        while len(rows) * _SIDE_BY_SIDE < count:
            rows.append(environments.step(uniform_actions(draw, spec, (_SIDE_BY_SIDE,))).observation)
    return np.concatenate(rows)[:count].astype(np.float32)


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
    """The `greatest_difference` of each output of a file's function from JAX's, in batches of several sizes.

    `inputs` and `expected` are `[N, ...]` each, with N at least the last of `BATCH_SIZES`.
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


# The formats of files, and their writing.

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""JAX platforms on which a `.stablehlo` file runs."""

Arrays = dict[str, np.ndarray[Any, Any]]
Call = Callable[[Arrays], Arrays]
"""Inputs to outputs, both by name."""


class Format(NamedTuple):
    """A file format."""

    encode: Callable[[Function, Mapping[str, Any]], bytes]
    """`(function, metadata)` to the contents of a file."""
    load: Callable[[Path], Call]
    """Loads a file's function."""


def _onnx_bytes(function: Function, metadata: Mapping[str, Any]) -> bytes:
    # The check of the file needs it; fail before the conversion.
    import_extra("onnxruntime", "a .onnx file", "export")
    contents: bytes = onnx_model(function, metadata).SerializeToString()
    return contents


def _load_onnx(file: Path) -> Call:
    runtime = import_extra("onnxruntime", "a .onnx file", "export")
    options = runtime.SessionOptions()
    # By default it pins a thread to each core of the machine, also to those that this process may not use.
    options.intra_op_num_threads = usable_cpus()
    try:
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    # Its errors have no common base class.
    except Exception as error:
        raise ExportError(f"ONNX Runtime {runtime.__version__} cannot load what was written: {error}") from error
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def _stablehlo_bytes(function: Function, metadata: Mapping[str, Any]) -> bytes:
    def call(*inputs: jax.Array) -> dict[str, jax.Array]:
        return function.call(function.params, *inputs)

    (batch,) = export.symbolic_shape(BATCH)
    exported = export.export(jax.jit(call), platforms=PLATFORMS)(*function.batched(batch))
    # The format has no field for metadata. The function's name may be any text and appears only in messages.
    named = dataclasses.replace(exported, fun_name=json.dumps(dict(metadata)))
    return bytes(named.serialize())


def _load_stablehlo(file: Path) -> Call:
    function = jax.jit(export.deserialize(bytearray(file.read_bytes())).call)
    return lambda inputs: {name: np.asarray(array) for name, array in function(*inputs.values()).items()}


FORMATS = {".onnx": Format(_onnx_bytes, _load_onnx), ".stablehlo": Format(_stablehlo_bytes, _load_stablehlo)}
"""Formats by suffix."""


def check_writable(file: Path) -> None:
    """Checks that a file can be written."""
    for problem, why in (
        (not file.parent.is_dir(), "its folder does not exist"),
        (file.is_dir(), "it is a folder"),
        (not os.access(file.parent, os.W_OK | os.X_OK), "its folder may not be written"),
    ):
        if problem:
            raise ExportError(f"cannot write {file}: {why}; {_REMEDY}")
