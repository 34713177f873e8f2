"""The command `import`."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from podzero.config import KOMI, GymnasiumConfig
from podzero.core.errors import ConfigError
from podzero.core.machine import keep_compiled_programs
from podzero.files.players import game_to_play
from podzero.tools.commands.options import Json, Simulations
from podzero.tools.commands.printing import print_json, progress


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE ...", help="Games as .sgf, .pgn or .jsonl; episodes as .npz or .jsonl."),
    ],
    game: Annotated[str, typer.Option(help="The game, or an experiment whose environment is played.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.")],
    search: Annotated[
        str | None,
        typer.Option(
            metavar="WHO",
            help="A trained agent, or mcts:N, that searches each position: its policy is the target.",
            show_default="the moves played",
        ),
    ] = None,
    simulations: Simulations = None,
    as_json: Json = False,
) -> None:
    """Import recorded games or episodes that `data.records` trains on.

    SGF is read for Go, Othello and Hex, PGN for chess and for what podzero writes itself.
    A line of .jsonl is a game with the numbers or names of its moves, such as
    {"moves": [3, 3, "e"], "result": "1-0"}
    An episode of gymnasium is a line or an .npz file with the arrays observations [T + 1, ...], actions [T],
    rewards [T] and terminated.

    Games that are illegal, unfinished or of another game are counted and left out.
    """
    if search is None and simulations is not None:
        raise ConfigError(f"--simulations {simulations} is for a search; name the player that searches with --search")
    section = game_to_play(game, search)
    keep_compiled_programs()
    from podzero.tools.records.command import import_games

    to, kind = to.expanduser().absolute(), "episodes" if isinstance(section, GymnasiumConfig) else "games"
    report = progress(lambda games, positions: f"{positions:,} positions of {games:,} {kind}")
    found = import_games([file.expanduser() for file in files], section, to, search, simulations, report)
    if as_json:
        print_json({"records": str(to), **asdict(found)})
        return
    print(f"{found.positions:,} positions of {found.games:,} {kind} are in {to}")
    if found.other_komi:
        print(f"{found.other_komi:,} of them had another komi than {KOMI}, which a network sees only with env.komi")
    if found.left_out:
        print("Left out: " + ", ".join(f"{count:,} {kind}" for kind, count in found.left_out.items()))
        print("\n".join(f"  {one}" for one in found.named))
    print(f"Train on them with the setting data.records={shlex.quote(str(to))}")
