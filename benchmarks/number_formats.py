"""Compiles products and convolutions in several number formats for each generation of TPUs; stores estimated cycles.

uv run --group dev python benchmarks/number_formats.py

`uv run --group dev python benchmarks/pages.py` writes the table of docs/compile.md from them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from podzero.benchmarks.compile_results import compiler
from podzero.benchmarks.markdown import Row
from podzero.core.chips import find_slice
from podzero.tools.compile.cost import count
from podzero.tools.compile.hlo import parse
from podzero.tools.compile.programs import devices_of, on_one

RESULTS = Path(__file__).parent / "results" / "number_formats.json"
SLICES = ("v4-8", "v5e-1", "v5p-8", "v6e-1", "tpu7x-8")
"""The smallest slice of each generation; one JAX device computes."""
FORMATS = ("bfloat16", "int8", "float8_e4m3fn")
IN_A_ROW, WIDTH = 4, 1024
GAMES, SIDE, CHANNELS = 512, 8, (128, 256)

_Made = tuple[Callable[..., Any], list[tuple[int, ...]]]
"""A program, and the shapes of its arguments."""


def main() -> None:
    """Compiles everything, which takes minutes, and writes the results."""
    cycles: dict[str, dict[str, dict[str, float | None]]] = {name: {} for name in PROGRAMS}
    for where in SLICES:
        device = devices_of(find_slice(where))[0]
        for name, make in PROGRAMS.items():
            # Wide convolutions in fp8 take minutes to compile where the chip has no such products.
            wanted = FORMATS[:2] if name == convolutions_of(CHANNELS[-1]) else FORMATS
            cycles[name][where] = {dtype: _cycles(make, jnp.dtype(dtype), device) for dtype in wanted}
            print(f"{name}, {where}: {cycles[name][where]}", flush=True)
    RESULTS.write_text(json.dumps({"compiler": compiler(), "cycles": cycles}, indent=1) + "\n", encoding="utf-8")


def _cycles(make: Callable[[Any], _Made], dtype: Any, device: Any) -> float | None:
    """The compiler's estimate of one execution; None if it has none."""
    program, shapes = make(dtype)
    arguments = on_one(jax.eval_shape(lambda: [jnp.zeros(shape, dtype) for shape in shapes]), device)
    cost = count(parse(str(jax.jit(program).lower(*arguments).compile().as_text())))
    return None if math.isnan(cost.cycles) else cost.cycles


def _products(dtype: Any) -> _Made:
    shapes: list[tuple[int, ...]] = [(4 * WIDTH, WIDTH), *([(WIDTH, WIDTH)] * IN_A_ROW)]
    return partial(_in_a_row, lambda x, kernel: lax.dot(x, kernel, preferred_element_type=_sums(dtype))), shapes


def _convolutions(channels: int, dtype: Any) -> _Made:
    def convolved(x: jax.Array, kernel: jax.Array) -> jax.Array:
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=layout, preferred_element_type=_sums(dtype)
        )

    return partial(_in_a_row, convolved), [(GAMES, SIDE, SIDE, channels), *([(3, 3, channels, channels)] * IN_A_ROW)]


def convolutions_of(channels: int) -> str:
    """The name of the convolutions with so many channels."""
    return f"3x3 convolutions of {channels} channels on {GAMES} boards of {SIDE}x{SIDE}"


PROGRAMS: dict[str, Callable[[Any], _Made]] = {
    f"products of {4 * WIDTH:,} x {WIDTH:,} x {WIDTH:,}": _products,
    **{convolutions_of(channels): partial(_convolutions, channels) for channels in CHANNELS},
}


def _sums(dtype: Any) -> Any:
    return jnp.int32 if dtype == jnp.int8 else jnp.bfloat16


def _in_a_row(multiply: Callable[..., jax.Array], x: jax.Array, *kernels: jax.Array) -> jax.Array:
    """Layers without biases; each result is brought back to the format of `x` as a quantized network does it."""
    for kernel in kernels:
        y = jax.nn.relu(multiply(x, kernel))
        if x.dtype == jnp.int8:
            y = jnp.clip(jnp.round(y.astype(jnp.float32) * 0.01), 0, 127)
        x = y.astype(x.dtype)
    return x


def formats_table(stored: Mapping[str, Any]) -> tuple[Row, list[Row]]:
    """The header and the rows of the table: the cycles of each format in those of bfloat16."""
    rows: list[Row] = []
    for what, slices in stored["cycles"].items():
        for where, cycles in slices.items():
            first, *others = FORMATS
            ratios = (_ratio(cycles[name], cycles[first]) if name in cycles else "" for name in others)
            rows.append((what, where.rpartition("-")[0], *ratios))
    return (f"{IN_A_ROW} in a row", "chip", *(f"`{name}`" for name in FORMATS[1:])), rows


def _ratio(cycles: float | None, base: float | None) -> str:
    return "-" if cycles is None or base is None else f"{cycles / base:.2f}"


if __name__ == "__main__":
    main()
