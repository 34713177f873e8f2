"""Compiles the experiments for the TPU slices of interest, and writes docs/compile.md, its table, and `slices.json`.

uv run --group dev python benchmarks/compile_table.py [--again] [--minutes 15]
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from podzero.benchmarks.compile_results import (
    Job,
    JobResult,
    Outcome,
    StoredResults,
    all_jobs,
    compiler,
    estimate_of,
    jobs_of_slice,
    program_of,
)
from podzero.benchmarks.markdown import Row, table
from podzero.benchmarks.number_formats import RESULTS as FORMATS
from podzero.benchmarks.number_formats import formats_table
from podzero.config import FOR_SLICES, builtin_configs, load
from podzero.tools.compile.programs import check_compiler
from podzero.tools.compile.waiting import KnownRates, of_slice, settings_of

PAGE, ROWS = Path("docs/compile.md"), Path("benchmarks/results/compile.csv")
"""The page that sums up the results, and the table with a row for each program; like all files below, relative to the
repository, which is the current folder."""
FIGURES = Path("benchmarks/results/compile.json")
"""The compiler's reports."""
FOR_LAUNCH = Path("tools/compile/slices.json")
"""The rates of the experiments for slices, which `podzero launch` looks up."""
PUBLISHED = Path(__file__).with_name("results") / "published_cycle.json"
"""A published run on a slice, and the experiment of equal shape."""

COMMAND = (sys.executable, "-P", "-c", "from podzero.launch.cli import main; main()", "compile")
_LAST_WORDS = re.compile(r"^(?:F\d{4} [^\]]*\]|podzero:|[\w.]+Error:) ?(.*)$", re.MULTILINE)
"""The last line of libtpu before it aborts, of podzero about a user's mistake, or of Python about an exception."""


def main() -> None:
    """Compiles what the options ask for."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="Compile known results again.")
    parser.add_argument("--minutes", type=float, default=15.0, help="The longest time per program.")
    options = parser.parse_args()
    make_table(options.again, 60 * options.minutes)


def make_table(again: bool, limit_s: float) -> None:
    """Compiles what is missing, one program in one process at a time, and writes all files of the table.

    Each program has `limit_s` seconds. `again` compiles what is known, too.
    """
    check_compiler()
    jobs, results = all_jobs(), StoredResults(FIGURES)
    wanted = jobs if again else results.missing(jobs, limit_s)
    print(
        f"{len(wanted)} of {len(jobs)} programs to compile with {compiler()}, at most {limit_s / 60:g} minutes each",
        flush=True,
    )
    try:
        results.fill(wanted, compile_apart, limit_s)
    finally:  # also after Ctrl-C: what was compiled is kept
        written = table_files(results)
        for path, text in written.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        print(f"written: {', '.join(map(str, (FIGURES, *written)))}")


def table_files(results: StoredResults) -> dict[Path, str]:
    """What is made of the results: the contents of `PAGE`, `ROWS` and `FOR_LAUNCH`."""
    jobs = all_jobs()
    return {
        PAGE: page(jobs, results, json.loads(FORMATS.read_text(encoding="utf-8"))),
        ROWS: rows(jobs, results),
        FOR_LAUNCH: json.dumps(figures(results), indent=1) + "\n",
    }


def compile_apart(job: Job, limit_s: float) -> JobResult:
    """Runs a job in a separate process, which may crash or hang without harm, for at most `limit_s` seconds."""
    start = time.monotonic()
    # In a session of its own, so that it is killed with the processes that it has started.
    process = subprocess.Popen(
        (*COMMAND, *job.arguments, "--json"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return JobResult("timeout", limit_s, job.digest(), message=f"not compiled within {limit_s / 60:g} minutes")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    seconds = round(time.monotonic() - start, 1)
    if output:
        report = json.loads(output)
        if process.returncode == 2:
            return JobResult("refused", seconds, job.digest(), message=report["error"])
        outcome: Outcome = "compiled" if process.returncode == 0 else "too large"
        return JobResult(outcome, seconds, job.digest(), report)
    said = _LAST_WORDS.findall(errors)
    message = (said[-1] if said else f"exit code {process.returncode}").strip()
    return JobResult("refused" if process.returncode == 2 else "crashed", seconds, job.digest(), message=message)


# The rates that `podzero launch` looks up.


def rates_of(learner: Mapping[str, Any], playing: Mapping[str, Any]) -> KnownRates | None:
    """The rates in two reports of `podzero compile --json`; None if the compiler does not estimate a program's time."""
    (program,) = learner["programs"]
    if program["estimated_seconds"] is None or "moves_per_s" not in playing:
        return None
    seconds = program["estimated_seconds"] + program["seconds"]["links"]
    return KnownRates(program["batch"] * program["trip_count"] / seconds, playing["moves_per_s"])


def figures(results: StoredResults) -> dict[str, Any]:
    """The content of the file: settings, compiler and rates of each experiment whose programs were compiled."""
    found = {}
    for name in builtin_configs():
        if name.startswith(FOR_SLICES):
            learner, play = map(results.get, jobs_of_slice(name))
            if not (learner and play and learner.outcome == play.outcome == "compiled"):
                continue
            if rates := rates_of(learner.report, play.report):
                made = {"settings": settings_of(load(name)), "compiler": learner.compiler}
                found[name] = made | rates._asdict()
    return found


# The page and the rows.

Known = list[tuple[Job, JobResult]]

_COMPARED = "v5e-16"
"""The slice whose learners the page compares."""
ENDINGS: dict[Outcome, str] = {
    "too large": "too large for a chip's memory",
    "refused": "refused (the batch does not divide among the chips)",
    "crashed": "crashed the compiler",
    "timeout": "not compiled in time",
}
"""The outcomes without a program, in words."""


def page(jobs: Sequence[Job], results: StoredResults, formats: Mapping[str, Any] | None = None) -> str:
    """The page that sums up the results; `formats` are those of `benchmarks/number_formats.py`."""
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
        (
            "Beside a published run",
            "[nanoAlphaZero](https://github.com/wtedw/nanoAlphaZero) trained chess with a network of this size on a "
            "v4-32. The compiler estimates a cycle of its own programs, and one of `slices/chess_day_v4_32`.",
            ("cycle", "measured", "its programs", "podzero's"),
            _cycle_rows(made, json.loads(PUBLISHED.read_text(encoding="utf-8"))),
        ),
    ]
    if formats is not None:
        words = (
            "Cycles in those of bfloat16, by `benchmarks/number_formats.py`. `int8.on_tpu` is refused where "
            "convolutions take 0.99 or more."
        )
        sections.append(("Number formats", words, *formats_table(formats)))
    return "\n".join([
        "# What the TPU compiler says",
        "",
        "`podzero compile CONFIG --topology SLICE` compiles an experiment for a TPU slice without a TPU. It prints "
        "memory, operations, traffic, communication and the compiler's estimate of the time. These are estimates: "
        "nothing on this page was measured on a TPU.",
        "",
        *(f"- {sentence}" for sentence in summary),
        "- The descent of a tree search is a loop whose length depends on data. It counts once, so that figures of "
        "`selfplay` are lower bounds; `device` counts it at a mean depth (`--depth`). Games are taken to last half "
        "of the longest.",
        "",
        "[compile.csv](../benchmarks/results/compile.csv) has a row for each program (`-`: no estimate), "
        "[compile.json](../benchmarks/results/compile.json) the whole reports. `benchmarks/compile_table.py` compiles "
        "what is missing and writes this page.",
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
        (share, job.config)
        for job, result in made
        if job.program == "learner"
        and job.slice == _COMPARED
        and (share := _share_of_peak(_program(job, result))) is not None
    ]
    return [f"A training step on {_COMPARED} reaches {_range(shares, '.1%')} of the chips' peak."] if shares else []


def _share_of_peak(program: Mapping[str, Any]) -> float | None:
    seconds = program.get("estimated_seconds")
    return float(program["seconds"]["compute"] / seconds) if seconds else None


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
        # The rows of `selfplay` that the older compiler made are of older code of the search as well.
        if job.program != "selfplay"
        and result.before is not None
        and (seconds := estimate_of(job, result.report)) is not None
    ]
    if changes:
        middle = median(change for change, _ in changes)
        said.append(
            f"The newer compiler changes the estimated time of {len(changes)} programs by {_range(changes, '+.0%')}, "
            f"median {middle:+.0%}; `selfplay` is left out, since its code has changed as well."
        )
    return said


def _range(values: Iterable[tuple[float, str]], digits: str) -> str:
    """The least and the greatest value, each with the name of its experiment."""
    (low, first), (high, last) = min(values := list(values)), max(values)
    return f"{low:{digits}} (`{first}`) to {high:{digits}} (`{last}`)"


def _is_plain_play(job: Job) -> bool:
    return not job.config.startswith(FOR_SLICES) and "int8.on_tpu=true" not in job.arguments


def _play_row(job: Job, result: JobResult, plays: Known) -> Row:
    """Self-play on a chip, and the same in int8."""
    report = result.report
    in_int8 = [
        other.report["moves_per_s"]
        for one, other in plays
        if "int8.on_tpu=true" in one.arguments and set(job.arguments) < set(one.arguments)
    ]
    return (
        f"`{job.config}`", f"{_program(job, result)['batch']:,}", f"{report['moves_per_s']:,.0f}",
        f"{report['ratio']:.0%}", "".join(f"{moves / report['moves_per_s'] - 1:+.0%}" for moves in in_int8),
    )  # fmt: skip


def _slice_pairs(made: Known) -> dict[str, list[JobResult]]:
    """The compiled learner and play of each experiment that is made for a slice, where both are known."""
    found: dict[str, list[JobResult]] = {}
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
        experiment, rates = load(name), rates_of(learner.report, play.report)
        if rates is None:
            continue
        turns = of_slice(experiment, rates)
        where = str(experiment.cluster.slice)
        family = name.removesuffix("_" + where.replace("-", "_"))
        cells.setdefault(family, {})[where] = f"{turns.moves_per_s:,.0f} ({turns.training:.0%})"
    return [(f"`{name}_...`", *(found.get(where, "") for where in _slices_of(made))) for name, found in cells.items()]


def _cycle_rows(made: Known, published: Mapping[str, Any]) -> list[Row]:
    """A published cycle, the compiler's estimate of it, and that of an experiment of equal shape, if compiled."""
    name, moves, steps = (published[key] for key in ("experiment", "moves", "steps"))
    pair = _slice_pairs(made).get(name)
    if pair is None or (rates := rates_of(*(result.report for result in pair))) is None:
        return []
    experiment = load(name)
    where = experiment.cluster.tpu
    assert where is not None
    games, batch, simulations = (
        where.hosts * experiment.actors.games, experiment.learner.batch_size, experiment.search.simulations
    )  # fmt: skip
    assert [games, batch, simulations] == [published[key] for key in ("games", "batch", "simulations")], name
    playing = moves * games / (where.devices * rates.chip_moves_per_s)
    training = steps * batch / rates.samples_per_s
    cycle = f"{moves} moves of {games:,} games, {simulations} simulations, and {steps} steps of {batch:,} samples"
    most, own = 3600 * published["hours"] / published["cycles"], published["own_programs"]["seconds"]
    return [(cycle, f"at most {most:.2f} s", f"{own:.2f} s", f"{playing + training:.2f} s ({playing:.2f} s play)")]


COLUMNS: dict[str, Callable[[Job, JobResult], object]] = {
    "experiment": lambda job, result: job.config,
    "settings": lambda job, result: " ".join(word for word in job.arguments if "=" in word),
    "slice": lambda job, result: job.slice,
    "program": lambda job, result: job.program,
    "outcome": lambda job, result: result.outcome,
    "samples_or_games": lambda job, result: result.report.get("per_chip") or _program(job, result).get("batch", ""),
    "memory_mib": lambda job, result: _number(_program(job, result).get("bytes_per_chip"), 2**20),
    "memory_of_chip_mib": lambda job, result: _number(_program(job, result).get("hbm_per_chip"), 2**20),
    "gflop": lambda job, result: _number(_each(job, result, "flops_per_chip"), 1e9),
    "hbm_traffic_mib": lambda job, result: _number(_each(job, result, "traffic"), 2**20),
    "estimate_ms": lambda job, result: _estimated(job, result, estimate_of(job, result.report), 1e-3),
    "share_of_peak": lambda job, result: _estimated(job, result, _share_of_peak(_program(job, result)), 1),
    "without_estimate": lambda job, result: _without_estimate(_program(job, result).get("without_estimate")),
    "host_in_bytes": lambda job, result: _number(_each(job, result, "from_hosts"), result.report.get("hosts", 1)),
    "host_out_bytes": lambda job, result: _number(_each(job, result, "to_hosts"), 1),
    "moves_per_s": lambda job, result: _of_play(job, result, "moves_per_s"),
    "share_of_network": lambda job, result: _of_play(job, result, "ratio"),
    "scaling_efficiency": lambda job, result: _number(_efficiency(job, result), 1),
    "compiler": lambda job, result: result.compiler,
    "estimate_before_ms": lambda job, result: _number(_before(job, result), 1e-3),
    "message": lambda job, result: result.message,
}
"""The columns of the rows; `-` is a figure that the compiler does not give. Figures of `learner` are per chip and step,
but `host_in_bytes` per host and step; the `estimate_ms` of `device` is per move, with `take`, and `host_out_bytes` of
`take` are per move. All other figures are per execution."""
UNKNOWN = "-"


def rows(jobs: Sequence[Job], results: StoredResults) -> str:
    """A row for each job that has a result, as comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for job in jobs:
        if (result := results.get(job)) is not None:
            for about in _programs_of(job, result):
                cells = (make(about, result) for make in COLUMNS.values())
                writer.writerow(_written(cell) for cell in cells)
    return text.getvalue()


def _programs_of(job: Job, result: JobResult) -> list[Job]:
    """The job, and after self-play on a chip one like it about the program that takes its samples."""
    taken = replace(job, program="take")
    return [job, taken] if job.program == "device" and _program(taken, result) else [job]


def _written(cell: object) -> object:
    return cell if not isinstance(cell, float) else f"{cell:.0f}" if cell >= 10_000 else f"{cell:.5g}"


def _program(job: Job, result: JobResult) -> Mapping[str, Any]:
    """The program that the job is about, which is not always the only one; empty if it was not compiled."""
    return program_of(job, result.report)


def _estimated(job: Job, result: JobResult, value: float | None, unit: float) -> float | str:
    """A figure that follows from the compiler's estimate."""
    return UNKNOWN if value is None and _program(job, result) else _number(value, unit)


def _without_estimate(runs: int | Mapping[str, int] | None) -> str:
    """How often instructions run that have no estimate, by kind.

    Reports of earlier versions have only a number of instructions, of those with the largest number of cycles.
    """
    if isinstance(runs, Mapping):
        return "; ".join(f"{kind} {times}" for kind, times in runs.items())
    return str(runs or "")


def _before(job: Job, result: JobResult) -> float | None:
    return result.before.seconds if result.before is not None and job.program != "take" else None


def _of_play(job: Job, result: JobResult, name: str) -> float | str:
    return _number(result.report.get(name), 1) if job.program == "device" else ""


def _each(job: Job, result: JobResult, name: str) -> float | None:
    """A figure of the program, divided by the steps of one execution, or by the moves of `take`; None if unknown."""
    program = _program(job, result)
    if (value := program.get(name)) is None:
        return None
    each = program["batch"] if (job.program, name) == ("take", "to_hosts") else program["trip_count"]
    return float(value["hbm"] if isinstance(value, dict) else value) / float(each)


def _efficiency(job: Job, result: JobResult) -> float | None:
    slices = result.report.get("slices") if job.program == "scaling" else None  # elsewhere it is their number
    return slices[-1]["efficiency"] if slices else None


def _number(value: float | None, unit: float) -> float | str:
    return "" if value is None or math.isnan(value) else value / unit


if __name__ == "__main__":
    main()
