"""Converts a JAX function to an ONNX model, operation by operation of its jaxpr with a symbolic batch."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from itertools import count
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export
from jax.extend.core import Jaxpr, Literal

from podzero.core.importing import import_extra
from podzero.tools.export.functions import BATCH, ExportError, Function

_CALLS = ("jaxpr", "call_jaxpr")
"""Parameters that hold the jaxpr called by an equation: jit, custom gradients, rematerialization."""


def onnx_model(function: Function, metadata: Mapping[str, Any]) -> Any:
    """Converts a function to an `onnx.ModelProto` in float32 with a dynamic batch; its parameters become constants."""
    (batch,) = export.symbolic_shape(BATCH)
    inputs = dict(zip(function.inputs, function.batched(batch), strict=True))
    jaxpr, shapes = jax.make_jaxpr(function.call, return_shape=True)(function.params, *inputs.values())
    graph = Graph(inputs)
    params = [
        Known(np.asarray(leaf), "/".join(["params", *(str(entry.key) for entry in path)]))
        for path, leaf in jax.tree_util.tree_leaves_with_path(function.params)
    ]
    results = _evaluate(graph, jaxpr, [*params, *inputs])
    like = jax.tree_util.tree_leaves_with_path(shapes)
    outputs = {path[0].key: (value, shape) for (path, shape), value in zip(like, results, strict=True)}
    return graph.model(outputs, metadata)


def _evaluate(graph: Graph, jaxpr: Jaxpr, inputs: Sequence[Value]) -> list[Value]:
    """Adds the nodes of a jaxpr; returns its outputs."""
    values: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
    values |= {variable: Known(np.asarray(one)) for variable, one in zip(jaxpr.constvars, jaxpr.consts, strict=True)}

    def value_of(atom: Any) -> Value:
        if not isinstance(atom, Literal):
            return values[atom]
        like: Any = atom.aval
        return Known(np.asarray(atom.val, like.dtype))

    for equation in jaxpr.eqns:
        given = [value_of(atom) for atom in equation.invars]
        values |= zip(equation.outvars, _outputs(graph, equation, given), strict=True)
    return [value_of(atom) for atom in jaxpr.outvars]


def _outputs(graph: Graph, equation: Any, inputs: list[Value]) -> list[Value]:
    """Adds the nodes of an equation; returns its outputs."""
    if called := next((equation.params[name] for name in _CALLS if name in equation.params), None):
        return _evaluate(graph, called, inputs)
    # Fold what does not depend on the inputs into constants, unless its shape depends on the batch size.
    known = [value for value in inputs if isinstance(value, Known)]
    fixed = all(isinstance(size, int) for variable in equation.outvars for size in variable.aval.shape)
    if fixed and len(known) == len(inputs):
        return _computed(equation, known)
    return convert(graph, equation, *inputs)


def _computed(equation: Any, inputs: list[Known]) -> list[Value]:
    """Folds constants: applies an equation to inputs that are all known."""
    found = equation.primitive.bind(*(value.array for value in inputs), **equation.params)
    # What is computed from one parameter keeps its name.
    names = [value.name for value in inputs if value.name.startswith("params/")]
    name = names[0] if len(names) == 1 else "constant"
    arrays = found if equation.primitive.multiple_results else [found]
    return [Known(np.asarray(array), name) for array in arrays]


_OPSET, _IR_VERSION = 18, 8
"""The versions of ONNX 1.13 (2022), the first in which all reductions take their axes as inputs."""


class Known(NamedTuple):
    """A value that does not depend on the inputs."""

    array: np.ndarray[Any, Any]
    name: str = "constant"
    """The parameter that it comes from, such as `params/heads/value/kernel`."""


Value = Known | str
"""A constant, or the name of a tensor."""


class Graph:
    """An ONNX graph under construction. The first axis of the first input is the batch.

    `inputs` are the shape and dtype of each input by name; dimensions may be symbolic.
    """

    def __init__(self, inputs: Mapping[str, jax.ShapeDtypeStruct]) -> None:
        self._onnx = import_extra("onnx", "a .onnx file", "export")
        self._inputs = dict(inputs)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._taken: Counter[str] = Counter(inputs)

    def node(self, operator: str, *inputs: Value, **attributes: Any) -> str:
        """Adds a node with one output; returns the output's name."""
        name = self._unique(operator.lower())
        names = [self._name_of(value) for value in inputs]
        self._nodes.append(self._onnx.helper.make_node(operator, names, [name], name, **attributes))
        return name

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        """Permutes the axes of `x` like `numpy.transpose`."""
        if list(permutation) == sorted(permutation):
            return x
        if isinstance(x, Known):
            return x._replace(array=np.ascontiguousarray(np.transpose(x.array, permutation)))
        return self.node("Transpose", x, perm=list(permutation))

    def reshape(self, x: Value, shape: Sequence[Any]) -> Value:
        """Reshapes `x`; at most one dimension is symbolic."""
        sizes = [size if isinstance(size, int) else -1 for size in shape]
        if isinstance(x, Known):
            return x._replace(array=x.array.reshape(sizes))
        return self.node("Reshape", x, indices(*sizes))

    def expand(self, x: Value, shape: Sequence[Any]) -> str:
        """Broadcasts `x` to a shape; sizes of 1 keep those of `x`."""
        if all(isinstance(size, int) for size in shape):
            return self.node("Expand", x, indices(*shape))
        if not all(isinstance(size, int) or str(size) == BATCH for size in shape):
            raise ExportError(f"ONNX: cannot broadcast to {list(shape)}, which is not a batch; write a .stablehlo file")
        sizes = [indices(size) if isinstance(size, int) else self._batch_size for size in shape]
        return self.node("Expand", x, self.node("Concat", *sizes, axis=0))

    def model(self, outputs: Mapping[str, tuple[Value, Any]], metadata: Mapping[str, Any]) -> Any:
        """Completes the graph as an `onnx.ModelProto`; metadata other than strings become JSON.

        `outputs` are the value of each output, and an object with its shape and dtype, by name.
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
            producer_name="podzero", producer_version=version("podzero"),
        )  # fmt: skip
        props = {name: value if isinstance(value, str) else json.dumps(value) for name, value in metadata.items()}
        helper.set_model_props(model, props)
        return model

    @cached_property
    def _batch_size(self) -> Value:
        return self.node("Shape", next(iter(self._inputs)), start=0, end=1)

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
        return self._onnx.helper.make_tensor_value_info(name, self.type_of(like.dtype), sizes)

    def type_of(self, dtype: Any) -> int:
        """The number by which ONNX knows a dtype."""
        return int(self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def indices(*numbers: int) -> Known:
    """Axes or sizes as an int64 vector."""
    return Known(np.array(numbers, np.int64))


_SAME = {
    "abs": "Abs", "add": "Add", "div": "Div", "eq": "Equal", "exp": "Exp", "gt": "Greater", "logistic": "Sigmoid",
    "min": "Min", "mul": "Mul", "sign": "Sign", "sqrt": "Sqrt", "sub": "Sub", "tanh": "Tanh",
}  # fmt: skip
"""Elementwise operations with an equivalent in ONNX."""
_REDUCTIONS = {"reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_sum": "ReduceSum"}
_CHANNELS_FIRST, _CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def convert(graph: Graph, equation: Any, *inputs: Value) -> list[Value]:
    """Adds the nodes of an operation; returns its outputs."""
    name = equation.primitive.name
    if name == "unstack":
        axis, size = equation.params["axis"], len(equation.outvars)
        return [graph.node("Gather", inputs[0], Known(np.asarray(at, np.int64)), axis=axis) for at in range(size)]
    if name == "stack":
        axis = equation.params["axis"]
        return [graph.node("Concat", *(graph.node("Unsqueeze", part, indices(axis)) for part in inputs), axis=axis)]
    if name in _SAME:
        return [graph.node(_SAME[name], *inputs)]
    if name in _REDUCTIONS:
        return [graph.node(_REDUCTIONS[name], inputs[0], indices(*equation.params["axes"]), keepdims=0)]
    if name not in _OTHERS:
        raise _unknown(equation)
    return [_OTHERS[name](graph, equation, *inputs)]


def _unknown(equation: Any, what: str = "") -> ExportError:
    return ExportError(
        f"the network computes '{equation.primitive.name}'{what}, which podzero cannot write as ONNX; "
        "write a .stablehlo file"
    )


def _maximum(graph: Graph, equation: Any, x: Value, y: Value) -> Value:
    # Runtimes compute a Relu, but not a Max, together with the convolution before it.
    if isinstance(y, Known) and y.array.shape == () and y.array == 0:
        return graph.node("Relu", x)
    return graph.node("Max", x, y)


def _cast(graph: Graph, equation: Any, x: Value) -> Value:
    dtype = np.dtype(equation.params["new_dtype"])
    return x if dtype == equation.invars[0].aval.dtype else graph.node("Cast", x, to=graph.type_of(dtype))


def _choose(graph: Graph, equation: Any, which: Value, *cases: Value) -> Value:
    if len(cases) != 2 or equation.invars[0].aval.dtype != bool:
        raise _unknown(equation, " of other than two cases")
    # Where the predicate holds, `select_n` takes its second case, `Where` its first.
    return graph.node("Where", which, cases[1], cases[0])


def _reshape(graph: Graph, equation: Any, x: Value) -> Value:
    if equation.params["dimensions"] is not None:
        raise _unknown(equation, " with transposition")
    return graph.reshape(x, equation.params["new_sizes"])


def _broadcast(graph: Graph, equation: Any, x: Value) -> Value:
    # First add axes of size 1, then expand them.
    before, after = equation.invars[0].aval.shape, equation.params["shape"]
    ranked: list[Any] = [1] * len(after)
    for axis, size in zip(equation.params["broadcast_dimensions"], before, strict=True):
        ranked[axis] = size
    if ranked != list(before):
        x = graph.reshape(x, ranked)
    if ranked == list(after):
        return x
    return graph.expand(x, [1 if old == new else new for old, new in zip(ranked, after, strict=True)])


def _slice(graph: Graph, equation: Any, x: Value) -> Value:
    params, shape = equation.params, equation.invars[0].aval.shape
    starts, ends = params["start_indices"], params["limit_indices"]
    strides = params["strides"] or (1,) * len(shape)
    cut = [axis for axis in range(len(shape)) if (starts[axis], ends[axis], strides[axis]) != (0, shape[axis], 1)]
    if not all(isinstance(ends[axis], int) for axis in cut):
        raise _unknown(equation, " of the batch")
    return graph.node("Slice", x, *(indices(*(each[axis] for axis in cut)) for each in (starts, ends)), indices(*cut),
                      indices(*(strides[axis] for axis in cut)))  # fmt: skip


def _gather(graph: Graph, equation: Any, x: Value, where: Value) -> Value:
    """An entry along one axis at a constant index, such as `x[:, 0]`."""
    numbers, shape = equation.params["dimension_numbers"], equation.invars[0].aval.shape
    axes, sizes = numbers.collapsed_slice_dims, equation.params["slice_sizes"]
    whole = all(size == shape[axis] for axis, size in enumerate(sizes) if axis not in axes)
    if not isinstance(where, Known) or where.array.size != 1 or numbers.start_index_map != axes or not whole:
        raise _unknown(equation, " of more than one constant index")
    return graph.node("Gather", x, Known(where.array.astype(np.int64).reshape(())), axis=axes[0])


def _product(graph: Graph, equation: Any, x: Value, y: Value) -> Value:
    """A matrix product for dense layers, an Einsum for all others."""
    (over_x, over_y), (batch_x, batch_y) = equation.params["dimension_numbers"]
    rank_x, rank_y = (variable.aval.ndim for variable in equation.invars)
    if rank_y == 2 and (tuple(over_x), tuple(over_y), tuple(batch_x)) == ((rank_x - 1,), (0,), ()):
        return graph.node("MatMul", x, y)
    # Each axis gets a letter; contracted and batch axes of both inputs share theirs.
    letters = (chr(ord("a") + number) for number in count())
    of_x, of_y = [next(letters) for _ in range(rank_x)], [next(letters) for _ in range(rank_y)]
    for axis_x, axis_y in zip((*over_x, *batch_x), (*over_y, *batch_y), strict=True):
        of_y[axis_y] = of_x[axis_x]
    free_x = [of_x[axis] for axis in range(rank_x) if axis not in (*over_x, *batch_x)]
    free_y = [of_y[axis] for axis in range(rank_y) if axis not in (*over_y, *batch_y)]
    result = [*(of_x[axis] for axis in batch_x), *free_x, *free_y]
    return graph.node("Einsum", x, y, equation=f"{''.join(of_x)},{''.join(of_y)}->{''.join(result)}")


def _convolve(graph: Graph, equation: Any, x: Value, kernel: Value) -> Value:
    params = equation.params
    of_x, of_kernel, of_result = params["dimension_numbers"]
    if params["batch_group_count"] != 1 or set(params["lhs_dilation"]) != {1}:
        raise _unknown(equation, " transposed or by groups of the batch")
    # ONNX has channels first: transpose inputs and result.
    y = graph.node(
        "Conv", graph.transpose(x, of_x), graph.transpose(kernel, of_kernel),
        strides=list(params["window_strides"]), dilations=list(params["rhs_dilation"]),
        pads=[pads[end] for end in (0, 1) for pads in params["padding"]], group=params["feature_group_count"],
    )  # fmt: skip
    return graph.transpose(y, np.argsort(of_result).tolist())


def _pool_sum(graph: Graph, equation: Any, x: Value) -> Value:
    """The sum over each window of images `[B, H, W, C]`."""
    # ONNX has no sum pooling: take the mean, padding included, times the size of the window.
    params = equation.params
    window, strides, padding = (params[name] for name in ("window_dimensions", "window_strides", "padding"))
    dilated = set(params["base_dilation"]) | set(params["window_dilation"]) != {1}
    if dilated or len(window) != 4 or (window[0], window[3], strides[0], strides[3]) != (1, 1, 1, 1):
        raise _unknown(equation, " of other windows than those of images")
    mean = graph.node(
        "AveragePool", graph.transpose(x, _CHANNELS_FIRST), kernel_shape=list(window[1:3]), strides=list(strides[1:3]),
        pads=[pads[end] for end in (0, 1) for pads in padding[1:3]], count_include_pad=1,
    )  # fmt: skip
    size = np.asarray(math.prod(window), equation.invars[0].aval.dtype)
    return graph.transpose(graph.node("Mul", mean, Known(size)), _CHANNELS_LAST)


_OTHERS: dict[str, Callable[..., Value]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda graph, equation, *parts: graph.node("Concat", *parts, axis=equation.params["dimension"]),
    "conv_general_dilated": _convolve,
    "convert_element_type": _cast,
    "dot_general": _product,
    "gather": _gather,
    "integer_pow": lambda graph, equation, x: graph.node(
        "Pow", x, Known(np.asarray(equation.params["y"], equation.invars[0].aval.dtype))
    ),
    "max": _maximum,
    "reduce_window_sum": _pool_sum,
    "reshape": _reshape,
    "rsqrt": lambda graph, equation, x: graph.node("Reciprocal", graph.node("Sqrt", x)),
    "select_n": _choose,
    "slice": _slice,
    "square": lambda graph, equation, x: graph.node("Mul", x, x),
    "squeeze": lambda graph, equation, x: graph.node("Squeeze", x, indices(*equation.params["dimensions"])),
    "stop_gradient": lambda graph, equation, x: x,
    "transpose": lambda graph, equation, x: graph.transpose(x, equation.params["permutation"]),
}
"""`(graph, equation, *inputs)` to the equation's only output, by the operation's name."""
