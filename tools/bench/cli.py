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
from podzero.tools.bench import OF_RUNS, STAGES
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
    stages = (*STAGES, *OF_RUNS)
    if stage not in stages:
        raise ConfigError(f"unknown stage '{stage}'{nearest(stage, stages)}; expected one of {', '.join(stages)}")
    options: dict[str, tuple[Any, Sequence[str]]] = {
        "--stand-in": (stand_in, ("loop",)), "--kill-every": (kill_every, ("soak",)), "--quick": (quick, ("chaos",)),
        "--minutes": (minutes, OF_RUNS), "--seed": (seed, OF_RUNS), "--workdir": (workdir, OF_RUNS),
        "--note": (note, OF_RUNS),
    }  # fmt: skip
    for option, (given, takers) in options.items():
        if given and stage not in takers:
            taken = [name for name, (_, others) in options.items() if stage in others] or ["--seconds"]
            raise ConfigError(f"{option} is of {' and '.join(takers)}; {stage} takes {', '.join(taken)}")
    config = config or ("tic_tac_toe" if stage in OF_RUNS else "connect_four")
    for override in overrides or ():
        # In other commands the experiment stands here.
        if "=" not in override and (override in builtin_configs() or override.endswith((".yaml", ".yml"))):
            raise ConfigError(
                f"'{override}' is an experiment; the option --config takes it: "
                f"`podzero bench {stage} --config {override}`"
            )
    experiment = load(config, overrides or ())
    approve_code(experiment)
    what: tuple[Any, ...] = (experiment, seconds) if stand_in is None else (experiment, seconds, stand_in)
    if stage in OF_RUNS:
        folder, faults = workdir or RUNS / f"{stage}-seed{seed}", kill_every if stage == "soak" else quick
        what = config, overrides or (), folder, seed, minutes, faults
    else:
        keep_compiled_programs()
        use_graphs(nvidia_driver())
        start_cudnn(nvidia_driver())
    with nullcontext() if as_json else _shown_log():
        measure = getattr(import_module(f"podzero.tools.bench.{STAGES.get(stage, stage)}"), f"bench_{stage}")
        result = measure(*what)
        print_result(result if note is None else _record(result, note), as_json)


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
