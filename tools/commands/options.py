"""Arguments and options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from podzero.config import builtin_configs

RUNS = Path("runs")
"""The default folder for working directories."""


Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line; errors too.")]
Config = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="The name of an experiment (see `podzero configs`), or a YAML file.",
        autocompletion=builtin_configs,
    ),
]
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
        help="A run as DIR, DIR@STEP or DIR@best, zoo:NAME, hf:USER/NAME, or a named player: random, solver, "
        "mcts:400, gnugo:10, stockfish:3, or another engine (docs/engines.md).",
    ),
]
Trained = Annotated[
    str, typer.Argument(metavar="WHO", help="A trained agent: DIR, DIR@STEP, DIR@best, zoo:NAME or hf:USER/NAME.")
]
Simulations = Annotated[
    int | None, typer.Option(min=1, help="Simulations per move of trained players.", show_default="as in training")
]
Records = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the games as SGF or PGN.", show_default="in matches/ of a run WHO"),
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
    """Reads the variables that `--env` names."""
    if not names:
        return {}
    # Imports JAX, which takes seconds.
    from podzero.runtime.train import read_secrets

    return read_secrets(names, os.environ)
