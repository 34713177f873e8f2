"""The command `import`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from podzero.launch.options import Json, print_json
from podzero.launch.platforms import keep_compiled_programs
from podzero.player_names import game_to_play


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE ...", help="Games as .sgf, .pgn or .jsonl.")],
    game: Annotated[str, typer.Option(help="The game, or an experiment whose environment is played.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.")],
    as_json: Json = False,
) -> None:
    """Import recorded games as positions that `data.records` trains on.

    SGF is read for Go, Othello and Hex, PGN for chess and for what podzero writes itself.
    A line of .jsonl is a game with the numbers or names of its moves, such as
    {"moves": [3, 3, "e"], "result": "1-0"}

    Games that are illegal, unfinished or of another game are counted and left out.
    """
    section = game_to_play(game)
    keep_compiled_programs()
    from podzero.tools.records import import_games

    to = to.expanduser().absolute()
    found = import_games([file.expanduser() for file in files], section, to)
    if as_json:
        print_json({"records": str(to), **found._asdict()})
        return
    print(f"{found.positions:,} positions of {found.games:,} games are in {to}")
    if found.left_out:
        print("Left out: " + ", ".join(f"{count:,} {kind}" for kind, count in found.left_out.items()))
        print("\n".join(f"  {one}" for one in found.named))
    print(f"Train on them with the setting data.records={shlex.quote(str(to))}")
