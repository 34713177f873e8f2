"""Counts the flops, memory traffic and communication of an optimized HLO program on one chip.

XLA's `cost_analysis()` counts the body of a loop once and ignores tile padding. Here a body is multiplied by its trip
count, and every array has its padded size in memory. A fusion reads its operands and writes its results once. If it
only slices or gathers from an operand, only the slices count as read; if it updates a slice in place, only the slice
counts as written.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from podzero.learner.metrics import window_pairs
from podzero.tools.compile.hlo import BITS, Computation, HloArray, HloModule, Instruction, trip_count


def flops_of(computation: Computation, instruction: Instruction) -> float:
    """The flops of a convolution or matrix product, two per multiply-add; zero for all other instructions.

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
    labels = instruction.attribute(r"dim_labels=([\w?]+_[\w?]+->[\w?]+)") or ""
    left, right, out = re.split(r"_|->", labels)
    image_of = dict(zip(left, image, strict=True))
    kernel_of = dict(zip(right, kernel, strict=True))
    result_of = dict(zip(out, instruction.arrays[0].dims, strict=True))
    # Such as {size=3x3 pad=1_1x1_1 rhs_dilate=2x2}: what is not named is 1, but `pad` 0.
    window = dict(re.findall(r"(\w+)=(\S+)", instruction.attribute(r"window=\{([^}]*)\}") or ""))
    pairs = 1
    for place, axis in enumerate(sorted(letter for letter in left if letter.isdigit())):
        stride, dilation, kernel_dilation = (
            int(window[name].split("x")[place]) if name in window else 1
            for name in ("stride", "lhs_dilate", "rhs_dilate")
        )
        pad = int(window["pad"].split("x")[place].partition("_")[0]) if "pad" in window else 0
        pairs *= window_pairs(image_of[axis], kernel_of[axis], result_of[axis], stride, pad, dilation, kernel_dilation)
    return 2.0 * float(pairs * kernel_of["i"] * result_of["b"] * result_of["f"])


_FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "partition-id",
    "replica-id", "domain", "add-dependency",
})  # fmt: skip
"""Instructions without memory traffic."""
_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_ALIASES = frozenset({"bitcast", "get-tuple-element"})
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all", "ragged-all-to-all")
_TRANSFER = '_xla_megascale_transfer_type="'
"""Marks what goes between slices, from host to host: XLA replaces a collective of several slices by one within each, a
`send` and a `recv` of each chip's part, and often another one within each."""
_HOST = frozenset({"infeed", "outfeed"})
_NO_ESTIMATE = 2**63 - 1
"""The cycles that the compiler writes where it has no estimate, as libtpu 0.0.51 does for some fusions of TPU7x."""
_NAMING = ("convolution", "dot", "sort", "scatter", "gather")
"""The opcodes after which a fusion is named that has one of them, the first first."""


@dataclass(frozen=True)
class Collective:
    """One collective operation, and how often the program runs it."""

    opcode: str
    group: int
    """The number of chips that take part; of slices, if it is `between_slices`."""
    bytes: int
    """The size of the whole array on one chip: the operand of a reduction, the result of a gather."""
    times: int
    """How often it runs in one execution of the program."""
    between_slices: bool = False
    """Whether it crosses the network between slices, not the links of one."""

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
    """The part of `flops` that is on integers."""
    cycles: float = 0.0
    """The sum of the compiler's estimates, which are of computing, not of communication; nan if its estimate of an
    instruction is 2^63 - 1, which is none."""
    without_estimate: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """How often the program runs instructions that have no estimate, by opcode, target of a custom call, or what a
    fusion is about. Collectives and what computes single numbers are left out. `cycles` lacks them."""
    traffic: Counter[int] = field(default_factory=Counter)
    """Bytes read and written, by memory space."""
    collectives: list[Collective] = field(default_factory=list)
    host_transfers: int = 0
    """Transfers to or from the host during the program."""
    unknown_loops: int = 0
    """The number of loops with an unknown trip count; their bodies count once."""

    def add(self, other: Cost, times: float = 1) -> None:
        """Adds another cost `times` times; a mean trip count need not be whole."""
        self.flops += other.flops * times
        self.integer_flops += other.integer_flops * times
        self.cycles += other.cycles * times
        for kind, runs in other.without_estimate.items():
            self.without_estimate[kind] += runs * times
        for space, moved in other.traffic.items():
            self.traffic[space] += round(moved * times)
        self.collectives += [replace(c, times=round(c.times * times)) for c in other.collectives]
        self.host_transfers += round(other.host_transfers * times)
        self.unknown_loops += other.unknown_loops


def count(module: HloModule, trips: Mapping[str, float] | None = None) -> Cost:
    """The cost of one execution of a program.

    `trips` has, by the `jax.named_scope` around each, the mean trip counts of loops that depend on data, and how often
    a conditional takes its larger branch, in the mean.
    """
    return _Counter(module, trips or {}).computation(module.entry)


class _Counter:
    def __init__(self, module: HloModule, trips: Mapping[str, float]) -> None:
        self._module, self._trips = module, trips
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
        if opcode in _FREE or opcode.endswith("-done") or '"AllocateBuffer"' in instruction.attributes:
            return
        if opcode == "recv" and _TRANSFER in instruction.attributes:  # its `send` counts
            return
        if opcode == "while":
            self._loop(computation, instruction, cost)
        elif opcode == "conditional":
            bodies = self._module.called(instruction, "branch_computations", "true_computation", "false_computation")
            # Only one branch runs: that with the most traffic, where it is not known how often.
            branches = sorted(map(self.computation, bodies), key=lambda branch: sum(branch.traffic.values()))
            share = self._mean(instruction)
            cost.add(branches[-1], 1 if share is None else share)
            if share is not None:
                cost.add(branches[0], 1 - share)
        elif opcode in ("call", "async-start"):
            for called in self._module.called(instruction, "to_apply", "calls"):
                cost.add(self.computation(called))
        else:
            self._scheduled(computation, instruction, cost)

    def _loop(self, computation: Computation, instruction: Instruction, cost: Cost) -> None:
        trips: float | None = trip_count(self._module, computation, instruction)
        if trips is None:
            trips = self._mean(instruction)
        if trips is None:
            trips, cost.unknown_loops = 1, cost.unknown_loops + 1
        for called in self._module.called(instruction, "body", "condition"):
            cost.add(self.computation(called), trips)

    def _mean(self, instruction: Instruction) -> float | None:
        """How often an instruction runs what it calls, from the named scope that it is directly in; None if unknown."""
        scopes = (instruction.attribute(r'op_name="([^"]*)"') or "").split("/")
        return next((mean for scope, mean in self._trips.items() if scopes[-2:-1] == [scope]), None)

    def _scheduled(self, computation: Computation, instruction: Instruction, cost: Cost) -> None:
        """Adds the cost of an instruction that reads operands and writes results."""
        moved = self._moved(computation, instruction)
        for array in moved:
            cost.traffic[array.space] += array.bytes
        cycles = instruction.attribute(r'"estimated_cycles":"(\d+)"')
        if cycles is not None and int(cycles) < _NO_ESTIMATE:
            cost.cycles += int(cycles)
        elif cycles is not None or (not _collective(computation, instruction) and any(a.elements > 1 for a in moved)):
            cost.cycles = cost.cycles if cycles is None else math.nan
            cost.without_estimate[self._kind(instruction)] += 1
        self._computed(computation, instruction, cost)

    def _kind(self, instruction: Instruction) -> str:
        """The name of what an instruction computes: its opcode, a custom call's target, or what a fusion is about."""
        if instruction.opcode == "custom-call":
            return instruction.attribute(r'custom_call_target="([^"]*)"') or instruction.opcode
        if instruction.opcode != "fusion":
            return instruction.opcode.removesuffix("-start")
        (fused,) = self._module.called(instruction, "calls")
        inside = {part.opcode for part in fused.instructions.values()}
        return next((opcode for opcode in _NAMING if opcode in inside), fused.root.opcode)

    def _computed(self, computation: Computation, instruction: Instruction, cost: Cost) -> None:
        """Adds the flops, host transfers and collectives of an instruction and of all that is fused into it."""
        flops = flops_of(computation, instruction)
        cost.flops += flops
        cost.integer_flops += flops if flops and instruction.arrays[0].dtype == "s32" else 0.0
        if collective := _collective(computation, instruction):
            cost.collectives.append(collective)
        elif instruction.opcode in _HOST or "is_host_transfer=true" in instruction.attributes:
            cost.host_transfers += 1
        for fused in self._module.called(instruction, "calls"):
            inside = Cost()
            for part in fused.instructions.values():
                self._computed(fused, part, inside)
            if fused.name.startswith("all-reduce-scatter"):  # the TPU compiler's form of a reduce-scatter
                inside.collectives = [replace(c, opcode="reduce-scatter") for c in inside.collectives]
            cost.add(inside)

    def _moved(self, computation: Computation, instruction: Instruction) -> list[HloArray]:
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

    def _fusion(self, instruction: Instruction, operands: list[Instruction]) -> list[HloArray]:
        (fused,) = self._module.called(instruction, "calls")
        moved: list[HloArray] = []
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


def _read(fused: Computation, parameter: Instruction, arrays: tuple[HloArray, ...]) -> list[HloArray]:
    """What a fusion reads of one operand: slices, if it uses nothing else of the operand, or the whole operand."""
    users = list(fused.users[parameter.name])
    names = {parameter.name}
    for user in users:
        if user.opcode in _ALIASES:
            names.add(user.name)
            users += fused.users[user.name]
    readers = [user for user in users if user.opcode not in _ALIASES]
    if readers and all(user.opcode in _SLICES and user.operands[0] in names for user in readers):
        parts = [replace(array, space=arrays[0].space) for user in readers for array in user.arrays]
        if sum(part.bytes for part in parts) < sum(array.bytes for array in arrays):
            return parts
    return list(arrays)


def _results_of_start(instruction: Instruction, read: list[HloArray]) -> list[HloArray]:
    """The results of a `-start` instruction, whose arrays also include its operands and small flags."""
    if instruction.opcode == "all-reduce-start":
        return list(instruction.arrays)
    if instruction.opcode == "copy-start":
        return [instruction.arrays[0]]
    return list(instruction.arrays[len(read) : 2 * len(read)])


def _collective(computation: Computation, instruction: Instruction) -> Collective | None:
    opcode = instruction.opcode.removesuffix("-start")
    between_slices = opcode == "send" and _TRANSFER in instruction.attributes
    if between_slices:
        opcode = str(instruction.attribute(_TRANSFER + r"(\w+)")).lower().replace("_", "-")
    elif opcode not in COLLECTIVES:
        return None
    read = [array for name in instruction.operands for array in computation.instructions[name].arrays]
    if opcode != "all-gather":
        whole = read
    elif instruction.opcode.endswith("-start"):
        whole = _results_of_start(instruction, read)
    else:
        whole = list(instruction.arrays)
    # Without padding and tokens, and in whole bytes.
    size = sum(array.elements * max(1, BITS[array.dtype] // 8) for array in whole if array.dtype in BITS)
    return Collective(opcode, _group(instruction), size, 1, between_slices)


def _group(instruction: Instruction) -> int:
    """The chips in one group of a collective, or its slices."""
    # {1,2}x{0:3}: slices 1 and 2, chips 0 to 3 of each.
    if slices := instruction.attribute(r'_xla_megascale_target="\{([\d,]*)\}'):
        return slices.count(",") + 1
    # {{0,1},{2,3}}: the groups one by one.
    if listed := instruction.attribute(r"replica_groups=\{\{([\d,]*)\}"):
        return listed.count(",") + 1
    # [2,4]<=[8]: two groups of four, from a range of eight that may be reshaped.
    if iota := instruction.attribute(r"replica_groups=\[([\d,]+)\]<="):
        return math.prod(map(int, iota.split(",")[1:]))
    # mesh['a'=4,'b'=2] {'a'}: along some axes of a mesh; {'a':(2)2} is along a part of length 2 of an axis.
    if mesh := instruction.attribute(r"replica_groups=mesh\[(.*?)\]"):
        along = instruction.attribute(r"replica_groups=mesh\[.*?\][^{]*\{(.*?)\}") or ""
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh))
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", along)
        return math.prod(int(part or sizes[name]) for name, part in axes)
    if pairs := instruction.attribute(r"source_target_pairs=\{(.*?)\}\}"):
        return pairs.count("{")
    return 1
