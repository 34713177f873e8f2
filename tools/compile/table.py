"""All built-in experiments on all slices of interest: what to compile, and the processes that do it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from podzero.chips import find_slice
from podzero.config import (
    FOR_SLICES,
    MLPConfig,
    MuZeroMLPConfig,
    MuZeroResNetConfig,
    ResNetConfig,
    TransformerConfig,
    builtin_configs,
    load,
)
from podzero.tools.compile import slices
from podzero.tools.compile.pages import page, rows
from podzero.tools.compile.programs import check_compiler, names_of
from podzero.tools.compile.results import Job, Outcome, Result, Results, compiler

SLICES = ("v4-16", "v5e-16", "v5e-256", "v5p-16", "v6e-16", "tpu7x-16")
SCALING = ("v5e-4", "v5e-256")
"""The slices between which scaling is judged."""
PER_CHIP = (64, 512)
"""Samples a step and chip for which it is."""
ONE_CHIP = "v5e-1"
"""The slice for which self-play wholly on the chip is compiled."""
ON_CHIP: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("connect_four", ("actors.games=128",)),
    ("connect_four", ("actors.games=4096",)),
    ("othello", ("actors.games=512",)),
    ("hex", ("actors.games=256",)),
    ("go_9x9", ("actors.games=256",)),
    ("gardner_chess", ("actors.games=256", "search.tree=dense", "search.slots=64")),
    ("chess", ("actors.games=256", "search.tree=dense", "search.slots=64")),
)
"""The experiments for which it is, with arguments, among them the number of games that is best there; connect four also
with its own number, which is for CPUs."""
IN_INT8 = ("actors.inference=device", "int8.on_tpu=true")
"""Arguments with which it is compiled once more."""
PAGE, ROWS = Path("docs/compile.md"), Path("benchmarks/results/compile.csv")
"""Where the summary goes, and a row for each program, below the working directory."""
FIGURES = Path("benchmarks/results/compile.json")
"""Where the compiler's reports are kept."""
FOR_LAUNCH = Path("tools/compile") / slices.FILE
"""Where the rates of the experiments for slices go, below the working directory."""

_COMMAND = (sys.executable, "-c", "from podzero.launch.cli import main; main()", "compile")
_LAST_WORDS = re.compile(r"^(?:F\d{4} [^\]]*\]|podzero:|[\w.]+Error:) ?(.*)$", re.MULTILINE)
"""What libtpu says before it aborts, podzero of a person's mistake, Python of an exception."""


def make_table(again: bool, limit_s: float, tell: Callable[[str], None] | None = None) -> None:
    """Compiles what is missing, one program in one process at a time, and writes all files of the table.

    Args:
      again: whether everything is compiled, whatever is known.
      limit_s: how long one program may take.
      tell: takes a line about each program; prints it if None.

    Raises:
      ConfigError: libtpu is missing.
    """
    check_compiler()
    tell = tell or _say
    jobs, results = [*all_jobs(), *slices.slice_jobs()], Results(FIGURES)
    wanted = jobs if again else results.missing(jobs, limit_s)
    tell(f"{len(wanted)} of {len(jobs)} programs to compile with {compiler()}, at most {limit_s / 60:g} minutes each")
    try:
        results.fill(wanted, compile_apart, limit_s, tell)
    finally:  # also when somebody has waited long enough
        written = table_files(results)
        for path, text in written.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        tell(f"written: {', '.join(map(str, (FIGURES, *written)))}")


def table_files(results: Results) -> dict[Path, str]:
    """What is made of the results: the contents of `PAGE`, `ROWS` and `FOR_LAUNCH`."""
    jobs = [*all_jobs(), *slices.slice_jobs()]
    return {
        PAGE: page(jobs, results),
        ROWS: rows(jobs, results),
        FOR_LAUNCH: json.dumps(slices.figures(results), indent=1) + "\n",
    }


def all_jobs() -> list[Job]:
    """The experiments that are not made for one slice, each on all slices of interest, the smaller networks first.

    The learner depends on the slice; what one chip runs alone is compiled once for each kind of chip.
    """
    chips: dict[str, str] = {}
    for name in SLICES:
        chips.setdefault(find_slice(name).chip.name, name)
    return [
        job
        for config in sorted((name for name in builtin_configs() if not name.startswith(FOR_SLICES)), key=_size)
        for job in (
            *(_program(config, where, "learner") for where in SLICES),
            *(_program(config, where, "evaluation") for where in chips.values()),
            *(_program(config, where, "selfplay") for where in chips.values() if "selfplay" in names_of(load(config))),
            *(
                _on_chip(name, settings + more)
                for name, settings in ON_CHIP
                if name == config
                for more in ((), IN_INT8)
            ),
            *(_scaling(config, per_chip) for per_chip in PER_CHIP),
        )
    ]


def _size(config: str) -> int:
    """About how large its network is: layers times the square of their width."""
    match load(config).network:
        case ResNetConfig(blocks=layers, channels=width) | MuZeroResNetConfig(blocks=layers, channels=width):
            return layers * width**2
        case TransformerConfig(layers=layers, width=width) | MLPConfig(layers=layers, width=width):
            return layers * width**2
        case MuZeroMLPConfig(layers=layers, width=width):
            return layers * width**2


def _program(config: str, where: str, program: str) -> Job:
    return Job(config, where, program, (config, "--topology", where, "--program", program))


def _on_chip(config: str, settings: tuple[str, ...]) -> Job:
    return Job(config, ONE_CHIP, "device", (config, *settings, "--topology", ONE_CHIP, "--program", "device"))


def _scaling(config: str, per_chip: int) -> Job:
    return Job(config, SCALING[-1], "scaling", (config, "--scaling", ",".join(SCALING), "--per-chip", str(per_chip)))


def compile_apart(job: Job, limit_s: float) -> Result:
    """Runs a job in a process of its own, which may crash or hang without harm, for `limit_s` seconds at most."""
    start = time.monotonic()
    process = subprocess.Popen(
        (*_COMMAND, *job.arguments, "--json"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return Result("timeout", limit_s, job.digest(), message=f"not compiled within {limit_s / 60:g} minutes")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    seconds = round(time.monotonic() - start, 1)
    if output:
        report = json.loads(output)
        if process.returncode == 2:
            return Result("refused", seconds, job.digest(), message=report["error"])
        outcome: Outcome = "compiled" if process.returncode == 0 else "too large"
        return Result(outcome, seconds, job.digest(), report)
    said = _LAST_WORDS.findall(errors)
    message = (said[-1] if said else f"exit code {process.returncode}").strip()
    return Result("refused" if process.returncode == 2 else "crashed", seconds, job.digest(), message=message)


def _say(line: str) -> None:
    print(line, flush=True)  # also where a file or a pipe is listening
