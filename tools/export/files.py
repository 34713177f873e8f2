"""Exported files: encoding and loading of each format, and atomic writing of several files."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
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


class PartialFiles:
    """A context manager that writes files under temporary names; its exit renames them, or deletes them on an error."""

    def __init__(self) -> None:
        self._partial: dict[Path, Path] = {}

    def write(self, file: Path, contents: bytes) -> Path:
        """Writes the contents of `file` under a temporary name in the same folder; returns that path."""
        partial = self._partial[file] = file.with_name(f".{os.getpid()}.{file.name}")
        try:
            partial.write_bytes(contents)
            sync(partial)
        except OSError as error:
            raise _refusal(file, error.strerror) from None
        return partial

    def __enter__(self) -> PartialFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self._rename()
        finally:
            for partial in self._partial.values():
                partial.unlink(missing_ok=True)

    def _rename(self) -> None:
        for file, partial in self._partial.items():
            try:
                os.replace(partial, file)
                sync(file.parent)
            except OSError as error:
                raise _refusal(file, error.strerror) from None


def _refusal(file: Path, why: str | None) -> ExportError:
    return ExportError(f"cannot write {file}: {why}; name another file with --to")
