"""The generated page of the documentation: results as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from typing import Any

from podzero.chips import find_slice
from podzero.config import FOR_SLICES, load
from podzero.markdown import Row, table
from podzero.tools.compile.playing import DEPTH
from podzero.tools.compile.results import Job, Result, Results, compiler, estimate_of
from podzero.tools.compile.scaling import HOP_SECONDS
from podzero.tools.compile.show import amount
from podzero.tools.compile.slices import rates_of
from podzero.tools.compile.waiting import of_slice


def page(jobs: Sequence[Job], results: Results, day: date, limit_s: float) -> str:
    """The whole page; jobs without a result have a line that says so."""
    general = [job for job in jobs if not job.config.startswith(FOR_SLICES)]

    def rows(make: Callable[[Job, dict[str, Any]], Row], programs: Iterable[str]) -> list[Row]:
        return [_row(make, job, results.get(job)) for job in general if job.program in programs]

    return "\n".join([
        "# What the TPU compiler says of every experiment",
        "",
        f"Written by `podzero compile --table` on {day} with {compiler()}: change the code, not this page. "
        f"No TPU was used. Each program had {limit_s / 60:g} minutes; raw figures: `benchmarks/results/compile.json`. "
        "What the words mean: [performance.md](performance.md). The last column says by how much the time of a "
        "program is longer or shorter than by the compiler before, or which other compiler the row is of.",
        "",
        "## The learner, per chip and step",
        "",
        *table(_LEARNER, rows(_learner, ("learner",))),
        "",
        "## What one chip runs alone, per execution",
        "",
        "These depend on the chip, not on the slice. Loops whose trip counts depend on data (the descent and the "
        "backup of the search, random openings) count once, so flops, traffic and estimates of self-play are lower "
        "bounds.",
        "",
        *table(_ALONE, rows(_alone, ("evaluation", "selfplay"))),
        "",
        "## Self-play wholly on one chip of v5e",
        "",
        "Evaluations/s as a share of those of the bare network at the same batch, and bytes of HBM for a simulation: "
        "first one move as above, in trees of mctx with the settings for CPUs, then the program of "
        "`actors.inference=device`, whose descents count at the mean depth that the row says. A share holds for the "
        "number of games in its row: `connect_four` is shipped with 128, for CPUs. With `int8.on_tpu` the bare "
        "network is in int8 as well.",
        "",
        *table(_DEVICE, [_device_row(job, results, general) for job in general if job.program == "device"]),
        "",
        *_slices([job for job in jobs if job.config.startswith(FOR_SLICES)], results),
        "## Scaling from 4 to 256 chips of v5e at a fixed batch per chip",
        "",
        "Efficiency is the time of a step on v5e-4 over that on v5e-256. A step is the sum of three parts, since "
        "nothing is taken to overlap: the compiler's estimate of all that computes, the bytes of the collectives over "
        f"the bandwidth of the links, and {HOP_SECONDS * 1e6:g} us for every hop from chip to chip, of which the "
        "compiler has no estimate.",
        "",
        *table(_SCALING, rows(_scaling, ("scaling",))),
        "",
    ])  # fmt: skip


_LEARNER = (
    "experiment", "slice", "samples", "memory", "GFLOP", "HBM traffic", "estimate", "of peak", "communication",
    "change",
)  # fmt: skip
_ALONE = (
    "experiment", "chip", "program", "memory", "GFLOP", "HBM traffic", "estimate", "of peak", "per second", "change",
)  # fmt: skip
_DEVICE = (
    "experiment", "share before", "share", "bytes before", "bytes", "moves/s", "evaluations/s", "mean depth", "memory",
    "change",
)  # fmt: skip
_SLICES = (
    "experiment", "samples a chip", "games a chip", "memory of training", "memory of play", "samples/s",
    "moves/s of a chip", "moves/s of the slice", "time in training", "change",
)  # fmt: skip
_SCALING = (
    "experiment", "slice", "samples", "step on 4 chips", "on 256", "hops on 256", "collectives", "of parameters",
    "efficiency", "change",
)  # fmt: skip


def _slices(jobs: Sequence[Job], results: Results) -> list[str]:
    """The section of the experiments whose chips play and train in turns; empty without jobs."""
    if not jobs:
        return []
    return [
        "## The experiments for slices",
        "",
        "Their chips play and train in turns: at the replay ratio of the experiment, the share of the time that goes "
        "into training is that at which the learner uses up what the chips play. Samples/s are those of training "
        "alone, moves/s of a chip those of play alone, the moves/s of the slice those of both in turns. A descent of "
        f"a search counts at a depth of {DEPTH['gumbel']} (Gumbel) or {DEPTH['puct']} (PUCT). What the hosts do, "
        "replay above all, is not in these figures. The last column is of training and of play.",
        "",
        *table(_SLICES, [_slice_row(name, jobs, results) for name in dict.fromkeys(job.config for job in jobs)]),
        "",
    ]


def _slice_row(name: str, jobs: Sequence[Job], results: Results) -> Row:
    mine = [job for job in jobs if job.config == name]
    found = [results.get(job) for job in mine]
    if excuses := [_excuse(one) for one in found if one is None or one.outcome != "compiled"]:
        return name, excuses[0]
    compiled = [one for one in found if one is not None]
    learner, play = (one.report for one in compiled)
    changes = [change for job, one in zip(mine, compiled, strict=True) for change in _change(job, one)]
    experiment, known = load(name), rates_of(learner, play)
    turns = of_slice(experiment, known)
    program, playing, chips = learner["programs"][0], play["programs"][-1], learner["chips"]
    return (
        f"`{name}`", f"{program['batch'] / chips:g}", str(playing["batch"]), _memory(program), _memory(playing),
        f"{known.samples_per_s:,.0f}", f"{known.chip_moves_per_s:,.0f}", f"{turns.moves_per_s:,.0f}",
        f"{turns.training:.0%}", " and ".join(dict.fromkeys(filter(None, changes))),
    )  # fmt: skip


def _device_row(job: Job, results: Results, jobs: Sequence[Job]) -> Row:
    """The row of self-play wholly on a chip, beside one move by mctx on a chip of the same kind."""
    name = " ".join(argument for argument in job.arguments if "=" in argument)
    result = results.get(job)
    if result is None or not result.report:
        return f"{job.config} {name}", _excuse(result)
    report, memory = result.report, _memory(result.report["programs"][-1])
    share, moved = _before(job, results, jobs)
    if "ratio" not in report:
        return f"{job.config} {name}", share, "", moved, "", "", "", "", memory
    return (
        f"{job.config} {name}", share, f"{report['ratio']:.2f}", moved, f"{report['bytes_per_simulation']:,.0f}",
        f"{report['moves_per_s']:,.0f}", f"{report['evaluations_per_s']:,.0f}", f"{report['depth']:.1f}", memory,
        *_change(job, result),
    )  # fmt: skip


def _before(job: Job, results: Results, jobs: Sequence[Job]) -> tuple[str, str]:
    """What one move by mctx reaches: its share of the bare network's evaluations/s, and bytes of HBM a simulation."""
    chip = find_slice(job.slice).chip
    programs = {}
    for other in jobs:
        if other.config == job.config and find_slice(other.slice).chip == chip:
            result = results.get(other)
            if result is not None and result.report and other.program in ("evaluation", "selfplay"):
                programs[other.program] = result.report["programs"][0]
    if len(programs) < 2 or not programs["selfplay"]["fits"]:
        return "", ""
    simulations, play = load(job.config).search.simulations, programs["selfplay"]
    share = (simulations + 1) * programs["evaluation"]["estimated_seconds"] / play["estimated_seconds"]
    return f"{share:.3f}", f"{play['traffic']['hbm'] / play['batch'] / simulations:,.0f}"


def _row(make: Callable[[Job, dict[str, Any]], Row], job: Job, result: Result | None) -> Row:
    if result is not None and result.report:
        return *make(job, result.report), *_change(job, result)
    return *_place(job), {"learner": "", "scaling": job.arguments[-1]}.get(job.program, job.program), _excuse(result)


def _change(job: Job, result: Result) -> Row:
    """The last cell of a row, if the result has an estimate: how it differs from that of the compiler before."""
    seconds = estimate_of(job, result.report)
    if seconds is None:
        return ()
    if result.compiler != compiler():
        return (f"of {result.compiler}",)
    return ("" if result.before is None else f"{seconds / result.before.seconds - 1:+.0%}",)


def _excuse(result: Result | None) -> str:
    if result is None:
        return "not compiled yet"
    return result.message if result.outcome == "timeout" else f"{result.outcome}: {result.message}"


def _place(job: Job) -> tuple[str, str]:
    """The experiment, and the slice or, for what one chip runs alone, the chip."""
    alone = job.program in ("evaluation", "selfplay")
    return job.config, find_slice(job.slice).chip.name if alone else job.slice


def _learner(job: Job, report: dict[str, Any]) -> Row:
    (program,), chips = report["programs"], find_slice(job.slice).chips
    samples = f"{program['batch'] / chips:g}"
    if not program["fits"]:
        return job.config, job.slice, samples, _memory(program)
    trip_count, parameters = program["trip_count"], program["parameter_bytes"]
    moved = [
        f"{c['times'] / trip_count:g} {c['kind']}, {amount(c['bytes'] / trip_count)} "
        f"({c['bytes'] / trip_count / parameters:.2f} of the parameters)"
        for c in program["collectives"]
    ]
    return (
        job.config, job.slice, samples, _memory(program), f"{program['flops_per_chip'] / trip_count / 1e9:,.2f}",
        amount(program["traffic"]["hbm"] / trip_count), *_estimate(program, trip_count), "; ".join(moved) or "none",
    )  # fmt: skip


def _alone(job: Job, report: dict[str, Any]) -> Row:
    (program,) = report["programs"]
    if not program["fits"]:
        return *_place(job), job.program, _memory(program)
    rate = program["batch"] / program["estimated_seconds"]
    unit = "positions" if job.program == "evaluation" else "moves, at most"
    return (
        *_place(job), job.program, _memory(program), f"{program['flops_per_chip'] / 1e9:,.2f}",
        amount(program["traffic"]["hbm"]), *_estimate(program, 1), f"{rate:,.0f} {unit}",
    )  # fmt: skip


def _scaling(job: Job, report: dict[str, Any]) -> Row:
    small, large = report["slices"][0], report["slices"][-1]
    collectives = large["collectives"]
    sent = sum(c["bytes"] for c in collectives) / report["parameter_bytes"]
    return (
        job.config, job.slice, str(report["per_chip"]), _milliseconds(_whole(small)), _milliseconds(_whole(large)),
        _milliseconds(large["step"]["hops"]), "; ".join(f"{c['times']:g} {c['kind']}" for c in collectives),
        f"{sent:.2f}", f"{large['efficiency']:.3f}",
    )  # fmt: skip


def _whole(step: dict[str, Any]) -> float:
    return float(sum(step["step"].values()))


def _memory(program: dict[str, Any]) -> str:
    needed, capacity = program["bytes_per_chip"], program["hbm_per_chip"]
    words = f"{amount(needed)} of {amount(capacity)}"
    return words if program["fits"] else f"does not fit: {words}"


def _estimate(program: dict[str, Any], trip_count: int) -> Row:
    seconds = program["estimated_seconds"]
    return _milliseconds(seconds / trip_count), f"{program['seconds']['compute'] / seconds:.1%}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f} ms"
