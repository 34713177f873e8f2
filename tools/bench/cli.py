"""The command `bench`."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from podzero.config import builtin_configs, load
from podzero.core.errors import ConfigError, nearest
from podzero.core.machine import keep_compiled_programs, nvidia_driver, start_cudnn, use_graphs
from podzero.tools.bench import OF_RUNS, REMOVED, STAGES
from podzero.tools.commands.options import RUNS, Json, Overrides
from podzero.tools.commands.printing import print_result
from podzero.tools.commands.trust import approve_code


def bench(
    stage: Annotated[str, typer.Argument(metavar="STAGE", help=f"What to measure: {', '.join((*STAGES, *OF_RUNS))}.")],
    overrides: Overrides = None,
    config: Annotated[
        str | None,
        typer.Option(
            help="The experiment, which sets all sizes.", show_default="connect_four; tic_tac_toe for soak and chaos"
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="How long to measure, without start-up and compilation; at least one round, and whole rounds only.",
        ),
    ] = 20.0,
    stand_in: Annotated[
        str | None,
        typer.Option(
            metavar="CHIP",
            help="Of the loop: sleep as long as this chip takes, to measure the host without it: h200, or a TPU slice "
            "such as v5e-1, by the TPU compiler.",
            show_default="the devices of this machine",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.5, help="Of soak and chaos: how long to train.", show_default="120; 1 for chaos --quick"),
    ] = None,
    kill_every: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES",
            min=0.5,
            help="Of soak: kill a random worker every so many minutes.",
            show_default="never",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of soak and chaos: chooses what is killed, and when.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Of chaos: a few kills in a minute.")] = False,
    workdir: Annotated[
        Path | None,
        typer.Option(help="Of soak and chaos: a new directory for the run.", show_default="runs/STAGE-seedSEED"),
    ] = None,
    note: Annotated[
        str | None,
        typer.Option(
            help="Of soak and chaos: print a record for benchmarks/results, with this note on the circumstances."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the throughput of a stage, and in the same run the limit that it could reach.

    Progress goes to standard error, unless --json is given.
    """
    if stage in REMOVED:
        raise ConfigError(f"the stage {stage} is removed: {REMOVED[stage]}")
    stages = (*STAGES, *OF_RUNS)
    if stage not in stages:
        raise ConfigError(f"unknown stage '{stage}'{nearest(stage, stages)}; expected one of {', '.join(stages)}")
    of_runs = {"--minutes": minutes, "--kill-every": kill_every, "--seed": seed, "--workdir": workdir, "--note": note}
    if (given := [name for name, value in of_runs.items() if value]) and stage not in OF_RUNS:
        raise ConfigError(f"{given[0]} is of the stages {' and '.join(OF_RUNS)}; {stage} takes --seconds")
    if kill_every is not None and stage != "soak":
        raise ConfigError("--kill-every is of the stage soak; the schedule of chaos follows from --minutes and --seed")
    if quick and stage != "chaos":
        raise ConfigError("--quick is of the stage chaos")
    config = config or ("tic_tac_toe" if stage in OF_RUNS else "connect_four")
    if stand_in is not None and stage != "loop":
        raise ConfigError(f"--stand-in is of the stage loop; {stage} measures this machine")
    for override in overrides or ():
        # In other commands the experiment stands here.
        if "=" not in override and (override in builtin_configs() or override.endswith((".yaml", ".yml"))):
            raise ConfigError(
                f"'{override}' is an experiment; the option --config takes it: "
                f"`podzero bench {stage} --config {override}`"
            )
    experiment = load(config, overrides or ())
    approve_code(experiment)
    if stage in OF_RUNS:
        folder = workdir or RUNS / f"{stage}-seed{seed}"
        with nullcontext() if as_json else _shown_log():
            result = _of_run(stage, config, overrides or (), folder, minutes, kill_every, seed, quick)
        print_result(result if note is None else _record(result, note), as_json)
        return
    keep_compiled_programs()
    use_graphs(nvidia_driver())
    start_cudnn(nvidia_driver())
    with nullcontext() if as_json else _shown_log():
        measure = getattr(import_module(f"podzero.tools.bench.{STAGES[stage]}"), f"bench_{stage}")
        chip = {} if stand_in is None else {"stand_in": stand_in}
        print_result(measure(experiment, seconds, **chip), as_json)


def _of_run(
    stage: str,
    config: str,
    overrides: Sequence[str],
    workdir: Path,
    minutes: float | None,
    kill_every: float | None,
    seed: int,
    quick: bool,
) -> dict[str, Any]:
    """The result of a stage that watches a run."""
    measure = getattr(import_module(f"podzero.tools.bench.{stage}"), f"bench_{stage}")
    chosen = (minutes or 120.0, kill_every) if stage == "soak" else (minutes, quick)
    found: dict[str, Any] = measure(config, overrides, workdir, *chosen, seed)
    return found


def _record(result: Mapping[str, Any], note: str) -> dict[str, Any]:
    """A result in the form of `benchmarks/results`."""
    from podzero.tools.bench.child_run import machine_in_words

    words = sys.argv[1:]
    for option in ("--note", "--workdir"):
        if option in words:
            del words[(at := words.index(option)) : at + 2]
    return {
        "command": shlex.join(["podzero", *words]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "hardware": machine_in_words(),
        "note": note,
        "result": dict(result),
    }


@contextmanager
def _shown_log() -> Iterator[None]:
    """Prints the benches' log, with the seconds since the command started."""
    log = logging.getLogger("podzero.tools.bench")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_SinceStart("[%(since)6.1f s] %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    # A library that a stage imports may give the root a handler, which would print each line once more.
    log.propagate = False
    try:
        yield
    finally:
        log.propagate = True
        log.removeHandler(handler)


class _SinceStart(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.since = record.relativeCreated / 1000
        return super().format(record)
