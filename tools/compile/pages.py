"""What the compilations say: a page that sums them up, and a row for each as comma-separated values."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from podzero.config import FOR_SLICES, load
from podzero.markdown import Row, table
from podzero.tools.compile.results import Job, Outcome, Result, Results, estimate_of
from podzero.tools.compile.slices import rates_of
from podzero.tools.compile.waiting import of_slice

Known = list[tuple[Job, Result]]

SLICE = "v5e-16"
"""The slice whose learners the page compares."""
ENDINGS: dict[Outcome, str] = {
    "too large": "too large for a chip's memory",
    "refused": "refused (the batch does not divide among the chips)",
    "crashed": "crashed the compiler",
    "timeout": "not compiled in time",
}
"""How compilations end that give no program, in words."""


def page(jobs: Sequence[Job], results: Results) -> str:
    """The page; it leaves out what no result says."""
    known = [(job, result) for job in jobs if (result := results.get(job)) is not None]
    made = [(job, result) for job, result in known if result.outcome == "compiled"]
    plays = [(job, result) for job, result in made if "moves_per_s" in result.report]
    summary = [*_outcomes(len(jobs), known), *_memory(made), *_peak(made), *_scaling(made), *_compilers(known)]
    sections = [
        (
            "Self-play on one chip",
            "One program plays whole games on a v5e chip (`actors.inference=device`). The share compares its "
            "evaluations/s with those of the network alone at the same batch. The last column says what int8 "
            "(`int8.on_tpu`) changes.",
            ("experiment", "games", "moves/s", "share of the network", "moves/s in int8"),
            [_play_row(job, result, plays) for job, result in plays if _is_plain_play(job)],
        ),
        (
            "The experiments for slices",
            "The chips of a slice play and train in turns. Cells hold the moves/s of the whole slice, and the share of "
            "the time that goes into training. The work of the hosts, replay above all, is not included.",
            ("experiment", *_slices_of(made)),
            _slice_rows(made),
        ),
    ]
    return "\n".join([
        "# What the TPU compiler says",
        "",
        "`podzero compile CONFIG --topology SLICE` compiles an experiment for a TPU slice without a TPU. It prints "
        "memory, operations, traffic, communication and the compiler's estimate of the time. These are estimates: "
        "nothing on this page was measured on a TPU.",
        "",
        *(f"- {sentence}" for sentence in summary),
        "- The descent of a tree search is a loop whose length depends on data. It counts once, so that figures of "
        "`selfplay` are lower bounds; `device` counts it at a mean depth (`--depth`).",
        "",
        "[compile.csv](../benchmarks/results/compile.csv) has a row for each program, "
        "[compile.json](../benchmarks/results/compile.json) the whole reports. `podzero compile --table` compiles what "
        "is missing and writes this page.",
        "",
        *(
            line
            for title, words, header, rows in sections if rows
            for line in (f"## {title}", "", words, "", *table(header, rows), "")
        ),
    ])  # fmt: skip


def _outcomes(wanted: int, known: Known) -> list[str]:
    counts = Counter(result.outcome for _, result in known)
    others = [f"{counts[outcome]} {words}" for outcome, words in ENDINGS.items() if counts[outcome]]
    if wanted > len(known):
        others.append(f"{wanted - len(known)} not compiled yet")
    rest = f" The others: {', '.join(others)}." if others else ""
    return [f"{counts['compiled']} of {wanted} programs compile and fit.{rest}"]


def _memory(made: Known) -> list[str]:
    needs = [
        (max(one["bytes_per_chip"] / one["hbm_per_chip"] for one in result.report["programs"]), job)
        for job, result in made
        if "programs" in result.report
    ]
    if not needs:
        return []
    share, job = max(needs, key=lambda found: found[0])
    return [f"The largest needs {share:.0%} of a chip's memory (`{job.config}`, {job.program}, {job.slice})."]


def _peak(made: Known) -> list[str]:
    shares = [
        (_share_of_peak(result.report["programs"][0]), job.config)
        for job, result in made
        if job.program == "learner" and job.slice == SLICE
    ]
    return [f"A training step on {SLICE} reaches {_range(shares, '.1%')} of the chips' peak."] if shares else []


def _share_of_peak(program: dict[str, Any]) -> float:
    return float(program["seconds"]["compute"] / program["estimated_seconds"])


def _scaling(made: Known) -> list[str]:
    found: dict[int, list[tuple[float, str]]] = {}
    for job, result in made:
        if job.program == "scaling":
            efficiency = result.report["slices"][-1]["efficiency"]
            found.setdefault(result.report["per_chip"], []).append((efficiency, job.config))
    kept = [f"{_range(shares, '.0%')} with {size} samples a chip" for size, shares in sorted(found.items())]
    return [f"Training speed per chip on 256 chips, as a share of that on 4: {', '.join(kept)}."] if kept else []


def _compilers(known: Known) -> list[str]:
    counts = Counter(result.compiler for _, result in known)
    if not counts:
        return []
    (first, count), *others = sorted(counts.items(), reverse=True)
    mixed = [f"{more} of {compiler}" for compiler, more in others]
    said = [f"{', '.join([f'{count} programs are of {first}', *mixed])}."]
    changes = [
        (seconds / result.before.seconds - 1, job.config)
        for job, result in known
        if result.before is not None and (seconds := estimate_of(job, result.report)) is not None
    ]
    if changes:
        middle = median(change for change, _ in changes)
        said.append(
            f"The newer compiler changes the estimated time of {len(changes)} programs by {_range(changes, '+.0%')}, "
            f"median {middle:+.0%}."
        )
    return said


def _range(values: Iterable[tuple[float, str]], digits: str) -> str:
    """The least and the greatest value, each with the name of its experiment."""
    (low, first), (high, last) = min(values := list(values)), max(values)
    return f"{low:{digits}} (`{first}`) to {high:{digits}} (`{last}`)"


def _is_plain_play(job: Job) -> bool:
    return not job.config.startswith(FOR_SLICES) and "int8.on_tpu=true" not in job.arguments


def _play_row(job: Job, result: Result, plays: Known) -> Row:
    """Self-play on a chip, beside the same in int8."""
    report = result.report
    in_int8 = [
        other.report["moves_per_s"]
        for one, other in plays
        if "int8.on_tpu=true" in one.arguments and set(job.arguments) < set(one.arguments)
    ]
    return (
        f"`{job.config}`", f"{report['programs'][-1]['batch']:,}", f"{report['moves_per_s']:,.0f}",
        f"{report['ratio']:.0%}", "".join(f"{moves / report['moves_per_s'] - 1:+.0%}" for moves in in_int8),
    )  # fmt: skip


def _slice_pairs(made: Known) -> dict[str, list[Result]]:
    """The compiled learner and play of each experiment that is made for a slice, where both are known."""
    found: dict[str, list[Result]] = {}
    for job, result in made:
        if job.config.startswith(FOR_SLICES):
            found.setdefault(job.config, []).append(result)
    return {name: pair for name, pair in found.items() if len(pair) == 2}


def _slices_of(made: Known) -> list[str]:
    return sorted({str(load(name).cluster.slice) for name in _slice_pairs(made)})


def _slice_rows(made: Known) -> list[Row]:
    """A row for each game, with a cell for each slice."""
    cells: dict[str, dict[str, str]] = {}
    for name, (learner, play) in _slice_pairs(made).items():
        experiment = load(name)
        turns = of_slice(experiment, rates_of(learner.report, play.report))
        where = str(experiment.cluster.slice)
        family = name.removesuffix("_" + where.replace("-", "_"))
        cells.setdefault(family, {})[where] = f"{turns.moves_per_s:,.0f} ({turns.training:.0%})"
    return [(f"`{name}_...`", *(found.get(where, "") for where in _slices_of(made))) for name, found in cells.items()]


COLUMNS: dict[str, Callable[[Job, Result], object]] = {
    "experiment": lambda job, result: job.config,
    "settings": lambda job, result: " ".join(word for word in job.arguments if "=" in word),
    "slice": lambda job, result: job.slice,
    "program": lambda job, result: job.program,
    "outcome": lambda job, result: result.outcome,
    "samples_or_games": lambda job, result: result.report.get("per_chip") or _last(result).get("batch", ""),
    "memory_mib": lambda job, result: _number(_last(result).get("bytes_per_chip"), 2**20),
    "memory_of_chip_mib": lambda job, result: _number(_last(result).get("hbm_per_chip"), 2**20),
    "gflop": lambda job, result: _number(_each(result, "flops_per_chip"), 1e9),
    "hbm_traffic_mib": lambda job, result: _number(_each(result, "traffic"), 2**20),
    "estimate_ms": lambda job, result: _number(estimate_of(job, result.report), 1e-3),
    "share_of_peak": lambda job, result: _share_of_peak(_last(result)) if _fits(result) else "",
    "moves_per_s": lambda job, result: _number(result.report.get("moves_per_s"), 1),
    "share_of_network": lambda job, result: _number(result.report.get("ratio"), 1),
    "scaling_efficiency": lambda job, result: _number(_efficiency(result), 1),
    "compiler": lambda job, result: result.compiler,
    "estimate_before_ms": lambda job, result: _number(result.before.seconds if result.before else None, 1e-3),
    "message": lambda job, result: result.message,
}
"""The columns of the rows. Figures of a learner are those of a chip and a step; of `device`, `estimate_ms` is that of a
move; of the others, all are those of an execution."""


def rows(jobs: Sequence[Job], results: Results) -> str:
    """A row for each job that has a result, as comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for job in jobs:
        if (result := results.get(job)) is not None:
            cells = (make(job, result) for make in COLUMNS.values())
            writer.writerow(_written(cell) for cell in cells)
    return text.getvalue()


def _written(cell: object) -> object:
    return cell if not isinstance(cell, float) else f"{cell:.0f}" if cell >= 10_000 else f"{cell:.5g}"


def _last(result: Result) -> dict[str, Any]:
    """The program that the job is about; the report of `device` begins with the bare network."""
    found: dict[str, Any] = result.report.get("programs", [{}])[-1]
    return found


def _fits(result: Result) -> bool:
    return bool(_last(result).get("fits"))


def _each(result: Result, name: str) -> float | None:
    """A figure of one step, or of one execution."""
    program = _last(result)
    if not program:
        return None
    value = program[name]
    return float(value["hbm"] if isinstance(value, dict) else value) / float(program["trip_count"])


def _efficiency(result: Result) -> float | None:
    slices = result.report.get("slices")
    return slices[-1]["efficiency"] if slices else None


def _number(value: float | None, unit: float) -> float | str:
    return "" if value is None or math.isnan(value) else value / unit
