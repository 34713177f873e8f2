"""Counts the memory traffic, flops and communication of an optimized HLO program on one chip, op by op.

XLA's `cost_analysis()` counts the body of a loop once and ignores tile padding. Here a body is multiplied by its trip
count, and every array has its padded size in memory. Traffic is that of scheduled instructions: a fusion reads its
operands and writes its results once. If a fusion only slices or gathers from an operand, only the slices are counted as
read; if it updates a slice in place, only the slice is counted as written.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from podzero.tools.compile.flops import flops_of
from podzero.tools.compile.hlo import Array, Computation, Instruction, Module
from podzero.tools.compile.loops import trip_count

_FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "partition-id",
    "replica-id", "domain", "add-dependency",
})  # fmt: skip
"""Instructions without memory traffic."""
_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_ALIASES = frozenset({"bitcast", "get-tuple-element"})
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all", "ragged-all-to-all")
_HOST = frozenset({"infeed", "outfeed"})


@dataclass(frozen=True)
class Collective:
    """One collective operation, and how often the program runs it."""

    opcode: str
    group: int
    """Number of chips that take part."""
    bytes: int
    """Size of the whole array on one chip: the operand of a reduction, the result of a gather."""
    times: int
    """How often it runs in one execution of the program."""

    @property
    def sent(self) -> float:
        """Lower bound on the bytes that each chip sends over all runs (for rings: Patarasuk and Yuan 2009)."""
        share = (self.group - 1) / self.group if self.group else 0.0
        factor = {"all-reduce": 2 * share, "collective-permute": 1.0}.get(self.opcode, share)
        return factor * self.bytes * self.times


@dataclass
class Cost:
    """The cost of one execution of a program on one chip."""

    flops: float = 0.0
    """Flops of convolutions and matrix products, two per multiply-add."""
    integer_flops: float = 0.0
    """Those of them that are of integers."""
    cycles: float = 0.0
    """Sum of the compiler's estimates, with which it annotates compute instructions; it has none for communication."""
    traffic: Counter[int] = field(default_factory=Counter)
    """Bytes read and written, by memory space."""
    collectives: list[Collective] = field(default_factory=list)
    host_transfers: int = 0
    """Transfers to or from the host during the program."""
    unknown_loops: int = 0
    """Loops whose trip count depends on data; their body counts once."""

    def add(self, other: Cost, times: float = 1) -> None:
        """Adds `times` times another cost; a mean number need not be whole."""
        self.flops += other.flops * times
        self.integer_flops += other.integer_flops * times
        self.cycles += other.cycles * times
        for space, moved in other.traffic.items():
            self.traffic[space] += round(moved * times)
        self.collectives += [Collective(c.opcode, c.group, c.bytes, round(c.times * times)) for c in other.collectives]
        self.host_transfers += round(other.host_transfers * times)
        self.unknown_loops += other.unknown_loops


def count(module: Module, trips: Mapping[str, float] | None = None) -> Cost:
    """The cost of one execution of a program.

    Args:
      module: the program.
      trips: mean trip counts of loops in which they depend on data, by the `jax.named_scope` around them.
    """
    return _Counter(module, trips or {}).computation(module.entry)


class _Counter:
    def __init__(self, module: Module, trips: Mapping[str, float]) -> None:
        self._module = module
        self._trips = trips
        self._known: dict[str, Cost] = {}

    def computation(self, computation: Computation) -> Cost:
        """The cost of running a computation once; its instructions are scheduled one by one."""
        if computation.name not in self._known:
            cost = Cost()
            for instruction in computation.instructions.values():
                self._instruction(computation, instruction, cost)
            self._known[computation.name] = cost
        return self._known[computation.name]

    def _instruction(self, computation: Computation, instruction: Instruction, cost: Cost) -> None:
        opcode = instruction.opcode
        if opcode in _FREE or opcode.endswith("-done"):
            return
        if opcode == "while":
            self._loop(computation, instruction, cost)
        elif opcode == "conditional":
            names = [*instruction.called("branch_computations")] or [
                *instruction.called("true_computation"), *instruction.called("false_computation")
            ]  # fmt: skip
            branches = [self.computation(self._module.computations[name]) for name in names]
            cost.add(max(branches, key=lambda branch: sum(branch.traffic.values())))
        elif opcode in ("call", "async-start"):
            for name in instruction.called("to_apply") or instruction.called("calls"):
                cost.add(self.computation(self._module.computations[name]))
        else:
            self._scheduled(computation, instruction, cost)

    def _loop(self, computation: Computation, instruction: Instruction, cost: Cost) -> None:
        trips: float | None = trip_count(self._module, computation, instruction)
        if trips is None:
            trips = self._mean_trips(instruction)
        if trips is None:
            trips, cost.unknown_loops = 1, cost.unknown_loops + 1
        for name in instruction.called("body") + instruction.called("condition"):
            cost.add(self.computation(self._module.computations[name]), trips)

    def _mean_trips(self, loop: Instruction) -> float | None:
        scopes = (loop.attribute(r'op_name="([^"]*)"') or "").split("/")
        return next((mean for scope, mean in self._trips.items() if scopes[-2:-1] == [scope]), None)

    def _scheduled(self, computation: Computation, instruction: Instruction, cost: Cost) -> None:
        """Adds the cost of an instruction that reads operands and writes results."""
        for array in self._moved(computation, instruction):
            cost.traffic[array.space] += array.bytes
        cost.cycles += float(instruction.attribute(r'"estimated_cycles":"(\d+)"') or 0)
        self._computed(computation, instruction, cost)

    def _computed(self, computation: Computation, instruction: Instruction, cost: Cost) -> None:
        """Adds the flops, host transfers and collectives of an instruction and of all that is fused into it."""
        flops = flops_of(computation, instruction)
        cost.flops += flops
        cost.integer_flops += flops if flops and instruction.arrays[0].dtype == "s32" else 0.0
        cost.host_transfers += instruction.opcode in _HOST or "is_host_transfer=true" in instruction.attributes
        if collective := _collective(computation, instruction):
            cost.collectives.append(collective)
        for name in instruction.called("calls"):
            fused, inside = self._module.computations[name], Cost()
            for part in fused.instructions.values():
                self._computed(fused, part, inside)
            if name.startswith("all-reduce-scatter"):
                inside.collectives = [replace(c, opcode="reduce-scatter") for c in inside.collectives]
            cost.add(inside)

    def _moved(self, computation: Computation, instruction: Instruction) -> list[Array]:
        """The arrays, or their slices, that an instruction reads and writes."""
        operands = [computation.instructions[name] for name in instruction.operands]
        opcode = instruction.opcode
        if opcode == "fusion":
            return self._fusion(instruction, operands)
        if opcode in _SLICES:
            small = [array for operand in operands[1:] for array in operand.arrays]
            return [*instruction.arrays, *instruction.arrays, *small]
        if opcode == "dynamic-update-slice":
            return [*operands[1].arrays, *operands[1].arrays]
        if opcode.endswith("-start"):  # its result is (operands, results, flags); `-done` ends it
            read = [array for operand in operands for array in operand.arrays]
            return [*read, *_results_of_start(instruction, read)]
        return [*(array for operand in operands for array in operand.arrays), *instruction.arrays]

    def _fusion(self, instruction: Instruction, operands: list[Instruction]) -> list[Array]:
        (name,) = instruction.called("calls")
        fused = self._module.computations[name]
        moved: list[Array] = []
        updated = set()
        roots = [fused.root]
        if fused.root.opcode == "tuple":
            roots = [fused.instructions[name] for name in fused.root.operands]
        for root, array in zip(roots, instruction.arrays, strict=False):
            origin = _origin(fused, root)
            if origin.opcode == "dynamic-update-slice":
                moved += fused.instructions[origin.operands[1]].arrays
                updated.add(_origin(fused, fused.instructions[origin.operands[0]]).name)
            else:
                moved.append(array)
        for parameter, operand in zip(fused.parameters, operands, strict=True):
            if parameter.name not in updated:
                moved += _read(fused, parameter, operand.arrays)
        return moved


def _origin(computation: Computation, instruction: Instruction) -> Instruction:
    """The instruction whose result this one is an alias of."""
    while instruction.opcode in _ALIASES:
        instruction = computation.instructions[instruction.operands[0]]
    return instruction


def _read(fused: Computation, parameter: Instruction, arrays: tuple[Array, ...]) -> list[Array]:
    """What a fusion reads of one operand: only slices, if it uses nothing else of the operand."""
    users = list(fused.users[parameter.name])
    names = {parameter.name}
    for user in users:
        if user.opcode in _ALIASES:
            names.add(user.name)
            users += fused.users[user.name]
    readers = [user for user in users if user.opcode not in _ALIASES]
    sliced = [user for user in readers if user.opcode in _SLICES and user.operands[0] in names]
    if readers and len(sliced) == len(readers):
        parts = [Array(a.dtype, a.dims, a.order, a.tile, arrays[0].space) for user in readers for a in user.arrays]
        if sum(part.bytes for part in parts) < sum(array.bytes for array in arrays):
            return parts
    return list(arrays)


def _results_of_start(instruction: Instruction, read: list[Array]) -> list[Array]:
    """The results of a `-start`, whose arrays also contain its operands and small flags."""
    if instruction.opcode == "all-reduce-start":
        return list(instruction.arrays)
    if instruction.opcode == "copy-start":
        return [instruction.arrays[0]]
    return list(instruction.arrays[len(read) : 2 * len(read)])


def _collective(computation: Computation, instruction: Instruction) -> Collective | None:
    opcode = instruction.opcode.removesuffix("-start")
    if opcode not in COLLECTIVES:
        return None
    read = [array for name in instruction.operands for array in computation.instructions[name].arrays]
    if opcode != "all-gather":
        whole = read
    elif instruction.opcode.endswith("-start"):
        whole = _results_of_start(instruction, read)
    else:
        whole = list(instruction.arrays)
    size = sum(array.elements * _width(array) for array in whole)
    return Collective(opcode, _group(instruction), size, 1)


def _width(array: Array) -> int:
    """Bytes of an element."""
    return max(1, Array(array.dtype, ()).bytes)


def _mesh_group(mesh: str, along: str) -> int:
    """Chips in one group along some axes of a mesh: `'a'=4,'b'=2` and `'a'`; `'a':(2)2` are two of the four of a."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)}
    axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", along)
    return math.prod(int(part) if part else sizes[name] for name, part in axes)


def _group(instruction: Instruction) -> int:
    """Chips in one group of a collective."""
    if listed := instruction.attribute(r"replica_groups=\{\{([\d,]*)\}"):
        return listed.count(",") + 1
    if iota := instruction.attribute(r"replica_groups=\[([\d,]+)\]<="):
        return math.prod(map(int, iota.split(",")[1:]))
    if mesh := instruction.attribute(r"replica_groups=mesh\[(.*?)\]"):
        return _mesh_group(mesh, instruction.attribute(r"replica_groups=mesh\[.*?\][^{]*\{(.*?)\}") or "")
    if pairs := instruction.attribute(r"source_target_pairs=\{(.*?)\}\}"):
        return pairs.count("{")
    return 1
