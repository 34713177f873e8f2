"""The command `compile`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from podzero.config import load
from podzero.errors import ConfigError
from podzero.launch.options import Json, OptionalConfig, Overrides
from podzero.launch.output import print_json

_SLICE = "v5e-16"
"""For which experiments are compiled that name no slice."""

ProgramName = Literal["learner", "evaluation", "selfplay", "device", "server"]


def compile_for(
    config: OptionalConfig = None,
    overrides: Overrides = None,
    topology: Annotated[
        str | None,
        typer.Option(help="A TPU slice, for example v5e-16 or v5e:4x4.", show_default=f"cluster.slice, or {_SLICE}"),
    ] = None,
    program: Annotated[ProgramName | None, typer.Option(help="Only this program.", show_default="all programs")] = None,
    depth: Annotated[
        float | None,
        typer.Option(min=1, help="With device: mean depth of the trees.", show_default="8 for Gumbel, 30 for PUCT"),
    ] = None,
    scaling: Annotated[
        str | None,
        typer.Option(help="Compare the learner on several slices, for example v5e-4,v5e-256.", show_default=False),
    ] = None,
    per_chip: Annotated[
        int | None,
        typer.Option(min=1, help="With --scaling: samples per step and chip.", show_default="as on the first slice"),
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Compile all built-in experiments and write docs/compile.md.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="With --table: compile known results again.")] = False,
    minutes: Annotated[float, typer.Option(min=0.1, help="With --table: longest time per program.")] = 15.0,
    as_json: Json = False,
) -> None:
    """Compile an experiment for a TPU slice: whether it fits, and its cost. Needs no TPU."""
    if table:
        from podzero.tools.compile.table import make_table

        make_table(again, limit_s=60 * minutes)
        return
    if config is None:
        raise ConfigError("no experiment given: name one (see `podzero configs`), or compile all with --table")
    slices = None if scaling is None else scaling.split(",")
    if slices is not None and len(slices) < 2:
        raise ConfigError(f"--scaling {scaling}: expected at least two slices to compare, for example v5e-4,v5e-256")
    experiment = load(config, overrides or ())
    from podzero.tools.compile.command import judge_programs, judge_scaling

    found = (
        judge_programs(experiment, topology or experiment.cluster.slice or _SLICE, program, depth)
        if slices is None
        else judge_scaling(experiment, slices, per_chip)
    )
    if as_json:
        print_json(found.to_dict())
    else:
        from rich.console import Console

        found.show(Console())
    raise typer.Exit(0 if found.fits else 1)
