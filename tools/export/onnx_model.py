"""A JAX function as an ONNX model: its jaxpr with a symbolic batch, operation by operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from jax import export
from jax.extend.core import Jaxpr, Literal

from podzero.tools.export.functions import BATCH, Function
from podzero.tools.export.onnx_graph import Graph, Known, Value
from podzero.tools.export.onnx_operators import convert

_CALLS = ("jaxpr", "call_jaxpr")
"""Parameters of the equations that call another jaxpr: jit, custom gradients, rematerialization."""


def onnx_model(function: Function, metadata: Mapping[str, Any]) -> Any:
    """The function as an `onnx.ModelProto` in float32 with a dynamic batch.

    What does not depend on the inputs is computed here, so that the model holds constants instead.

    Args:
      function: what to write; its parameters become constants.
      metadata: written into the model.

    Raises:
      ConfigError: the package `onnx` is not installed.
      ExportError: the function computes something that cannot be written.
    """
    (batch,) = export.symbolic_shape(BATCH)
    inputs = dict(zip(function.inputs, function.batched(batch), strict=True))
    jaxpr, shapes = jax.make_jaxpr(function.call, return_shape=True)(function.params, *inputs.values())
    graph = Graph(inputs)
    results = _evaluate(graph, jaxpr, [*_named(function.params), *inputs])
    like = jax.tree_util.tree_leaves_with_path(shapes)
    outputs = {path[0].key: (value, shape) for (path, shape), value in zip(like, results, strict=True)}
    return graph.model(outputs, metadata, version("podzero"))


def _named(params: Any) -> list[Known]:
    """All parameters with their paths, as `params/heads/value/kernel`."""
    return [
        Known(np.asarray(leaf), "/".join(["params", *(str(entry.key) for entry in path)]))
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    ]


def _evaluate(graph: Graph, jaxpr: Jaxpr, inputs: Sequence[Value]) -> list[Value]:
    """Adds the nodes of a jaxpr; returns the values of its outputs."""
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
    """The values of one equation."""
    for name in _CALLS:
        if name in equation.params:
            called = equation.params[name]
            return _evaluate(graph, called, inputs)
    known = [value for value in inputs if isinstance(value, Known)]
    fixed = all(isinstance(size, int) for variable in equation.outvars for size in variable.aval.shape)
    if fixed and len(known) == len(inputs):
        return _computed(equation, known)
    return convert(graph, equation, *inputs)


def _computed(equation: Any, inputs: list[Known]) -> list[Value]:
    """Constants computed from constants; what comes from one parameter keeps its name."""
    found = equation.primitive.bind(*(value.array for value in inputs), **equation.params)
    names = [value.name for value in inputs if value.name.startswith("params/")]
    name = names[0] if len(names) == 1 else "constant"
    arrays = found if equation.primitive.multiple_results else [found]
    return [Known(np.asarray(array), name) for array in arrays]
