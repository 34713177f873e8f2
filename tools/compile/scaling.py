"""How well the learner's step scales over chips at a fixed batch per chip, by the compiler's estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from podzero.chips import Slice
from podzero.config import Experiment
from podzero.errors import ConfigError
from podzero.tools.compile.verdict import Verdict, summary

HOP_SECONDS = 1e-6
"""Latency from one chip to its neighbour, the larger of the two figures in "How to Scale Your Model" (Austin et al.
2025, https://jax-ml.github.io/scaling-book/sharding). The compiler estimates cycles of computation, but of
communication it tells only the algorithm: sums along one dimension of the torus after the other, in both directions."""


class StepTime(NamedTuple):
    """Where the time of one step goes on each chip, in seconds; nothing overlaps."""

    computing: float
    """By the compiler's estimated cycles, memory included."""
    links: float
    """Bytes that a chip sends over the bandwidth of its links in one direction."""
    hops: float
    """Latencies: for each collective once along all dimensions, for a reduction back as well."""

    @property
    def total(self) -> float:
        """The whole step."""
        return self.computing + self.links + self.hops


def step_time(verdict: Verdict) -> StepTime:
    """Takes a verdict on the learner's dispatch apart.

    Raises:
      ConfigError: the program does not fit, so that there is nothing to take apart.
    """
    if verdict.cost is None:
        what, where = verdict.program.what, verdict.where.short_name
        raise ConfigError(f"{what} do not fit on {where}; what would help: {verdict.program.advice}")
    trip_count = verdict.program.trip_count
    passes = sum(c.times * (2 if c.opcode == "all-reduce" else 1) for c in verdict.cost.collectives if c.group > 1)
    return StepTime(
        computing=verdict.estimated_seconds() / trip_count,
        links=verdict.seconds()["links"] / trip_count,
        hops=passes * verdict.where.hops * HOP_SECONDS / trip_count,
    )


def efficiency(small: StepTime, large: StepTime) -> float:
    """Share of the smaller slice's samples/s per chip that the larger slice keeps.

    With a fixed batch per chip (weak scaling) it is the ratio of the step times.
    """
    return small.total / large.total


def with_batch_per_chip(experiment: Experiment, per_chip: int, where: Slice) -> Experiment:
    """The experiment with `per_chip` samples a step on each chip of a slice.

    The result is for compiling only: what a run would need besides, as a replay that holds such batches, is not
    checked.
    """
    learner = experiment.learner.model_copy(update={"batch_size": per_chip * where.devices})
    return experiment.model_copy(update={"learner": learner})


def report(verdicts: Sequence[Verdict], per_chip: int) -> dict[str, Any]:
    """For `--json`: the steps of each slice, and the efficiency of each against the first. Times in seconds, sizes in
    bytes, both per step and chip.
    """
    times = [step_time(verdict) for verdict in verdicts]
    return {
        "per_chip": per_chip,
        "parameter_bytes": verdicts[0].program.parameter_bytes,
        "slices": [
            {
                "slice": verdict.where.short_name,
                "chips": verdict.where.chips,
                "step": time._asdict(),
                "efficiency": efficiency(times[0], time),
                "collectives": _per_step(verdict),
            }
            for verdict, time in zip(verdicts, times, strict=True)
        ],
    }


def _per_step(verdict: Verdict) -> list[dict[str, Any]]:
    assert verdict.cost is not None
    trip_count = verdict.program.trip_count
    return [row | {key: row[key] / trip_count for key in ("times", "bytes", "sent")} for row in summary(verdict.cost)]
