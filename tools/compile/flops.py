"""Floating point operations of an HLO instruction."""

from __future__ import annotations

import math
import re

from podzero.tools.compile.hlo import Computation, Instruction


def flops_of(computation: Computation, instruction: Instruction) -> float:
    """Counts two for each multiply-add of a convolution or matrix product, and zero for all other instructions.

    As in XLA's own cost analysis, products with the zeros of padding and dilation do not count.
    """
    operands = [computation.instructions[name].arrays for name in instruction.operands[:2]]
    if instruction.opcode == "convolution":
        return _convolution(instruction, operands[0][0].dims, operands[1][0].dims)
    if instruction.opcode == "dot":
        contracted = instruction.attribute(r"lhs_contracting_dims=\{([\d,]*)\}") or ""
        inner = math.prod(operands[0][0].dims[int(d)] for d in contracted.split(",") if d)
        return 2.0 * float(inner * instruction.arrays[0].elements)
    return 0.0


def _convolution(instruction: Instruction, image: tuple[int, ...], kernel: tuple[int, ...]) -> float:
    labels = instruction.attribute(r"dim_labels=([\w?]+_[\w?]+->[\w?]+)")
    if labels is None:
        raise ValueError(f"convolution {instruction.name} has no dim_labels")
    left, right, out = re.split(r"_|->", labels)
    image_of = dict(zip(left, image, strict=True))
    kernel_of = dict(zip(right, kernel, strict=True))
    result_of = dict(zip(out, instruction.arrays[0].dims, strict=True))
    pairs = 1
    for place, letter in enumerate(sorted(letter for letter in left if letter.isdigit())):
        window = _Window(instruction.attribute(r"window=\{([^}]*)\}") or "", place)
        pairs *= window.pairs(image_of[letter], kernel_of[letter], result_of[letter])
    return 2.0 * float(pairs * kernel_of["i"] * result_of["b"] * result_of["f"])


class _Window:
    """The window of a convolution along one dimension."""

    def __init__(self, text: str, place: int) -> None:
        fields = dict(re.findall(r"(\w+)=(\S+)", text))

        def at(name: str, default: str) -> str:
            found: str = fields[name].split("x")[place] if name in fields else default
            return found

        self._stride = int(at("stride", "1"))
        self._before = int(at("pad", "0_0").partition("_")[0])
        self._image_dilation = int(at("lhs_dilate", "1"))
        self._kernel_dilation = int(at("rhs_dilate", "1"))

    def pairs(self, image: int, kernel: int, result: int) -> int:
        """Number of (result, kernel) positions that multiply an element of the image."""
        pairs = 0
        for at in range(result):
            for k in range(kernel):
                position = at * self._stride - self._before + k * self._kernel_dilation
                pairs += position % self._image_dilation == 0 and 0 <= position < image * self._image_dilation
        return pairs
