"""The operations of JAX programs in ONNX's operators: all that podzero's networks compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from podzero.tools.export.errors import ExportError
from podzero.tools.export.onnx_graph import Graph, Known, Value, indices

Convert = Callable[..., Value]
"""`(graph, equation, *inputs)` to the value of the equation's only output."""

_SAME = {
    "abs": "Abs", "add": "Add", "div": "Div", "eq": "Equal", "exp": "Exp", "gt": "Greater", "logistic": "Sigmoid",
    "min": "Min", "mul": "Mul", "sign": "Sign", "sqrt": "Sqrt", "sub": "Sub", "tanh": "Tanh",
}  # fmt: skip
"""Elementwise operations that ONNX has as they are."""
_REDUCTIONS = {"reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_sum": "ReduceSum"}
_CHANNELS_FIRST, _CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def convert(graph: Graph, equation: Any, *inputs: Value) -> list[Value]:
    """Adds the nodes of one equation of a jaxpr; returns its outputs.

    Raises:
      ExportError: the operation, or this form of it, is not known here.
    """
    name = equation.primitive.name
    if name == "unstack":
        axis, size = equation.params["axis"], len(equation.outvars)
        return [graph.node("Gather", inputs[0], Known(np.asarray(at, np.int64)), axis=axis) for at in range(size)]
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
    if isinstance(y, Known) and y.array.shape == () and y.array == 0:
        return graph.node("Relu", x)
    return graph.node("Max", x, y)


def _integer_power(graph: Graph, equation: Any, x: Value) -> Value:
    exponent = np.asarray(equation.params["y"], equation.invars[0].aval.dtype)
    return graph.node("Pow", x, Known(exponent))


def _cast(graph: Graph, equation: Any, x: Value) -> Value:
    dtype = np.dtype(equation.params["new_dtype"])
    return x if dtype == equation.invars[0].aval.dtype else graph.cast(x, dtype)


def _choose(graph: Graph, equation: Any, which: Value, *cases: Value) -> Value:
    if len(cases) != 2 or equation.invars[0].aval.dtype != bool:
        raise _unknown(equation, " of other than two cases")
    return graph.node("Where", which, cases[1], cases[0])


def _reshape(graph: Graph, equation: Any, x: Value) -> Value:
    if equation.params["dimensions"] is not None:
        raise _unknown(equation, " with transposition")
    return graph.reshape(x, equation.params["new_sizes"])


def _broadcast(graph: Graph, equation: Any, x: Value) -> Value:
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
    """One entry along one axis, at a constant index, as `x[:, 0]`."""
    numbers, shape = equation.params["dimension_numbers"], equation.invars[0].aval.shape
    axes, sizes = numbers.collapsed_slice_dims, equation.params["slice_sizes"]
    whole = all(size == shape[axis] for axis, size in enumerate(sizes) if axis not in axes)
    if not isinstance(where, Known) or where.array.size != 1 or numbers.start_index_map != axes or not whole:
        raise _unknown(equation, " of more than one constant index")
    return graph.node("Gather", x, Known(where.array.astype(np.int64).reshape(())), axis=axes[0])


def _stack(graph: Graph, equation: Any, *parts: Value) -> Value:
    """Parts of equal shape along a new axis."""
    axis = equation.params["axis"]
    return graph.node("Concat", *(graph.node("Unsqueeze", part, indices(axis)) for part in parts), axis=axis)


def _product(graph: Graph, equation: Any, x: Value, y: Value) -> Value:
    """A dense layer as a matrix product, every other product by its letters."""
    (over_x, over_y), (batch_x, batch_y) = equation.params["dimension_numbers"]
    rank_x, rank_y = (variable.aval.ndim for variable in equation.invars)
    if rank_y == 2 and (tuple(over_x), tuple(over_y), tuple(batch_x)) == ((rank_x - 1,), (0,), ()):
        return graph.node("MatMul", x, y)
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
    y = graph.node(
        "Conv", graph.transpose(x, of_x), graph.transpose(kernel, of_kernel),
        strides=list(params["window_strides"]), dilations=list(params["rhs_dilation"]),
        pads=[pads[end] for end in (0, 1) for pads in params["padding"]], group=params["feature_group_count"],
    )  # fmt: skip
    return graph.transpose(y, np.argsort(of_result).tolist())


def _pool_sum(graph: Graph, equation: Any, x: Value) -> Value:
    """The sum of each window of images `[B, H, W, C]`: the mean with its padding, times the size of the window."""
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


_OTHERS: dict[str, Convert] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda graph, equation, *parts: graph.node("Concat", *parts, axis=equation.params["dimension"]),
    "conv_general_dilated": _convolve,
    "convert_element_type": _cast,
    "dot_general": _product,
    "gather": _gather,
    "integer_pow": _integer_power,
    "max": _maximum,
    "reduce_window_sum": _pool_sum,
    "reshape": _reshape,
    "rsqrt": lambda graph, equation, x: graph.node("Reciprocal", graph.node("Sqrt", x)),
    "select_n": _choose,
    "slice": _slice,
    "stack": _stack,
    "square": lambda graph, equation, x: graph.node("Mul", x, x),
    "squeeze": lambda graph, equation, x: graph.node("Squeeze", x, indices(*equation.params["dimensions"])),
    "stop_gradient": lambda graph, equation, x: x,
    "transpose": lambda graph, equation, x: graph.transpose(x, equation.params["permutation"]),
}
