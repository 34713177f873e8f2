"""The kinds of files: how a function is written, and how a written one is called."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export

from podzero.importing import import_extra
from podzero.tools.export.errors import ExportError
from podzero.tools.export.functions import BATCH, Function
from podzero.tools.export.onnx_model import onnx_model

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""On which a `.stablehlo` file runs."""

Arrays = dict[str, np.ndarray[Any, Any]]
Call = Callable[[Arrays], Arrays]
"""Inputs to outputs, by their names."""


class Format(NamedTuple):
    """One kind of file."""

    encode: Callable[[Function, Mapping[str, Any]], bytes]
    """The contents of the file of a function, with metadata in it."""
    load: Callable[[Path], Call]
    """The function in a file, ready to be called."""


def _onnx_bytes(function: Function, metadata: Mapping[str, Any]) -> bytes:
    import_extra("onnxruntime", "a .onnx file", "export")  # which checks it: refused before the work, not after it
    contents: bytes = onnx_model(function, metadata).SerializeToString()
    return contents


def _load_onnx(file: Path) -> Call:
    runtime = import_extra("onnxruntime", "a .onnx file", "export")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    try:
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base
        raise ExportError(f"ONNX Runtime {runtime.__version__} cannot load what was written: {error}") from error
    names = [output.name for output in session.get_outputs()]

    def call(inputs: Arrays) -> Arrays:
        return dict(zip(names, session.run(names, inputs), strict=True))

    return call


def _stablehlo_bytes(function: Function, metadata: Mapping[str, Any]) -> bytes:
    def call(*inputs: jax.Array) -> dict[str, jax.Array]:
        return function.call(function.params, *inputs)

    (batch,) = export.symbolic_shape(BATCH)
    exported = export.export(jax.jit(call), platforms=PLATFORMS)(*function.batched(batch))
    # The format has no field for metadata; the function's name may be any text, and is only shown in messages.
    named = dataclasses.replace(exported, fun_name=json.dumps(dict(metadata)))
    return bytes(named.serialize())


def _load_stablehlo(file: Path) -> Call:
    exported = export.deserialize(bytearray(file.read_bytes()))
    function = jax.jit(exported.call)

    def call(inputs: Arrays) -> Arrays:
        return {name: np.asarray(array) for name, array in function(*inputs.values()).items()}

    return call


FORMATS = {".onnx": Format(_onnx_bytes, _load_onnx), ".stablehlo": Format(_stablehlo_bytes, _load_stablehlo)}
"""By the ending of the file."""
