"""The command `train`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from podzero.config import schedule_note
from podzero.launch.directories import find_start, go_on
from podzero.launch.options import Overrides, config_names
from podzero.launch.platforms import keep_compiled_programs
from podzero.workdir import Workdir


def train(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="The name of an experiment (see `podzero configs`), or a YAML file; or, to resume a run, its working "
            "directory as DIR, or as DIR@STEP for a checkpoint before the newest.",
            autocompletion=config_names,
        ),
    ],
    overrides: Overrides = None,
    workdir: Annotated[
        Path | None,
        typer.Option(
            help="The working directory. A run that is in it is resumed.",
            show_default="runs/NAME, or runs/NAME-SETTINGS with other settings",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="The Ray cluster to join, as HOST:PORT.", show_default="start Ray on this machine"),
    ] = None,
    view: Annotated[
        Literal["auto", "plain", "live"], typer.Option(help="auto: live on a terminal, plain lines otherwise.")
    ] = "auto",
    check: Annotated[
        bool, typer.Option("--check", help="Check the experiment, print it as YAML, and start nothing.")
    ] = False,
) -> None:
    """Train an experiment, or resume a run from its newest checkpoint or from DIR@STEP.

    With DIR the experiment is the one that the directory holds.
    Settings replace its own where they may change in a run.
    """
    experiment, root, step, reason = find_start(config, overrides or (), workdir)
    from podzero.launch.checks import check_startable

    check_startable(experiment, Workdir(root), step, joins=address is not None)
    if (note := schedule_note(experiment)) is not None:
        typer.echo(note, err=True)
    if check:
        print(experiment.to_yaml(), end="")
        return
    if address is None:  # the processes inherit it; the nodes of a cluster have caches of their own
        keep_compiled_programs()
    print(f"{reason}.", flush=True)
    from podzero.runtime.monitoring.terminal import make_view
    from podzero.runtime.train import train as run

    ended = run(experiment, root, address, make_view(view), step)
    cluster = "" if address is None else f" --address {address}"
    print(f"The run has ended: {ended.reason}. Its files are in {root}.")
    print(f"Evaluate it with: podzero evaluate {shlex.quote(str(root))}")
    print(f"Train on with: podzero train {go_on(experiment, root, None if ended.signal else {})}{cluster}")
    if ended.signal:
        raise typer.Exit(128 + ended.signal)
