"""The command `bench`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Annotated

import typer

from podzero.config import builtin_configs, load
from podzero.core.errors import ConfigError, nearest
from podzero.core.machine import keep_compiled_programs, nvidia_driver, start_cudnn, use_graphs
from podzero.tools.bench import REMOVED, STAGES
from podzero.tools.commands.options import Json, Overrides
from podzero.tools.commands.printing import print_result
from podzero.tools.commands.trust import approve_code


def bench(
    stage: Annotated[str, typer.Argument(metavar="STAGE", help=f"What to measure: {', '.join(STAGES)}.")],
    overrides: Overrides = None,
    config: Annotated[str, typer.Option(help="The experiment, which sets all sizes.")] = "connect_four",
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
    as_json: Json = False,
) -> None:
    """Measure the throughput of a stage, and in the same run the limit that it could reach.

    Progress goes to standard error, unless --json is given.
    """
    if stage in REMOVED:
        raise ConfigError(f"the stage {stage} is removed: {REMOVED[stage]}")
    if stage not in STAGES:
        raise ConfigError(f"unknown stage '{stage}'{nearest(stage, STAGES)}; expected one of {', '.join(STAGES)}")
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
    keep_compiled_programs()
    use_graphs(nvidia_driver())
    start_cudnn(nvidia_driver())
    with nullcontext() if as_json else _shown_log():
        measure = getattr(import_module(f"podzero.tools.bench.{STAGES[stage]}"), f"bench_{stage}")
        chip = {} if stand_in is None else {"stand_in": stand_in}
        print_result(measure(experiment, seconds, **chip), as_json)


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
