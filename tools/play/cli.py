"""The commands `play` and `engine`, which check the names of players before they import JAX, which takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from podzero.core.errors import ConfigError
from podzero.core.machine import keep_compiled_programs
from podzero.files.players import game_to_play
from podzero.tools.commands.options import GameOption, Json, ListenHost, ListenPort, Who
from podzero.tools.commands.printing import print_result

MOST_GAMES = 100
"""Most episodes in one video."""
STEPWISE = ("rewards", "values")
"""What only `play --json` tells of a video."""


def play(
    who: Who,
    others: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OTHER ...]", help="With --web: other players, to compare.", show_default=False),
    ] = None,
    game: GameOption = None,
    simulations: Annotated[
        int | None,
        typer.Option(
            min=1, help="Simulations per move of trained players.", show_default="128; where you watch, as in training"
        ),
    ] = None,
    second: Annotated[bool, typer.Option("--second", help="Let WHO play first.")] = False,
    web: Annotated[bool, typer.Option("--web", help="Play on a web page (extra `web`).")] = False,
    kept: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --web: a run or tournament whose games you can step through.",
            show_default="the run of WHO",
        ),
    ] = None,
    host: ListenHost = None,
    port: ListenPort = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where you watch: the video to write, .mp4 or .gif.",
            show_default="in videos/ of a working directory WHO",
        ),
    ] = None,
    games: Annotated[
        int | None, typer.Option(min=1, max=MOST_GAMES, help="Where you watch: number of episodes.", show_default="1")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Where you watch: its first seed.", show_default="0")] = None,
    as_json: Json = False,
) -> None:
    """Play against an agent in the terminal or on a web page, or watch it.

    In single-player environments you watch the agent:
    the command writes a video.
    """
    game_to_play(game, who, *(others or ()))
    keep_compiled_programs()
    from podzero.tools.play.command import PageOptions, Video
    from podzero.tools.play.command import play as run

    page, video = PageOptions(kept, host, port), Video(to, games, seed)
    written = run(who, others or (), game, simulations, second, web, page, video)
    if written is not None:
        # Numbers of each step are for programs.
        print_result(written if as_json else {k: v for k, v in written.items() if k not in STEPWISE}, as_json)


def engine(
    who: Who,
    protocol: Annotated[Literal["gtp", "uci"], typer.Option(help="gtp for Go and other games, uci for chess.")],
    simulations: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most simulations per move under a clock. Without a clock, trained players search as in training, or "
            "with this number if it is smaller.",
            show_default="4 times the number in training; N for mcts:N",
        ),
    ] = None,
    resign: Annotated[
        float | None,
        typer.Option(
            min=-1.0,
            max=1.0,
            help="In GTP, resign when the value of the best move is at most this, three turns in a row. Values are "
            "from -1, lost, to 1, won.",
            show_default="(never)",
        ),
    ] = None,
    game: GameOption = None,
) -> None:
    """Serve a player to other programs as an engine, on standard input and output."""
    game_to_play(game, who)
    keep_compiled_programs()
    from podzero.tools.play.engine import serve

    if resign is not None and protocol == "uci":
        raise ConfigError("--resign: UCI has no resignation; the program that runs the match decides when it is lost")
    serve(who, protocol, simulations, game, resign)
