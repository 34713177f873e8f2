"""The command line: the program, its exit codes, and the commands that list or check something.

Commands import what they need when they run, so that help and argument errors are fast.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from podzero.core.errors import PodzeroError
from podzero.core.machine import prepare_jax
from podzero.files.workdir import Workdir, WorkdirError
from podzero.launch.experiments import diff, new
from podzero.launch.options import Json, Version, print_json
from podzero.launch.play import analyze, engine, evaluate, play
from podzero.launch.runs import compare, info, logs, stop, trace
from podzero.launch.sweep import sweep
from podzero.launch.targets.command import launch
from podzero.launch.tools import bench, compile_experiment, export, import_, report
from podzero.launch.tournament import tournament
from podzero.launch.train import train
from podzero.launch.trust import ask_before_imports

EXIT_CODES = (
    "Exit codes: 0 success; 1 a negative result (analyze: a line had an error; compile: does not fit; doctor: a check "
    "failed) or an unexpected error; 2 an error that its message explains; 3 a run ended without saving its last "
    "checkpoint; 4 a failed cluster, storage or process, or a directory in use: the same command may succeed later; "
    "129, 130 and 143: ended by SIGHUP, Ctrl-C or SIGTERM, a run after saving its last checkpoint."
)

app = typer.Typer(
    help="Distributed AlphaZero and MuZero: Ray actors, Reverb replay, and a sharded JAX learner.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Runs the command line and exits with one of `EXIT_CODES`."""
    prepare_jax()
    as_json = "--json" in sys.argv[1:]
    try:
        _require_current_folder()
        # With --json, typer raises its errors instead of printing them.
        code = app(standalone_mode=not as_json)
    except (PodzeroError, TyperException) as error:
        message = error.format_message() if isinstance(error, TyperException) else str(error)
        if as_json:
            print_json({"error": message, "kind": type(error).__name__})
        else:
            print(f"podzero: {message}", file=sys.stderr)
        code = error.exit_code if isinstance(error, PodzeroError) else 2
    sys.exit(code)


def _require_current_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError:
        raise WorkdirError("the current folder no longer exists; change to one that does (cd), and try again") from None


@app.callback()
def podzero(
    _version: Version = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            envvar="PODZERO_TRUST",
            help="Import the code that experiments name without asking; otherwise podzero asks once for each folder of "
            "files and each name in a module.",
        ),
    ] = False,
) -> None:
    """Options of the program itself; `app` has its help text."""
    ask_before_imports(os.environ, trust)


@app.command()
def configs(as_json: Json = False) -> None:
    """List the experiments that come with podzero."""
    from rich.console import Console

    from podzero.launch.listings import builtin_table, list_builtin

    experiments = list_builtin()
    if as_json:
        print_json({"configs": [experiment._asdict() for experiment in experiments]})
        return
    console = Console()
    console.print(builtin_table(experiments))
    console.print("\nEach file's first comment says more. Start one with: podzero train NAME", style="dim")


@app.command()
def check_env(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="ENV", help="A class of your own, as file.py:Class or module:Class, or an experiment that has it."
        ),
    ],
    games: Annotated[int, typer.Option(min=1, help="Random games to play.")] = 32,
    max_plies: Annotated[int, typer.Option(min=1, help="The largest number of plies of each.")] = 256,
    as_json: Json = False,
) -> None:
    """Check the contract of a game in random games, or of a gymnasium environment in random episodes."""
    from podzero.config import GymnasiumConfig, load
    from podzero.envs import check_env, own_env

    env = own_env(environment) if ":" in environment else load(environment).env
    spec = check_env(env, games, max_plies)
    if as_json:
        print_json(spec._asdict())
        return
    actions = f"{spec.num_actions} actions" if spec.num_actions else f"actions of shape {list(spec.action_shape)}"
    played = "episodes" if isinstance(env, GymnasiumConfig) else "games"
    print(
        f"{spec.name} keeps its contract in {games} random {played}. Players: {spec.players}. Observations: "
        f"{spec.observation_dtype} {list(spec.observation_shape)}, {actions}."
    )


@app.command()
def settings(
    section: Annotated[str | None, typer.Argument(help="Print only this section.", show_default="all sections")] = None,
) -> None:
    """Print all settings of an experiment with type, default and meaning, as Markdown."""
    from rich.console import Console
    from rich.markdown import Markdown

    from podzero.launch.listings import settings_page

    page, console = settings_page(section), Console()
    if console.is_terminal:
        console.print(Markdown(page))
    else:
        print(page)


@app.command()
def status(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The run's working directory.")],
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every two seconds until the run ends or Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the status of a running or ended run."""
    from podzero.launch.listings import show_statuses, watch_status
    from podzero.runtime.monitoring.status import read_status

    workdir = Workdir(directory)
    show_statuses(watch_status(workdir) if watch else [read_status(workdir)], directory, as_json)


@app.command()
def runs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that contains the runs.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs in a folder with state, step and newest metrics."""
    from rich.console import Console

    from podzero.launch.listings import find_runs, runs_table

    found = find_runs(directory)
    if as_json:
        print_json({"runs": [run._asdict() for run in found]})
    else:
        Console().print(runs_table(found))


@app.command()
def zoo(as_json: Json = False) -> None:
    """List the trained agents that come with podzero."""
    from podzero.files.players import PREFIX, zoo_card, zoo_names

    cards = {f"{PREFIX}{name}": zoo_card(name) for name in zoo_names()}
    if as_json:
        print_json(cards)
        return
    from rich.console import Console

    console = Console()
    for name, card in cards.items():
        console.print(f"[bold cyan]{name}[/]  {card['network']}; {card['hours']:g} h on {card['hardware']}")
        for sentence in card["judged"]:
            console.print(f"  {sentence}", highlight=False)
        console.print(f"  {card['command']}  (commit {card['commit']}, {card['date']})", highlight=False, style="dim")
    console.print(f"\nPlay: podzero play {next(iter(cards))} --web", highlight=False)


app.command("compile")(compile_experiment)
app.command("import")(import_)
_EXPERIMENTS = (new, diff, train, sweep)
_RUNS = (info, compare, logs, trace, stop)
_PLAY = (evaluate, tournament, analyze, play, engine)
for _command in (*_EXPERIMENTS, *_RUNS, *_PLAY, bench, report, export, launch):
    app.command()(_command)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check whether this machine can train: libraries, devices, memory, disk, ports.

    This also creates the replay server's Python environment if it is missing.
    """
    from podzero.launch.doctor import examine, show

    checks = examine()
    if as_json:
        print_json({"ok": not any(c.failed for c in checks), "checks": [c._asdict() for c in checks]})
    else:
        show(checks)
    raise typer.Exit(1 if any(c.failed for c in checks) else 0)
