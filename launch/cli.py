"""The command line: where each command is, the options of the program itself, and its exit codes."""

from __future__ import annotations

import ast
import os
import sys
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from podzero.core.errors import ConfigError, PodzeroError
from podzero.core.machine import ended_by_interrupt, prepare_jax
from podzero.tools.commands.printing import print_json

PANELS = {
    "Train": {
        "train": "launch.train:train",
        "sweep": "tools.sweep.cli:sweep",
        "new": "launch.new:new",
        "check-env": "launch.experiments:check_env",
        "import": "tools.records.cli:import_",
        "stop": "launch.runs:stop",
    },
    "Watch runs": {
        "runs": "launch.runs:runs",
        "status": "launch.runs:status",
        "report": "tools.report.cli:report",
        "compare": "tools.report.cli:compare",
        "info": "tools.report.cli:info",
        "logs": "launch.runs:logs",
        "trace": "launch.runs:trace",
    },
    "Play and judge": {
        "demo": "tools.play.cli:demo",
        "play": "tools.play.cli:play",
        "review": "tools.play.cli:review",
        "evaluate": "launch.evaluate:evaluate",
        "tournament": "launch.evaluate:tournament",
        "analyze": "launch.evaluate:analyze",
        "engine": "tools.play.cli:engine",
        "export": "tools.export.cli:export",
        "push": "tools.report.cli:push",
    },
    "Look up": {
        "configs": "launch.experiments:configs",
        "zoo": "launch.experiments:zoo",
        "settings": "launch.experiments:settings",
        "diff": "launch.experiments:diff",
        "doctor": "launch.doctor:doctor",
    },
    "TPU slices and speed": {
        "plan": "tools.plan.cli:plan",
        "compile": "tools.compile.cli:compile_",
        "launch": "launch.targets.cli:launch",
        "bench": "tools.bench.cli:bench",
    },
}
"""The module and the function of each command, by its panel of `podzero --help`."""
COMMANDS = {name: place for panel in PANELS.values() for name, place in panel.items()}

EXIT_CODES = (
    "Exit codes: 0 success; 1 a negative result (analyze: a line had an error; compile: does not fit; doctor: a check "
    "failed) or an unexpected error; 2 an error that its message explains; 3 a run ended without saving its last "
    "checkpoint; 4 a failed cluster, storage or process, or a directory in use: the same command may succeed later; "
    "129, 130 and 143: ended by SIGHUP, Ctrl-C or SIGTERM, a run after saving its last checkpoint."
)


class CommandGroup(TyperGroup):
    """The commands of `COMMANDS`; only the module of the command that is called is imported."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """As in typer: the command, here with its help alone."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.help = first_paragraph(cmd_name)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As in typer: the command's name, the command, and its arguments."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, name and load_command(name), rest


def load_command(name: str) -> Any:
    """The command of this name, with its parameters."""
    with ended_by_interrupt():
        function = resolve_name(f"podzero.{COMMANDS[name]}")
    alone = typer.Typer(add_completion=False)
    alone.command(name)(function)
    return typer.main.get_command(alone)


def first_paragraph(name: str) -> str:
    """The first paragraph of a command's help, read from its module without importing that, which takes seconds."""
    module, _, function = COMMANDS[name].partition(":")
    source = Path(__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    defined = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    text = next(ast.get_docstring(node) for node in defined if node.name == function)
    return str(text).partition("\n\n")[0]


app = typer.Typer(
    cls=CommandGroup,
    help="Distributed AlphaZero and MuZero: Ray actors, Reverb replay, and a sharded JAX learner.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _panel, _names in PANELS.items():
    for _name in _names:
        app.command(_name, rich_help_panel=_panel)(lambda: None)


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
            # A stranger's file may name its settings by escape codes, by which a terminal would show something else.
            shown = "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in message)
            print(f"podzero: {shown}", file=sys.stderr)
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
