"""Trip counts of the loops of an optimized HLO program."""

from __future__ import annotations

from podzero.tools.compile.hlo import Computation, Instruction, Module

_SAME_VALUE = frozenset({"copy", "bitcast", "convert"})


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """The trip count of a `while`; None if it depends on data.

    XLA annotates many loops with their trip count, but the TPU compiler drops the annotation. The loops of `lax.scan`
    and `lax.fori_loop` are therefore recognized by their form: one element of the loop state is a counter that starts
    at a constant, is incremented by one, and is compared with a constant, or with an element that starts at a constant
    and does not change.
    """
    annotated = loop.attribute(r'known_trip_count":\{"n":"(\d+)"')
    if annotated is not None:
        return int(annotated)
    condition = module.computations[loop.called("condition")[0]]
    compare = condition.root
    if compare.opcode != "compare" or "direction=LT" not in compare.attributes:
        return None
    counter, bound = (condition.instructions[name] for name in compare.operands)
    if counter.opcode != "get-tuple-element":
        return None
    first, last = _start(computation, loop, counter), _constant(condition, bound)
    if last is None and _is_unchanged(module, loop, bound):
        last = _start(computation, loop, bound)
    if first is None or last is None or not _incremented_by_one(module, loop, counter):
        return None
    return max(0, last - first)


def _index(element: Instruction) -> int:
    return int(element.attribute(r"index=(\d+)") or 0)


def _start(computation: Computation, loop: Instruction, element: Instruction) -> int | None:
    """The constant with which an element of the loop state starts, or None."""
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


def _body_result(module: Module, loop: Instruction, element: Instruction) -> tuple[Computation, Instruction | None]:
    """The body, and its new value of an element of the loop state."""
    body = module.computations[loop.called("body")[0]]
    if body.root.opcode != "tuple":
        return body, None
    return body, body.instructions[body.root.operands[_index(element)]]


def _is_unchanged(module: Module, loop: Instruction, element: Instruction) -> bool:
    if element.opcode != "get-tuple-element":
        return False
    _, result = _body_result(module, loop, element)
    return result is not None and result.opcode == "get-tuple-element" and _index(result) == _index(element)


def _incremented_by_one(module: Module, loop: Instruction, counter: Instruction) -> bool:
    body, result = _body_result(module, loop, counter)
    while result is not None and result.opcode in _SAME_VALUE:
        result = body.instructions[result.operands[0]]
    if result is None:
        return False
    if result.opcode == "fusion":
        body = module.computations[result.called("calls")[0]]
        result = body.root
    return result.opcode == "add" and 1 in [_constant(body, body.instructions[name]) for name in result.operands]
