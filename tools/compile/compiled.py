"""Compiles one program for a TPU slice: whether it fits, what it costs, and what bounds its speed."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any, NamedTuple

import jax

from podzero.core.chips import Slice
from podzero.tools.compile.cost import Cost, count
from podzero.tools.compile.hlo import parse
from podzero.tools.compile.programs import Program

SPACES = {0: "hbm", 1: "vmem", 2: "sflag", 3: "cmem", 5: "host", 6: "smem"}
"""The names of the memory spaces, by their number in the layouts of optimized HLO."""
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class CompiledProgram(NamedTuple):
    """A compiled program: its memory and cost per chip and execution."""

    program: Program
    where: Slice
    bytes_needed: float
    """Memory of arguments, results, temporaries and code."""
    cost: Cost | None
    """None if the program does not fit."""

    @property
    def fits(self) -> bool:
        """Whether the program fits into the memory of a chip."""
        return self.cost is not None

    def seconds(self) -> dict[str, float]:
        """Lower bounds on the time of arithmetic, memory and links, from the published peak rates of the chip."""
        assert self.cost is not None
        chip = self.where.chip.device
        return {
            "compute": (self.cost.flops - self.cost.integer_flops) / chip.flops
            + self.cost.integer_flops / chip.int8_ops,
            "hbm": self.cost.traffic[0] / chip.hbm_bandwidth,
            # The published bandwidth is the sum of both directions; a chip receives as much as it sends.
            "links": sum(c.sent for c in self.cost.collectives) / (chip.link_bandwidth / 2),
        }

    @property
    def has_estimate(self) -> bool:
        """Whether the program fits, and the compiler estimates the time of each of its instructions."""
        return self.cost is not None and not self.cost.without_estimate

    def estimated_seconds(self) -> float:
        """The compiler's estimate of the compute time, without communication; only of what `has_estimate`."""
        assert self.cost is not None
        assert self.has_estimate
        return self.cost.cycles / self.where.chip.clock

    def share_of_peak(self) -> float:
        """Upper bound on the share of peak flops, reached if the three parts of `seconds` overlap perfectly."""
        seconds = self.seconds()
        longest = max(seconds.values())
        return seconds["compute"] / longest if longest else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The output of `--json`; sizes in bytes, times in seconds."""
        shown = ("name", "what", "batch", "trip_count", "parameter_bytes")
        found = {name: getattr(self.program, name) for name in shown} | {
            "fits": self.fits,
            "bytes_per_chip": self.bytes_needed,
            "hbm_per_chip": self.where.chip.device.hbm_bytes,
        }
        if self.cost is None:
            return found | {"advice": self.program.advice}
        hbm = self.cost.traffic[0]
        return found | {
            "flops_per_chip": self.cost.flops,
            "traffic": {SPACES.get(space, str(space)): moved for space, moved in sorted(self.cost.traffic.items())},
            "intensity": self.cost.flops / hbm if hbm else None,
            "seconds": self.seconds(),
            "share_of_peak": self.share_of_peak(),
            "estimated_cycles": self.cost.cycles if self.has_estimate else None,
            "estimated_seconds": self.estimated_seconds() if self.has_estimate else None,
            "without_estimate": self.cost.without_estimate,
            "collectives": summary(self.cost),
            "host_transfers": self.cost.host_transfers,
            "unknown_loops": self.cost.unknown_loops,
        }


def compile_program(program: Program, where: Slice) -> CompiledProgram:
    """Compiles a program for a slice; raises the compiler's errors other than that it does not fit."""
    try:
        compiled = program.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        needed = bytes_that_do_not_fit(str(error))
        if needed is None:
            raise
        return CompiledProgram(program, where, needed, None)
    memory = compiled.memory_analysis()
    needed = (  # results that reuse the memory of arguments (donated buffers) count once
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
    return CompiledProgram(program, where, float(needed), count(parse(compiled.as_text()), program.mean_trips))


def summary(cost: Cost) -> list[dict[str, Any]]:
    """The collectives summed by kind and group size: number of runs, bytes of their arrays, bytes that a chip sends."""
    rows: dict[tuple[str, int], dict[str, float]] = defaultdict(lambda: {"times": 0, "bytes": 0, "sent": 0.0})
    for collective in cost.collectives:
        row = rows[collective.opcode, collective.group]
        row["times"] += collective.times
        row["bytes"] += collective.bytes * collective.times
        row["sent"] += collective.sent
    return [{"kind": kind, "group": group, **row} for (kind, group), row in sorted(rows.items())]


def bytes_that_do_not_fit(message: str) -> float | None:
    """The memory that a rejected program needs, from the compiler's message; None for other errors."""
    # Such as "Ran out of memory in memory space hbm. Used 30.25G of 15.75G hbm."
    found = re.search(r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm", message)
    return float(found.group(1)) * _UNITS[found.group(2)] if found else None
