"""The commands that let players play: `play`, `evaluate`, `analyze` and `engine`.

They check the names of players first, since importing JAX takes seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from podzero.core.errors import ConfigError
from podzero.core.machine import keep_compiled_programs
from podzero.core.reading import standard_input
from podzero.files.players import game_to_play
from podzero.launch.options import (
    GameOption,
    Json,
    ListenHost,
    ListenPort,
    Records,
    Simulations,
    Who,
    print_json,
    print_result,
    progress,
)

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
    seed: Annotated[
        int | None, typer.Option(min=0, help="Where you watch: the first episode's seed.", show_default="0")
    ] = None,
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

    page, video = PageOptions(others or [], kept, host, port), Video(to, games, seed)
    written = run(who, game, simulations, second, web, page, video)
    if written is not None:
        # Numbers of each step are for programs.
        print_result(written if as_json else {k: v for k, v in written.items() if k not in STEPWISE}, as_json)


def evaluate(
    who: Who,
    opponent: Annotated[
        str | None,
        typer.Option(
            help="Another player, as WHO.", show_default="none if a solver can check moves, else mcts:200 and random"
        ),
    ] = None,
    games: Annotated[
        int, typer.Option(min=1, help="Games per match, half of them as the first player; or episodes.")
    ] = 100,
    simulations: Simulations = None,
    positions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Positions that the solver checks; more than 5000 of connect four need the extra `solver`.",
            show_default="1000; all in tic-tac-toe",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of openings, positions and all random choices.")] = 0,
    game: GameOption = None,
    records: Records = None,
    as_json: Json = False,
) -> None:
    """Measure how well a player plays, with confidence intervals.

    With --opponent it plays a match.
    Without, a solver checks its moves in solved positions, with search and by the network alone;
    in games without a solver it plays matches against mcts:200 and random.
    In single-player environments it plays episodes.
    """
    game_to_play(game, who, opponent)
    keep_compiled_programs()
    from podzero.evaluation.evaluate import evaluate as run
    from podzero.launch.tables import print_evaluation

    report = progress(_match_progress)
    found = run(who, opponent, games, simulations, positions, seed, game, records, report=report)
    (print_json if as_json else print_evaluation)(found)


def _match_progress(opponent: str, over: int, games: int, plies: int) -> str:
    return f"{over:,} of {games:,} games against {opponent} are over after {plies} plies"


def analyze(who: Who, simulations: Simulations = None, game: GameOption = None) -> None:
    """Search the positions on standard input.

    Each line is a JSON object with the moves of a game, as actions or names, such as
    {"id": 1, "moves": [3, 3, 4]} or {"id": 1, "moves": ["d", "d", "e"], "maxVisits": 8}

    Each answer is a line of JSON with the move, the policy, the visit counts,
    and the value for the player to move. It names moves if the question does,
    or has "names": true. The exit code is 1 if a line had an error.
    """
    game_to_play(game, who)
    keep_compiled_programs()
    from podzero.evaluation.analysis import analyze as run

    failed = False
    for answer in run(who, standard_input(), simulations, game):
        print_json(answer)
        failed |= "error" in answer
    raise typer.Exit(int(failed))


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
        raise ConfigError(
            "--resign: UCI has no resignation; the program that runs the match decides when a game is lost"
        )
    serve(who, protocol, simulations, game, resign)
