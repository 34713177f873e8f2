"""How often a loop of an optimized HLO program runs, where that stands in the program."""

from __future__ import annotations

from podzero.aot.hlo import Computation, Instruction, Module

_SAME_VALUE = frozenset({"copy", "bitcast", "convert"})


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """Turns of a `while`; None when they depend on data.

    XLA writes down the turns of many loops. The TPU compiler drops that, so the loops that `lax.scan` and
    `lax.fori_loop` make are recognized: a counter, part of what the loop carries, starts at a constant, goes up by one,
    and is compared with a constant or with another part that starts at a constant.
    """
    written = loop.attribute(r'known_trip_count":\{"n":"(\d+)"')
    if written is not None:
        return int(written)
    condition = module.computations[loop.called("condition")[0]]
    compare = condition.root
    if compare.opcode != "compare" or "direction=LT" not in compare.attributes:
        return None
    counter, bound = (condition.instructions[name] for name in compare.operands)
    if counter.opcode != "get-tuple-element":
        return None
    first, last = _start(computation, loop, counter), _constant(condition, bound)
    if last is None and _carried_unchanged(module, loop, bound):
        last = _start(computation, loop, bound)
    if first is None or last is None or not _goes_up_by_one(module, loop, counter):
        return None
    return max(0, last - first)


def _index(element: Instruction) -> int:
    return int(element.attribute(r"index=(\d+)") or 0)


def _start(computation: Computation, loop: Instruction, element: Instruction) -> int | None:
    """The constant with which a carried part starts."""
    carried = computation.instructions[loop.operands[0]]
    if element.opcode != "get-tuple-element" or carried.opcode != "tuple":
        return None
    return _constant(computation, computation.instructions[carried.operands[_index(element)]])


def _constant(computation: Computation, instruction: Instruction) -> int | None:
    while instruction.opcode in _SAME_VALUE:
        instruction = computation.instructions[instruction.operands[0]]
    if instruction.opcode != "constant" or not instruction.literal.lstrip("-").isdigit():
        return None
    return int(instruction.literal)


def _body_result(module: Module, loop: Instruction, element: Instruction) -> tuple[Computation, Instruction | None]:
    """What the body puts in the place of a carried part."""
    body = module.computations[loop.called("body")[0]]
    if body.root.opcode != "tuple":
        return body, None
    return body, body.instructions[body.root.operands[_index(element)]]


def _carried_unchanged(module: Module, loop: Instruction, element: Instruction) -> bool:
    if element.opcode != "get-tuple-element":
        return False
    _, result = _body_result(module, loop, element)
    return result is not None and result.opcode == "get-tuple-element" and _index(result) == _index(element)


def _goes_up_by_one(module: Module, loop: Instruction, counter: Instruction) -> bool:
    body, result = _body_result(module, loop, counter)
    while result is not None and result.opcode in _SAME_VALUE:
        result = body.instructions[result.operands[0]]
    if result is None:
        return False
    if result.opcode == "fusion":
        body = module.computations[result.called("calls")[0]]
        result = body.root
    return result.opcode == "add" and 1 in [_constant(body, body.instructions[name]) for name in result.operands]
