"""The command `bench`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Annotated, Any, Literal

import typer

from podzero.config import builtin_configs, load
from podzero.core.errors import ConfigError
from podzero.core.machine import keep_compiled_programs
from podzero.tools.bench import STAGES
from podzero.tools.commands.options import Json, Overrides
from podzero.tools.commands.printing import print_result
from podzero.tools.commands.trust import approve_code

Stage = Literal[
    "selfplay", "int8", "tree", "server", "simulators", "acting", "learner", "replay", "publish", "actors", "broadcast",
    "mesh", "analyze",
]  # fmt: skip


def bench(
    stage: Annotated[Stage, typer.Argument(help="The stage to measure.")],
    overrides: Overrides = None,
    config: Annotated[str, typer.Option(help="The experiment, which sets all sizes.")] = "connect_four",
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="How long to measure, without start-up and compilation; at least one round, and whole rounds only.",
        ),
    ] = 20.0,
    as_json: Json = False,
) -> None:
    """Measure the throughput of a stage, and in the same run the limit that it could reach.

    Progress goes to standard error, unless --json is given.
    """
    print_result(run_stage(stage, config, overrides or [], seconds, verbose=not as_json), as_json)


def run_stage(stage: str, config: str, overrides: list[str], seconds: float, verbose: bool) -> dict[str, Any]:
    """Measures a stage and returns its figures; the arguments are those of `bench`."""
    for override in overrides:
        _check_setting(override, stage)
    experiment = load(config, overrides)
    approve_code(experiment)
    keep_compiled_programs()
    with _shown_log() if verbose else nullcontext():
        measure = getattr(import_module(f"podzero.tools.bench.{STAGES[stage]}"), f"bench_{stage}")
        found: dict[str, Any] = measure(experiment, seconds)
    return found


@contextmanager
def _shown_log() -> Iterator[None]:
    """Prints the benches' log, with the seconds since the command started."""
    log = logging.getLogger("podzero.tools.bench")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_SinceStart("[%(since)6.1f s] %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _SinceStart(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.since = record.relativeCreated / 1000
        return super().format(record)


def _check_setting(override: str, stage: str) -> None:
    """Refuses an experiment where a setting is expected; in other commands it stands there."""
    if "=" in override:
        return
    if override in builtin_configs() or override.endswith((".yaml", ".yml")):
        raise ConfigError(
            f"'{override}' is an experiment; the option --config takes it: `podzero bench {stage} --config {override}`"
        )
