"""Compiles one program for a TPU slice: whether it fits, what it costs, and what bounds its speed."""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from podzero.actors.build import selfplay_core
from podzero.config import Experiment
from podzero.core.chips import Slice
from podzero.core.errors import ConfigError
from podzero.core.types import Array, EnvState, Params
from podzero.envs import make_env
from podzero.tools.compile.cost import Cost, count
from podzero.tools.compile.hlo import parse
from podzero.tools.compile.programs import Program
from podzero.tools.compile.waiting import moves_asked

SPACES = {0: "hbm", 1: "vmem", 2: "sflag", 3: "cmem", 5: "host", 6: "smem"}
"""The names of the memory spaces, by their number in the layouts of optimized HLO."""
BETWEEN = " between slices"
"""What is added to the kinds of collectives that cross the network between slices."""
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
            "links": sum(c.sent for c in self.cost.collectives if not c.between_slices) / (chip.link_bandwidth / 2),
        }

    @property
    def has_estimate(self) -> bool:
        """Whether the program fits, and the compiler's estimate of its time is a number."""
        return self.cost is not None and not math.isnan(self.cost.cycles)

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
        shown = ("name", "what", "batch", "trip_count", "parameter_bytes", "plies", "from_hosts", "to_hosts")
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
            "without_estimate": runs_without_estimate(self.cost),
            "collectives": summary(self.cost),
            "host_transfers": self.cost.host_transfers,
            "unknown_loops": self.cost.unknown_loops,
        }


def compile_program(program: Program, where: Slice) -> CompiledProgram:
    """Compiles a program for a slice; raises the compiler's errors other than that it does not fit."""
    try:
        compiled = program.lowered.compile()
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
    cost = count(parse(compiled.as_text()), program.mean_trips)
    return CompiledProgram(program, where, float(needed), cost)


def runs_without_estimate(cost: Cost) -> dict[str, int]:
    """How often a program runs instructions that the compiler has no estimate for, by kind, the most frequent first."""
    kinds = sorted(cost.without_estimate.items(), key=lambda found: -found[1])
    return {kind: math.ceil(runs) for kind, runs in kinds}


def summary(cost: Cost | None) -> list[dict[str, Any]]:
    """The collectives summed by kind and group size: number of runs, bytes of their arrays, bytes that a chip sends.

    Kinds of those between slices end in `between slices`.
    """
    rows: dict[tuple[str, int], dict[str, float]] = defaultdict(lambda: {"times": 0, "bytes": 0, "sent": 0.0})
    for collective in cost.collectives if cost else ():
        row = rows[collective.opcode + collective.between_slices * BETWEEN, collective.group]
        row["times"] += collective.times
        row["bytes"] += collective.bytes * collective.times
        row["sent"] += collective.sent
    return [{"kind": kind, "group": group, **row} for (kind, group), row in sorted(rows.items())]


def bytes_that_do_not_fit(message: str) -> float | None:
    """The memory that a rejected program needs, or its temporaries alone, from the compiler's message; None for other
    errors.
    """
    # Such as "Ran out of memory in memory space hbm. Used 30.25G of 15.75G hbm.", or "Ran out of memory on HBM, the
    # total memory required for HLO temporaries (48.39G) exceeds available HBM (15.75G)."
    found = re.search(r"(?:Used |\()([\d.]+)([KMGT]?)(?: of [\d.]+[KMGT]? hbm|\) exceeds available HBM)", message)
    return float(found.group(1)) * _UNITS[found.group(2)] if found else None


TAKES = 1.5
"""How often `take` runs after each `device`. A program ends as many samples as it plays moves, in the mean, which is
the size of `take`; about every second program ends more."""


def play_rates(play: CompiledProgram, take: CompiledProgram, evaluation: CompiledProgram) -> dict[str, Any]:
    """The rates of the program `device`, which fits, with `take`, and their share of what the bare network reaches."""
    assert play.cost is not None
    program, where, seconds = play.program, play.where, play.estimated_seconds() + TAKES * take.estimated_seconds()
    moves = program.batch * program.trip_count
    sample_bytes = take.program.to_hosts / take.program.batch
    evaluations = moves * (program.simulations + 1)  # one for each simulation, one for the root
    bare = evaluation.program.batch / evaluation.estimated_seconds()
    return {
        "ratio": evaluations / seconds / bare,
        "moves_per_s": moves / seconds,
        "evaluations_per_s": evaluations / seconds,
        "bare_evaluations_per_s": bare,
        "bytes_per_simulation": play.cost.traffic[0] / (moves * program.simulations),
        "depth": program.depth,
        "plies": program.plies,
        "bytes_per_move": sample_bytes,
        "host_bytes_per_s": sample_bytes * moves / seconds * where.chips_of_host * where.chip.devices,
    }


# What feeds the learner of a slice: chips that play, or chips of inference servers and CPU cores of their actors.

_MOVES = 4
"""The moves over which the speed of a core is measured, after one move that compiles."""


def moves_per_core_s(experiment: Experiment) -> float:
    """Measures the moves/s of a game in JAX that one core of this machine plays: rules and tree, without network."""
    games, env = max(1, experiment.actors.games // experiment.server.groups), make_env(experiment.env)
    experiment = experiment.changed(actors={"games": games})
    if experiment.actors.inference == "device":  # actors on CPUs use other trees
        experiment = experiment.changed(search={"tree": "mctx", "slots": None})

    def evaluate(params: Params, key: Array, states: EnvState) -> tuple[jax.Array, jax.Array]:
        del params, key
        batch = len(jax.tree.leaves(states)[0])
        return jnp.zeros((batch, env.spec.num_actions)), jnp.zeros(batch)

    core = selfplay_core(experiment, env, evaluate)
    move = jax.jit(core.move)
    state, began = jax.jit(core.init)(jax.random.key(0)), 0.0
    for number in range(1 + _MOVES):
        if number == 1:  # what follows is compiled
            began = time.process_time()  # of all threads, so the number of cores that JAX uses does not matter
        state, played = move(None, state)
        jax.device_get(played)
    return games * _MOVES / (time.process_time() - began)


def feeding_needs(
    experiment: Experiment, learner: CompiledProgram, server: CompiledProgram, playing: dict[str, Any]
) -> dict[str, float]:
    """How many chips, or chips and CPU cores like these, play what the learner learns from; `playing`: `play_rates`."""
    per_core_s = moves_per_core_s(experiment)
    seconds = learner.estimated_seconds() + learner.seconds()["links"]
    moves = moves_asked(experiment, experiment.batch_parts.fresh * learner.program.trip_count / seconds)
    evaluations = moves * (1 + experiment.search.simulations)
    served = server.program.batch / server.estimated_seconds()
    return {
        "moves_per_s": moves,
        "evaluations_per_s": evaluations,
        "device_chips": math.ceil(evaluations / playing["evaluations_per_s"]),
        "server_chips": math.ceil(evaluations / served),
        "server_cores": math.ceil(moves / per_core_s),
        "server_chip_evaluations_per_s": served,
        "core_moves_per_s": per_core_s,
    }


# How well the learner's step scales over chips at a fixed batch per chip.

HOP_SECONDS = 1e-6
"""The latency from one chip to its neighbour: the larger of the two figures in "How to Scale Your Model" (Austin et al.
2025, https://jax-ml.github.io/scaling-book/sharding). The compiler estimates the cycles of computation, but not of
communication, which sums along one dimension of the torus after the other, in both directions."""


class StepTime(NamedTuple):
    """The parts of the time of one step on each chip, in seconds. Nothing is taken to overlap."""

    computing: float
    """The compiler's estimate, access to memory included."""
    links: float
    """The bytes that a chip sends, over the bandwidth of its links in one direction."""
    hops: float
    """The latencies: each collective passes once along all dimensions, a reduction twice."""


def step_time(compiled: CompiledProgram) -> StepTime:
    """The parts of the time of one step of the compiled learner."""
    what, where = compiled.program.what, compiled.where.short_name
    if compiled.cost is None:
        raise ConfigError(f"{what} do not fit on {where}; to reduce the memory: {compiled.program.advice}")
    if not compiled.has_estimate:
        raise ConfigError(f"{what}: the compiler does not estimate the time of this program on {where}")
    trip_count = compiled.program.trip_count
    within = [c for c in compiled.cost.collectives if c.group > 1 and not c.between_slices]
    passes = sum(c.times * (2 if c.opcode == "all-reduce" else 1) for c in within)
    return StepTime(
        computing=compiled.estimated_seconds() / trip_count,
        links=compiled.seconds()["links"] / trip_count,
        hops=passes * compiled.where.hops * HOP_SECONDS / trip_count,
    )


def scaling_of(programs: Sequence[CompiledProgram], per_chip: int) -> dict[str, Any]:
    """The output of `--json`: seconds of a step on each slice, its efficiency compared with the first, and bytes."""
    times = [step_time(compiled) for compiled in programs]
    return {
        "per_chip": per_chip,
        "parameter_bytes": programs[0].program.parameter_bytes,
        "slices": [
            {
                "slice": compiled.where.short_name,
                "chips": compiled.where.chips,
                "step": time._asdict(),
                "efficiency": sum(times[0]) / sum(time),
                "collectives": [
                    row | {key: row[key] / compiled.program.trip_count for key in ("times", "bytes", "sent")}
                    for row in summary(compiled.cost)
                ],
            }
            for compiled, time in zip(programs, times, strict=True)
        ],
    }
