"""The command `play`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from podzero.launch.options import GameOption, Json, ListenHost, ListenPort, Who
from podzero.launch.output import print_result
from podzero.launch.platforms import keep_compiled_programs
from podzero.player_names import game_to_play

MOST_GAMES = 100
"""Episodes of one video."""


def play(
    who: Who,
    others: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OTHER ...]", help="With --web: players to compare with.", show_default=False),
    ] = None,
    game: GameOption = None,
    simulations: Annotated[
        int | None,
        typer.Option(
            min=1, help="Simulations per move of trained players.", show_default="128; as in training where you watch"
        ),
    ] = None,
    second: Annotated[bool, typer.Option("--second", help="Let the player begin.")] = False,
    web: Annotated[bool, typer.Option("--web", help="Play or watch on a page (extra `web`).")] = False,
    kept: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --web: a run or tournament whose games to step through.",
            show_default="those of WHO",
        ),
    ] = None,
    host: ListenHost = None,
    port: ListenPort = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where you watch: write the video as .mp4 or .gif.",
            show_default="in videos/ of a working directory WHO",
        ),
    ] = None,
    games: Annotated[
        int | None, typer.Option(min=1, max=MOST_GAMES, help="Where you watch: episodes.", show_default="1")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Where you watch: of the first episode.", show_default="0")
    ] = None,
    as_json: Json = False,
) -> None:
    """Play against an agent in the terminal or on a page, or watch it.

    In single-player environments you watch: a video is written,
    or with --web a page shows an episode step by step.
    """
    game_to_play(game, who, *(others or ()))  # refuses wrong names before JAX is imported
    keep_compiled_programs()
    from podzero.tools.play.command import PageOptions, Video
    from podzero.tools.play.command import play as run

    page, video = PageOptions(others or [], kept, host, port), Video(to, games, seed)
    written = run(who, game, simulations, second, web, page, video)
    if written is not None:
        print_result(written, as_json)
