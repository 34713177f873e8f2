"""Exported files: encoding and loading of each format, and atomic writing of several files."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export

from podzero.core.importing import import_extra
from podzero.files.workdir import sync
from podzero.tools.export.functions import BATCH, ExportError, Function
from podzero.tools.export.onnx import onnx_model

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
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    try:
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    # Its errors have no common base class.
    except Exception as error:
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
    # The format has no field for metadata. The function's name may be any text and appears only in messages.
    named = dataclasses.replace(exported, fun_name=json.dumps(dict(metadata)))
    return bytes(named.serialize())


def _load_stablehlo(file: Path) -> Call:
    exported = export.deserialize(bytearray(file.read_bytes()))
    function = jax.jit(exported.call)

    def call(inputs: Arrays) -> Arrays:
        return {name: np.asarray(array) for name, array in function(*inputs.values()).items()}

    return call


FORMATS = {".onnx": Format(_onnx_bytes, _load_onnx), ".stablehlo": Format(_stablehlo_bytes, _load_stablehlo)}
"""Formats by suffix."""


def check_writable(file: Path) -> None:
    """Checks that a file can be written."""
    if not file.parent.is_dir():
        raise _refusal(file, "its folder does not exist")
    if file.is_dir():
        raise _refusal(file, "it is a folder")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise _refusal(file, "its folder may not be written")


@contextmanager
def written_together(file: Path) -> Iterator[Path]:
    """A temporary folder, whose files are moved beside `file` at the end; after an error they are deleted."""
    try:
        with TemporaryDirectory(dir=file.parent, prefix=".export-") as partial:
            yield Path(partial)
            for written in Path(partial).iterdir():
                sync(written)
                os.replace(written, file.parent / written.name)
            sync(file.parent)
    except OSError as error:
        raise _refusal(file, error.strerror) from None


def _refusal(file: Path, why: str | None) -> ExportError:
    return ExportError(f"cannot write {file}: {why}; name another file with --to")
