"""The command `play`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from podzero.launch.options import GameOption, Who
from podzero.launch.platforms import keep_compiled_programs
from podzero.player_names import game_to_play


def play(
    who: Who,
    others: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OTHER ...]", help="With --web: players to compare with.", show_default=False),
    ] = None,
    game: GameOption = None,
    simulations: Annotated[int, typer.Option(min=1, help="Simulations per move of trained players.")] = 128,
    second: Annotated[bool, typer.Option("--second", help="Let the player begin.")] = False,
    web: Annotated[bool, typer.Option("--web", help="Play on a local page (extra `web`).")] = False,
    games: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A run or tournament whose games the page shows.", show_default="those of WHO"
        ),
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Of the page.", show_default="a free one")] = None,
) -> None:
    """Play against an agent, in the terminal or on a page."""
    game_to_play(game, who, *(others or ()))  # refuses wrong names before JAX is imported
    keep_compiled_programs()
    from podzero.play.command import play as run

    run(who, others or [], game, simulations, second, web, port, games)
