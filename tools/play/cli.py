"""The commands `play`, `review` and `engine`. They check the names of players first: importing JAX takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from podzero.core.errors import ConfigError
from podzero.core.machine import keep_compiled_programs
from podzero.core.reading import printable
from podzero.files.players import PREFIX, game_to_play
from podzero.tools.commands.options import GameOption, Json, ListenHost, ListenPort, Who
from podzero.tools.commands.printing import ReportTable, print_json, print_result, print_rows, print_tables, progress

if TYPE_CHECKING:
    from podzero.tools.play.review import Review

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
    open_page: Annotated[bool, typer.Option("--open", help="With --web: open the page in the browser.")] = False,
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

    page, video = PageOptions(kept, host, port, open_page or None), Video(to, games, seed)
    written = run(who, others or (), game, simulations, second, web, page, video)
    if written is not None:
        # Numbers of each step are for programs.
        print_result(written if as_json else {k: v for k, v in written.items() if k not in STEPWISE}, as_json)


def demo(
    agent: Annotated[str, typer.Argument(help="An agent of `podzero zoo`.")] = "connect_four",
    host: ListenHost = None,
    port: ListenPort = None,
) -> None:
    """Play against an agent that comes with podzero, on a page that opens in the browser (extra `web`)."""
    play(f"{PREFIX}{agent}", web=True, host=host, port=port, open_page=True)


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


def review(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Games as .sgf, .pgn or .jsonl.")],
    by: Annotated[str, typer.Option(metavar="WHO", help="The trained agent, or mcts:N, that searches the positions.")],
    number: Annotated[int, typer.Option(min=1, help="Which game of the file.")] = 1,
    moves: Annotated[int, typer.Option(min=0, help="How many of the costliest moves to print.")] = 5,
    simulations: Annotated[
        int | None, typer.Option(min=1, help="Simulations per position.", show_default="4 times those of training")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The annotated SGF or PGN to write.", show_default="FILE.review.sgf or .pgn"),
    ] = None,
    game: GameOption = None,
    as_json: Json = False,
) -> None:
    """Review a recorded game: its win rate, its costliest moves with what was better, and an annotated SGF or PGN.

    Each position is searched. A move costs what the win rate falls by, compared with the move that the search prefers.
    """
    game_to_play(game, by)
    keep_compiled_programs()
    from podzero.tools.play.review import review as run

    report = progress("{:,} of {:,} positions are searched".format)
    found = run(file.expanduser(), by, number, simulations, game, report)
    if not as_json:
        print_review(found, moves)
    to = found.write((to or file.with_name(f"{file.stem}.review{found.suffix}")).expanduser())
    if as_json:
        told = {"first": found.game.first, "second": found.game.second, "by": found.player, "start": found.start}
        print_json(told | {"moves": [one._asdict() for one in found.moves], "written": str(to)})
    else:
        print(f"The game with notes is in {to}")


CURVE_LEVELS = "▁▂▃▄▅▆▇█"


def print_review(found: Review, most: int) -> None:
    """Prints who played, the curve of the first player's win rate, and the costliest moves."""
    first, second = printable(found.game.first), printable(found.game.second)
    result = {1.0: f"{first} won", 0.5: "drawn", 0.0: f"{second} won"}.get(found.game.points, "result unknown")
    rates = [(one + 1) / 2 for one in (found.start, *(move.value for move in found.moves))]
    print_rows(
        [
            ("game", f"{found.where}: {first} - {second}, {result}, {len(found.moves)} moves"),
            ("by", f"{found.player}, {found.simulations:,} simulations per position"),
            *([("komi", found.komi_note)] if found.komi_note else []),
            (f"{found.moves[0].side} wins", f"{_curve(rates)}  {rates[0]:.0%} to {rates[-1]:.0%}"),
        ]
    )
    rows = [
        (str(number + 1), one.side, one.move, f"{one.cost:.0%}", " ".join(one.line))
        for number, one in found.costliest(most).items()
    ]
    if rows:
        print_tables([ReportTable("\nThe costliest moves:", ("move", "by", "played", "costs", "better"), rows)])


def _curve(rates: Sequence[float]) -> str:
    """A column for each win rate in [0, 1], or for each few of more than 60: their mean."""
    width = -(-len(rates) // 60)
    parts = [rates[begin : begin + width] for begin in range(0, len(rates), width)]
    return "".join(CURVE_LEVELS[round((len(CURVE_LEVELS) - 1) * sum(part) / len(part))] for part in parts)
