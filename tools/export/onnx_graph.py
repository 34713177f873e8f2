"""An ONNX graph under construction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.importing import import_extra
from podzero.tools.export.errors import ExportError
from podzero.tools.export.functions import BATCH

_OPSET, _IR_VERSION = 18, 8
"""Of ONNX 1.13 (2022), the first with axes of all reductions as inputs; newer runtimes read it as well."""


class Known(NamedTuple):
    """A value that does not depend on the inputs."""

    array: np.ndarray[Any, Any]
    name: str = "constant"
    """Where it comes from, as `params/heads/value/kernel`."""


Value = Known | str
"""A constant, or the name of a tensor."""


class Graph:
    """Nodes, and the constants that they use. The first axis of the first input is the batch.

    Args:
      inputs: shape and dtype by name; dimensions may be symbolic.

    Raises:
      ConfigError: the package `onnx` is not installed.
    """

    def __init__(self, inputs: Mapping[str, jax.ShapeDtypeStruct]) -> None:
        self._onnx = import_extra("onnx", "a .onnx file", "export")
        self._inputs = dict(inputs)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._taken: Counter[str] = Counter(inputs)
        self._batch: Value | None = None

    def node(self, operator: str, *inputs: Value, **attributes: Any) -> str:
        """Adds a node of ONNX's operator set with one output, and returns the name of this tensor."""
        name = self._unique(operator.lower())
        names = [self._name_of(value) for value in inputs]
        self._nodes.append(self._onnx.helper.make_node(operator, names, [name], name, **attributes))
        return name

    def cast(self, x: Value, dtype: np.dtype[Any]) -> str:
        """`x` in another dtype."""
        return self.node("Cast", x, to=self._type_of(dtype))

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        """`x` with its axes permuted as `numpy.transpose` does."""
        if list(permutation) == sorted(permutation):
            return x
        if isinstance(x, Known):
            return x._replace(array=np.ascontiguousarray(np.transpose(x.array, permutation)))
        return self.node("Transpose", x, perm=list(permutation))

    def reshape(self, x: Value, shape: Sequence[Any]) -> Value:
        """`x` in another shape, of which at most one dimension is symbolic."""
        sizes = [size if isinstance(size, int) else -1 for size in shape]
        if isinstance(x, Known):
            return x._replace(array=x.array.reshape(sizes))
        return self.node("Reshape", x, indices(*sizes))

    def expand(self, x: Value, shape: Sequence[Any]) -> str:
        """`x` broadcast to a shape; a dimension of one leaves that of `x` as it is."""
        if all(isinstance(size, int) for size in shape):
            return self.node("Expand", x, indices(*shape))
        if not all(isinstance(size, int) or str(size) == BATCH for size in shape):
            raise ExportError(f"ONNX: cannot broadcast to {list(shape)}, which is not a batch; write a .stablehlo file")
        sizes = [indices(size) if isinstance(size, int) else self._batch_size() for size in shape]
        return self.node("Expand", x, self.node("Concat", *sizes, axis=0))

    def model(self, outputs: Mapping[str, tuple[Value, Any]], metadata: Mapping[str, Any], version: str) -> Any:
        """The graph as an `onnx.ModelProto`.

        Args:
          outputs: value, and an object with shape and dtype, by name.
          metadata: what is not text becomes JSON.
          version: of podzero.
        """
        helper = self._onnx.helper
        results = []
        for name, (value, like) in outputs.items():
            self._nodes.append(helper.make_node("Identity", [self._name_of(value)], [name], f"output_{name}"))
            results.append(self._described(name, like))
        inputs = [self._described(name, like) for name, like in self._inputs.items()]
        graph = helper.make_graph(self._nodes, "podzero", inputs, results, self._constants)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION,
            producer_name="podzero", producer_version=version,
        )  # fmt: skip
        props = {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}
        helper.set_model_props(model, props)
        return model

    def _batch_size(self) -> Value:
        """The batch size as a vector of one number, `[1]` int64."""
        if self._batch is None:
            self._batch = self.node("Shape", next(iter(self._inputs)), start=0, end=1)
        return self._batch

    def _name_of(self, value: Value) -> str:
        if isinstance(value, str):
            return value
        name = self._unique(value.name)
        self._constants.append(self._onnx.numpy_helper.from_array(np.array(value.array, order="C"), name))
        return name

    def _unique(self, name: str) -> str:
        self._taken[name] += 1
        return name if self._taken[name] == 1 else f"{name}_{self._taken[name]}"

    def _described(self, name: str, like: Any) -> Any:
        sizes = [size if isinstance(size, int) else str(size) for size in like.shape]
        return self._onnx.helper.make_tensor_value_info(name, self._type_of(like.dtype), sizes)

    def _type_of(self, dtype: Any) -> int:
        return int(self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def indices(*numbers: int) -> Known:
    """A vector of axes or sizes, int64."""
    return Known(np.array(numbers, np.int64))
