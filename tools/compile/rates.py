"""What the costs of programs mean: the speed of self-play on a chip, what feeds a learner, and how it scales."""

from __future__ import annotations

import math
import time
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
from podzero.tools.compile.compiled import CompiledProgram, summary
from podzero.tools.compile.waiting import evaluations_per_move, moves_asked


def play_rates(play: CompiledProgram, evaluation: CompiledProgram) -> dict[str, Any]:
    """The rates of the program `device`, which fits, and their share of what the bare network reaches."""
    assert play.cost is not None
    program, seconds = play.program, play.estimated_seconds()
    moves = program.batch * program.trip_count
    evaluations = moves * (program.simulations + 1)  # one for each simulation, one for the root
    bare = evaluation.program.batch / evaluation.estimated_seconds()
    return {
        "ratio": evaluations / seconds / bare,
        "moves_per_s": moves / seconds,
        "evaluations_per_s": evaluations / seconds,
        "bare_evaluations_per_s": bare,
        "bytes_per_simulation": play.cost.traffic[0] / (moves * program.simulations),
        "depth": program.depth,
    }


# What feeds the learner of a slice: chips that play, or chips of inference servers and CPU cores of their actors.

_MOVES = 4
"""The moves over which the speed of a core is measured, after one move that compiles."""


def moves_per_core_s(experiment: Experiment) -> float:
    """Measures the moves/s of a game in JAX that one core of this machine plays: rules and tree, without network."""
    games = max(1, experiment.actors.games // experiment.server.groups)
    search = experiment.search
    changes: dict[str, object] = {"actors": experiment.actors.model_copy(update={"games": games})}
    if experiment.actors.inference == "device":  # actors on CPUs use other trees
        changes["search"] = search.model_copy(update={"tree": "mctx", "slots": None})
    env = make_env(experiment.env)

    def evaluate(params: Params, key: Array, states: EnvState) -> tuple[jax.Array, jax.Array]:
        del params, key
        batch = len(jax.tree.leaves(states)[0])
        return jnp.zeros((batch, env.spec.num_actions)), jnp.zeros(batch)

    core = selfplay_core(experiment.model_copy(update=changes), env, evaluate)
    move = jax.jit(core.move)
    state, began = jax.jit(core.init)(jax.random.key(0)), 0.0
    for number in range(1 + _MOVES):
        if number == 1:  # what follows is compiled
            began = time.process_time()  # of all threads, so the number of cores that JAX uses does not matter
        state, played = move(None, state)
        jax.device_get(played)
    return games * _MOVES / (time.process_time() - began)


def feeding_needs(
    experiment: Experiment,
    learner: CompiledProgram,
    server: CompiledProgram,
    playing: dict[str, Any],
    per_core_s: float,
) -> dict[str, float]:
    """How many chips, or chips and CPU cores, play what the learner learns from.

    `playing` is from `play_rates`, `per_core_s` from `moves_per_core_s`.
    """
    seconds = learner.estimated_seconds() + learner.seconds()["links"]
    moves = moves_asked(experiment, experiment.batch_parts.fresh * learner.program.trip_count / seconds)
    evaluations = moves * evaluations_per_move(experiment)
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

    @property
    def total(self) -> float:
        """The whole step."""
        return self.computing + self.links + self.hops


def step_time(compiled: CompiledProgram) -> StepTime:
    """The parts of the time of one step of the compiled learner."""
    what, where = compiled.program.what, compiled.where.short_name
    if compiled.cost is None:
        raise ConfigError(f"{what} do not fit on {where}; to reduce the memory: {compiled.program.advice}")
    if not compiled.has_estimate:
        raise ConfigError(f"{what}: the compiler does not estimate the time of this program on {where}")
    trip_count = compiled.program.trip_count
    passes = sum(c.times * (2 if c.opcode == "all-reduce" else 1) for c in compiled.cost.collectives if c.group > 1)
    return StepTime(
        computing=compiled.estimated_seconds() / trip_count,
        links=compiled.seconds()["links"] / trip_count,
        hops=passes * compiled.where.hops * HOP_SECONDS / trip_count,
    )


def efficiency(small: StepTime, large: StepTime) -> float:
    """The share of the smaller slice's samples/s per chip that the larger slice keeps at a fixed batch per chip."""
    return small.total / large.total


def with_batch_per_chip(experiment: Experiment, per_chip: int, where: Slice) -> Experiment:
    """The experiment with `per_chip` samples per step on each device of a slice, unchecked: only for compiling."""
    learner = experiment.learner.model_copy(update={"batch_size": per_chip * where.devices})
    return experiment.model_copy(update={"learner": learner})


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
                "efficiency": efficiency(times[0], time),
                "collectives": _per_step(compiled),
            }
            for compiled, time in zip(programs, times, strict=True)
        ],
    }


def _per_step(compiled: CompiledProgram) -> list[dict[str, Any]]:
    assert compiled.cost is not None
    trip_count = compiled.program.trip_count
    return [row | {key: row[key] / trip_count for key in ("times", "bytes", "sent")} for row in summary(compiled.cost)]
