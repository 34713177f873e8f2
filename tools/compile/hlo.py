"""Parses what `cost` needs of the optimized HLO text of an XLA program (`compiled.as_text()`); trip counts of loops."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property

BITS = {
    "pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64,
    "f8e4m3fn": 8, "f8e5m2": 8, "f8e4m3b11fnuz": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
}  # fmt: skip
"""The bits of each element type. Types without data (`token`, `opaque`) are left out."""

# An instruction is `%add.1 = f32[8,128]{1,0:T(8,128)S(1)} add(%a, %b), metadata={...}`: array type, dimensions, their
# order, tile and memory space, opcode, operands, attributes.
_ARRAY = re.compile(r"(\w+)\[([^\]]*)\](?:\{([^}]*)\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .* )?\{$")
_NAME = re.compile(r"%([\w.\-]+)")
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(frozen=True)
class HloArray:
    """The shape of one array, with its layout in memory."""

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...] = ()
    """The dimensions from the fastest changing to the slowest."""
    tile: tuple[int, ...] = ()
    """The outermost tile, mostly `(8, 128)`; the dimensions that it covers are padded to multiples of it."""
    space: int = 0
    """The number of the memory space: 0 is HBM, 1 is VMEM; see `compiled.SPACES`."""

    @property
    def elements(self) -> int:
        """The number of elements, without padding."""
        return math.prod(self.dims)

    @cached_property
    def bytes(self) -> int:
        """The size in memory, padded to whole tiles."""
        dims = [self.dims[d] for d in reversed(self.order)] if self.order else list(self.dims)
        dims = [1] * (len(self.tile) - len(dims)) + dims
        for place, tile in enumerate(reversed(self.tile), 1):
            dims[-place] = math.ceil(dims[-place] / tile) * tile
        return math.prod(dims) * BITS.get(self.dtype, 0) // 8


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    arrays: tuple[HloArray, ...]
    """The result: one array, or the parts of a tuple in order."""
    operands: tuple[str, ...]
    literal: str
    """The text in parentheses: the number of a parameter, or the value of a constant."""
    attributes: str
    """The text after the operands."""
    root: bool

    def attribute(self, pattern: str) -> str | None:
        """The first group of `pattern` in the attributes, or None."""
        found = re.search(pattern, self.attributes)
        return found.group(1) if found else None


@dataclass
class Computation:
    """A computation, with its instructions in scheduled order."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """The instructions that use the result of each instruction."""
        users: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                users[operand].append(instruction)
        return users

    @property
    def root(self) -> Instruction:
        """The instruction whose result is the computation's."""
        return next(i for i in self.instructions.values() if i.root)

    @property
    def parameters(self) -> list[Instruction]:
        """The parameters in the order of the arguments."""
        found = [i for i in self.instructions.values() if i.opcode == "parameter"]
        return sorted(found, key=lambda i: int(i.literal))


@dataclass
class HloModule:
    """A parsed HLO program."""

    computations: dict[str, Computation]
    entry: Computation

    def called(self, instruction: Instruction, *keys: str) -> list[Computation]:
        """The computations in the attributes of an instruction such as `calls` or `branch_computations`."""
        texts = (instruction.attribute(rf"\b{key}=(\{{[^}}]*\}}|%[\w.\-]+)") for key in keys)
        return [self.computations[name] for text in texts for name in _NAME.findall(text or "")]


def parse(text: str) -> HloModule:
    """Parses the result of `compiled.as_text()`; raises ValueError if a line cannot be parsed."""
    computations: dict[str, Computation] = {}
    entry = current = None
    for line in text.splitlines():
        stripped = _COMMENT.sub("", line).strip()
        if current is None:
            if header := _HEADER.match(stripped):
                current = computations[header.group(2)] = Computation(header.group(2))
                entry = current if header.group(1) else entry
        elif stripped == "}" or stripped.startswith("}, "):  # what follows is the thread, as that of a SparseCore
            current = None
        elif stripped:
            instruction = _instruction(stripped)
            current.instructions[instruction.name] = instruction
    if entry is None:
        raise ValueError("no entry computation in this HLO text")
    return HloModule(computations, entry)


def _instruction(line: str) -> Instruction:
    root = line.startswith("ROOT ")
    name, equals, rest = line.removeprefix("ROOT ").partition(" = ")
    if not equals:
        raise ValueError(f"not an HLO instruction: {line[:200]}")
    end = _outside_brackets(rest, " ")
    opcode, _, tail = rest[end + 1 :].partition("(")
    close = _outside_brackets(tail, ")")
    inside = tail[:close]
    arrays = tuple(map(_array, _ARRAY.finditer(rest[:end])))
    operands = tuple(_NAME.findall(inside))
    return Instruction(name.lstrip("%"), opcode, arrays, operands, inside, tail[close + 1 :], root)


def _outside_brackets(text: str, mark: str) -> int:
    """The index of the first `mark` outside all brackets that are opened in the text."""
    depth = 0
    for place, letter in enumerate(text):
        if letter == mark and depth == 0:
            return place
        depth += (letter in "([{") - (letter in ")]}")
    raise ValueError(f"no '{mark}' outside brackets: {text[:200]}")


def _array(found: re.Match[str]) -> HloArray:
    dtype, dims, layout = found.groups()
    order, _, rest = (layout or "").partition(":")
    tile, space = _TILE.search(rest), _SPACE.search(rest)
    return HloArray(
        dtype=dtype,
        # A dimension of varying size, such as `<=8`, has the size of its bound.
        dims=_numbers(dims.replace("<=", "")),
        order=_numbers(order),
        tile=_numbers(tile.group(1)) if tile else (),
        space=int(space.group(1)) if space else 0,
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


# Trip counts.

_SAME_VALUE = frozenset({"copy", "bitcast", "convert"})


def trip_count(module: HloModule, computation: Computation, loop: Instruction) -> int | None:
    """The trip count of a `while` loop; None if it depends on data."""
    # XLA annotates many loops with their trip count, but the TPU compiler drops the annotation. The loops of `lax.scan`
    # and `lax.fori_loop` are therefore recognized by their form: one element of the loop state is a counter that starts
    # at a constant, is incremented by one, and is compared with a constant, or with an element that starts at a
    # constant and does not change.
    annotated = loop.attribute(r'known_trip_count":\{"n":"(\d+)"')
    if annotated is not None:
        return int(annotated)
    (condition,) = module.called(loop, "condition")
    compare = condition.root
    if compare.opcode != "compare" or "direction=LT" not in compare.attributes:
        return None
    counter, bound = (condition.instructions[name] for name in compare.operands)
    first, last = _start(computation, loop, counter), _constant(condition, bound)
    if last is None and _is_unchanged(module, loop, bound):
        last = _start(computation, loop, bound)
    if first is None or last is None or not _incremented_by_one(module, loop, counter):
        return None
    return max(0, last - first)


def _index(element: Instruction) -> int:
    return int(element.attribute(r"index=(\d+)") or 0)


def _start(computation: Computation, loop: Instruction, element: Instruction) -> int | None:
    """The constant at which an element of the loop state starts, or None."""
    state = computation.instructions[loop.operands[0]]
    if element.opcode != "get-tuple-element" or state.opcode != "tuple":
        return None
    return _constant(computation, computation.instructions[state.operands[_index(element)]])


def _constant(computation: Computation, instruction: Instruction) -> int | None:
    while instruction.opcode in _SAME_VALUE:
        instruction = computation.instructions[instruction.operands[0]]
    if instruction.opcode != "constant" or not instruction.literal.lstrip("-").isdigit():
        return None
    return int(instruction.literal)


def _body_result(module: HloModule, loop: Instruction, element: Instruction) -> tuple[Computation, Instruction | None]:
    """The body of a loop, and the instruction that gives an element of the loop state its new value."""
    (body,) = module.called(loop, "body")
    if body.root.opcode != "tuple":
        return body, None
    return body, body.instructions[body.root.operands[_index(element)]]


def _is_unchanged(module: HloModule, loop: Instruction, element: Instruction) -> bool:
    _, result = _body_result(module, loop, element)
    return result is not None and result.opcode == "get-tuple-element" and _index(result) == _index(element)


def _incremented_by_one(module: HloModule, loop: Instruction, counter: Instruction) -> bool:
    body, result = _body_result(module, loop, counter)
    while result is not None and result.opcode in _SAME_VALUE:
        result = body.instructions[result.operands[0]]
    if result is None:
        return False
    if result.opcode == "fusion":
        (body,) = module.called(result, "calls")
        result = body.root
    return result.opcode == "add" and 1 in [_constant(body, body.instructions[name]) for name in result.operands]
