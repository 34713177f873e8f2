"""The command `compile`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.console import Console

from podzero.config import load
from podzero.core.chips import find_slice
from podzero.core.errors import ConfigError
from podzero.tools.commands.options import Config, Json, Overrides
from podzero.tools.commands.printing import print_json
from podzero.tools.commands.trust import approve_code

_SLICE = "v5e-16"
"""The slice of experiments that set none."""

ProgramName = Literal["learner", "evaluation", "selfplay", "device", "take", "server"]


def _removed(given: bool) -> None:
    if given:
        raise ConfigError("--table and --again are removed: in a checkout, benchmarks/compile_table.py compiles all")


def compile_(
    config: Config,
    overrides: Overrides = None,
    topology: Annotated[
        str | None,
        typer.Option(help="A TPU slice, for example v5e-16 or v5e:4x4.", show_default=f"cluster.slice, or {_SLICE}"),
    ] = None,
    program: Annotated[
        ProgramName | None, typer.Option(help="Compile only this program.", show_default="all programs")
    ] = None,
    depth: Annotated[
        float | None,
        typer.Option(
            min=1, help="For program device: mean depth of the search trees.", show_default="8 for Gumbel, 30 for PUCT"
        ),
    ] = None,
    scaling: Annotated[
        str | None,
        typer.Option(help="Compare the learner on several slices, for example v5e-4,v5e-256.", show_default=False),
    ] = None,
    per_chip: Annotated[
        int | None,
        typer.Option(min=1, help="With --scaling: samples per step and chip.", show_default="as on the first slice"),
    ] = None,
    table: Annotated[bool, typer.Option("--table", "--again", hidden=True, is_eager=True, callback=_removed)] = False,
    as_json: Json = False,
) -> None:
    """Compile an experiment for a TPU slice: does it fit, and what does it cost? Needs no TPU."""
    slices = None if scaling is None else scaling.split(",")
    if slices is not None and len(slices) < 2:
        raise ConfigError(f"--scaling {scaling}: expected at least two slices to compare, for example v5e-4,v5e-256")
    experiment = load(config, overrides or ())
    slice_name = topology or experiment.cluster.slice or _SLICE
    for name in slices or [slice_name]:
        find_slice(name)  # before the import of JAX, which takes seconds
    approve_code(experiment)
    from podzero.tools.compile.command import compile_for_slice, compile_for_slices

    found = (
        compile_for_slice(experiment, slice_name, program, depth)
        if slices is None
        else compile_for_slices(experiment, slices, per_chip)
    )
    if as_json:
        print_json(found.to_dict())
    else:
        found.show(Console())
    raise typer.Exit(0 if found.fits else 1)
