"""The command line: where each command is, the options of the program itself, and its exit codes."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from podzero.core.errors import ConfigError, PodzeroError
from podzero.core.machine import ended_by_interrupt, prepare_jax
from podzero.tools.commands.printing import print_json

COMMANDS = {
    "configs": ("launch.experiments", "List the experiments that come with podzero."),
    "check-env": (
        "launch.experiments",
        "Check the contract of a game in random games, or of a gymnasium environment in random episodes.",
    ),
    "settings": (
        "launch.experiments",
        "Print all settings of an experiment with type, default and meaning, as Markdown.",
    ),
    "status": ("launch.runs", "Show the status of a running or ended run."),
    "runs": ("launch.runs", "List the runs in a folder with state, step and newest metrics."),
    "zoo": ("launch.experiments", "List the trained agents that come with podzero."),
    "compile": (
        "tools.compile.cli",
        "Compile an experiment for a TPU slice: does it fit, and what does it cost? Needs no TPU.",
    ),
    "import": ("tools.records.cli", "Import recorded games or episodes that `data.records` trains on."),
    "new": (
        "launch.new",
        "Write a first experiment for an environment: YAML with numbers for two CPU cores, and why they were chosen.",
    ),
    "diff": (
        "launch.experiments",
        "Print the settings that differ between two experiments, each as `section.field: a -> b`.",
    ),
    "train": ("launch.train", "Train an experiment, or resume a run from its newest checkpoint or from DIR@STEP."),
    "sweep": (
        "tools.sweep.cli",
        "Train an experiment with all combinations of some settings, and print a table of what the runs reached.",
    ),
    "info": (
        "tools.report.cli",
        "Show what a trained agent is: network, steps, hours, hardware, strength, and what it was started from.",
    ),
    "compare": (
        "tools.report.cli",
        "Compare runs after equal time of training: settings that differ, steps, speed, losses, strength.",
    ),
    "logs": (
        "launch.runs",
        "Print what the processes of a run have logged, with tracebacks. The driver writes it into DIR/train.log.",
    ),
    "trace": (
        "launch.runs",
        "Write profiler traces of the learner, actors, inference servers and reanalysers of a running run.",
    ),
    "stop": (
        "launch.runs",
        "End a run on this machine as Ctrl-C does: with a last checkpoint. Waits until it has ended.",
    ),
    "evaluate": ("launch.evaluate", "Measure how well a player plays, with confidence intervals."),
    "tournament": ("launch.evaluate", "Rate players by games against each other, with 95% intervals."),
    "analyze": ("launch.evaluate", "Search the positions on standard input."),
    "play": ("tools.play.cli", "Play against an agent in the terminal or on a web page, or watch it."),
    "engine": ("tools.play.cli", "Serve a player to other programs as an engine, on standard input and output."),
    "bench": (
        "tools.bench.cli",
        "Measure the throughput of a stage, and in the same run the limit that it could reach.",
    ),
    "report": (
        "tools.report.cli",
        "Write the report of a run as an HTML file: ratings, losses, throughput, settings, faults, cost.",
    ),
    "export": ("tools.export.cli", "Write the network of a trained agent to a file for ONNX Runtime or jax.export."),
    "launch": ("launch.targets.cli", "Start a cluster on Google Cloud and train an experiment on it."),
    "doctor": ("launch.doctor", "Check whether this machine can train: libraries, devices, memory, disk, ports."),
}
"""The module of each command, which has a function of its name, and its line in the help of the program."""

EXIT_CODES = (
    "Exit codes: 0 success; 1 a negative result (analyze: a line had an error; compile: does not fit; doctor: a check "
    "failed) or an unexpected error; 2 an error that its message explains; 3 a run ended without saving its last "
    "checkpoint; 4 a failed cluster, storage or process, or a directory in use: the same command may succeed later; "
    "129, 130 and 143: ended by SIGHUP, Ctrl-C or SIGTERM, a run after saving its last checkpoint."
)


class CommandGroup(TyperGroup):
    """The commands of `COMMANDS`; only the module of the command that is called is imported."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As in typer: the command's name, the command, and its arguments."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, name and load_command(name), rest


def load_command(name: str) -> Any:
    """The command of this name, with its parameters."""
    with ended_by_interrupt():
        module = import_module(f"podzero.{COMMANDS[name][0]}")
    # `compile` and `import` are words of Python.
    function = getattr(module, f"{name}_", None) or getattr(module, name.replace("-", "_"))
    alone = typer.Typer(add_completion=False)
    alone.command(name)(function)
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=CommandGroup,
    help="Distributed AlphaZero and MuZero: Ray actors, Reverb replay, and a sharded JAX learner.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, (_, _help) in COMMANDS.items():
    app.command(_name, help=_help)(lambda: None)


def main() -> None:
    """Runs the command line and exits with one of `EXIT_CODES`."""
    prepare_jax()
    as_json = "--json" in sys.argv[1:]
    try:
        try:
            Path.cwd()
        except FileNotFoundError:
            raise ConfigError("the current folder no longer exists; change to one that does (cd)") from None
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


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version("podzero"))
        raise typer.Exit


@app.callback()
def podzero(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
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
    from podzero.tools.commands.trust import ask_before_imports

    ask_before_imports(os.environ, trust)
