"""The command line. A command imports what it needs when it runs, so that wrong arguments are refused at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer.exceptions import TyperException

from podzero.errors import PodzeroError
from podzero.launch.compiling import compile_for
from podzero.launch.export import export
from podzero.launch.options import Json, Overrides, Version
from podzero.launch.output import print_json, print_result
from podzero.launch.platforms import choose_platform
from podzero.launch.play import play
from podzero.launch.playing import analyze, engine, evaluate
from podzero.launch.report import report
from podzero.launch.targets.verb import launch
from podzero.launch.tournament import tournament
from podzero.launch.training import train
from podzero.launch.zoo import zoo
from podzero.workdir import Workdir

EXIT_CODES = (
    "Exit codes: 0 success; 1 a negative result (compile: does not fit; doctor: a check failed), or an unexpected "
    "error; 2 an error that its message explains; 3 a run has ended without its last checkpoint; 129, 130 and 143: "
    "SIGHUP, Ctrl-C or SIGTERM has ended the command, a run with its last checkpoint."
)

app = typer.Typer(
    help="Distributed AlphaZero and MuZero: Ray actors, Reverb replay, and a sharded JAX learner.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Stage = Literal[
    "selfplay", "int8", "tree", "server", "simulators", "acting", "learner", "replay", "publish", "actors", "broadcast",
    "mesh", "analyze",
]  # fmt: skip


def main() -> None:
    """Runs the command line and ends the process with one of `EXIT_CODES`."""
    choose_platform(Path("/dev"), os.environ)
    as_json = "--json" in sys.argv[1:]
    try:
        code = app(standalone_mode=not as_json)  # typer prints its own errors unless they are to be JSON
    except (PodzeroError, TyperException) as error:
        message = error.format_message() if isinstance(error, TyperException) else str(error)
        if as_json:
            print_json({"error": message, "kind": type(error).__name__})
        else:
            print(f"podzero: {message}", file=sys.stderr)
        code = error.exit_code if isinstance(error, PodzeroError) else 2
    sys.exit(code)


@app.callback()
def podzero(
    _version: Version = False,
) -> None:
    """The options of the program itself; the help text is that of `app`."""


@app.command()
def configs(as_json: Json = False) -> None:
    """List the experiments that come with podzero."""
    from rich.console import Console

    from podzero.launch.experiments import builtin_table, list_builtin

    experiments = list_builtin()
    if as_json:
        print_json({"configs": [experiment._asdict() for experiment in experiments]})
        return
    console = Console()
    console.print(builtin_table(experiments))
    console.print("\nThe comment at the top of each file says more. Start one with: podzero train NAME", style="dim")


@app.command()
def settings(
    section: Annotated[str | None, typer.Argument(help="Only this section.", show_default="all sections")] = None,
) -> None:
    """Print every setting of an experiment with type, default and meaning, as Markdown."""
    from rich.console import Console
    from rich.markdown import Markdown

    from podzero.launch.settings import settings_page

    page, console = settings_page(section), Console()
    if console.is_terminal:
        console.print(Markdown(page))
    else:
        print(page)


@app.command()
def status(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The working directory of a run.")],
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every two seconds until the run ends or Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the status of a run, from its files: while it runs and after its end."""
    from podzero.launch.runs import show_statuses, watch_status
    from podzero.runtime.monitoring.status import read_status

    workdir = Workdir(directory)
    show_statuses(watch_status(workdir) if watch else [read_status(workdir)], directory, as_json)


@app.command()
def runs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to look for runs.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs in a directory with state, step and newest metrics."""
    from rich.console import Console

    from podzero.launch.runs import find_runs, runs_table

    found = find_runs(directory)
    if as_json:
        print_json({"runs": [run._asdict() for run in found]})
    else:
        Console().print(runs_table(found))


@app.command()
def bench(
    stage: Annotated[Stage, typer.Argument(help="The stage to measure.")],
    overrides: Overrides = None,
    config: Annotated[str, typer.Option(help="The experiment whose sizes are used.")] = "connect_four",
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="Time of measurement, without start and compilation; the round under way is finished, "
            "and one round is measured in any case.",
        ),
    ] = 20.0,
    as_json: Json = False,
) -> None:
    """Measure the throughput of a stage and, in the same run, the limit that it could reach.

    What it is doing is told on the error output, unless with --json.
    """
    from podzero.launch.bench import run_stage

    print_result(run_stage(stage, config, overrides or [], seconds, tell=not as_json), as_json)


app.command("compile")(compile_for)
for _command in (train, evaluate, tournament, analyze, play, engine, zoo, report, export, launch):
    app.command()(_command)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check whether this machine can train: libraries, devices, memory, disk, ports.

    The environment of the replay server is made if it is missing.
    """
    from podzero.launch.doctor import examine, show

    checks = examine()
    if as_json:
        print_json({"ok": not any(c.failed for c in checks), "checks": [c._asdict() for c in checks]})
    else:
        show(checks)
    raise typer.Exit(1 if any(c.failed for c in checks) else 0)
