"""Arguments and options that several commands share."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from podzero.config import builtin_configs


def config_names() -> list[str]:
    """The values that shell completion offers."""
    return list(builtin_configs())


CONFIG_HELP = "The name of an experiment (see `podzero configs`), or a YAML file."


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version("podzero"))
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line, for errors as well.")]
Config = Annotated[str, typer.Argument(metavar="CONFIG", help=CONFIG_HELP, autocompletion=config_names)]
OptionalConfig = Annotated[
    str | None,
    typer.Argument(metavar="CONFIG", help=CONFIG_HELP, show_default=False, autocompletion=config_names),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="SECTION.FIELD=VALUE", help="Settings that replace those of CONFIG.", show_default=False),
]
Who = Annotated[
    str,
    typer.Argument(
        metavar="WHO",
        help="A working directory as DIR or DIR@STEP, an agent of `podzero zoo` as zoo:NAME, or a named player: "
        "random, solver, mcts:400, greedy, gnugo:10, stockfish:3, fairy-stockfish:3.",
    ),
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
        help="Of the page: the address to listen on; 0.0.0.0 lets other machines in, as a container needs.",
        show_default="127.0.0.1, this machine alone",
    ),
]
ListenPort = Annotated[
    int | None, typer.Option("--port", min=1, max=65535, help="Of the page.", show_default="a free one")
]
