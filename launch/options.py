"""Arguments, options and output formats that several commands share."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from podzero.config import builtin_configs

if TYPE_CHECKING:
    from podzero.tools.report.figures import ReportTable


PROGRESS_S = 10.0
"""Seconds between two lines of progress of a command."""


def config_names() -> list[str]:
    """The experiment names for shell completion."""
    return list(builtin_configs())


CONFIG_HELP = "The name of an experiment (see `podzero configs`), or a YAML file."


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version("podzero"))
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line; errors too.")]
Config = Annotated[str, typer.Argument(metavar="CONFIG", help=CONFIG_HELP, autocompletion=config_names)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="SECTION.FIELD=VALUE", help="Settings that override those of CONFIG.", show_default=False),
]
Address = Annotated[
    str | None,
    typer.Option(
        envvar="RAY_ADDRESS",
        help="The Ray cluster to join, as HOST:PORT; auto: the one that `ray start` started last on this machine.",
        show_default="local: start Ray on this machine",
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="An environment variable of this machine that the processes on all nodes get, such as a key; may be "
        "repeated. Its value is written nowhere, so give it again when you resume.",
    ),
]
Who = Annotated[
    str,
    typer.Argument(
        metavar="WHO",
        help="A working directory as DIR or DIR@STEP, an agent of `podzero zoo` as zoo:NAME, or a named player: "
        "random, solver, mcts:400, greedy, gnugo:10, stockfish:3, fairy-stockfish:3.",
    ),
]
Trained = Annotated[
    str,
    typer.Argument(metavar="WHO", help="A trained agent: a working directory as DIR or DIR@STEP, or zoo:NAME."),
]
Simulations = Annotated[
    int | None, typer.Option(min=1, help="Simulations per move of trained players.", show_default="as in training")
]
Records = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write the games as SGF or PGN.", show_default="in matches/ of a working directory WHO"
    ),
]
GameOption = Annotated[
    str | None,
    typer.Option(help="A game, or an experiment whose environment is played.", show_default="the game of WHO"),
]
ListenHost = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="The address to serve the page on; 0.0.0.0 to reach it from other machines or out of a container.",
        show_default="127.0.0.1, this machine only",
    ),
]
ListenPort = Annotated[
    int | None,
    typer.Option("--port", min=1, max=65535, help="The port to serve the page on.", show_default="a free one"),
]


def read_env(names: Iterable[str] | None) -> dict[str, str]:
    """Reads the variables that `--env` names.

    Raises:
      ConfigError: as `read_secrets`.
    """
    if not names:
        return {}
    # Imports JAX, which takes seconds.
    from podzero.runtime.train import read_secrets

    return read_secrets(names, os.environ)


def print_json(result: Mapping[str, Any]) -> None:
    """Prints one JSON object on one line."""
    print(json.dumps(result, allow_nan=False), flush=True)


def progress[**Told](describe: Callable[Told, str]) -> Callable[Told, None]:
    """A function that prints what `describe` says of its arguments to standard error, at most every `PROGRESS_S`."""
    printed = time.monotonic()

    def report(*args: Told.args, **kwargs: Told.kwargs) -> None:
        nonlocal printed
        if time.monotonic() >= printed + PROGRESS_S:
            printed = time.monotonic()
            print(describe(*args, **kwargs), file=sys.stderr, flush=True)

    return report


def print_tables(tables: Iterable[ReportTable]) -> None:
    """Prints tables with their captions."""
    from rich.console import Console
    from rich.table import Table

    for table in tables:
        # Not as the table's title, which would be as narrow as the table.
        shown = Table(box=None, header_style="bold", pad_edge=False)
        for column in table.header:
            shown.add_column(column, overflow="fold")
        for row in table.rows:
            shown.add_row(*row)
        Console().print(table.caption, shown, "", sep="\n", markup=False, highlight=False)


def print_result(result: Mapping[str, Any], as_json: bool) -> None:
    """Prints a result as one line of JSON, or one aligned line per value."""
    if as_json:
        print_json(result)
        return
    print_rows([(name, readable(value)) for name, value in _flat(result).items()])


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Prints a line for each label and text, with the texts aligned."""
    width = max((len(label) for label, _ in rows), default=0)
    for label, text in rows:
        print(f"{label:<{width}}  {text}")


def _flat(result: Mapping[str, Any]) -> dict[str, Any]:
    """Flattens nested results; a nested value is named like `network keeps_value`."""
    flat: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, dict) and any(isinstance(inner, dict | list) for inner in value.values()):
            flat |= {f"{name} {inner}": found for inner, found in _flat(value).items()}
        else:
            flat[name] = value
    return flat


def readable(value: Any) -> str:
    """Formats a value for people: numbers with four digits, items separated by commas."""
    match value:
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        case list() | tuple():
            return ", ".join(readable(item) for item in value)
        case dict():
            return ", ".join(f"{key}: {readable(item)}" for key, item in value.items())
        case _:
            return str(value)
