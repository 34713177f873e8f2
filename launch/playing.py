"""The commands by which players play: `evaluate`, `analyze` and `engine`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from podzero.launch.options import GameOption, Json, Records, Simulations, Who
from podzero.launch.output import print_json, print_result
from podzero.launch.platforms import keep_compiled_programs
from podzero.player_names import game_to_play
from podzero.reading import standard_input


def evaluate(
    who: Who,
    opponent: Annotated[
        str | None,
        typer.Option(
            help="Another player, as WHO.", show_default="a solver that checks moves; without one mcts:200, then random"
        ),
    ] = None,
    games: Annotated[
        int, typer.Option(min=1, help="Games of each match, half of them as the first player; or episodes.")
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
    Without, a solver of the game checks its moves in solved positions,
    and those of its network without search;
    where there is no solver, it plays mcts:200 and random, a match each.
    In single-player environments it plays episodes.
    """
    game_to_play(game, who, opponent)  # refuses wrong names before JAX is imported
    keep_compiled_programs()
    from podzero.evaluation.evaluate import evaluate as run

    print_result(run(who, opponent, games, simulations, positions, seed, game, records), as_json)


def analyze(who: Who, simulations: Simulations = None, game: GameOption = None) -> None:
    """Search the positions on standard input.

    Each line is a JSON object with the moves of a game, such as
    {"id": 1, "moves": [3, 3, 4]}

    Each answer is a line of JSON with the move, the policy, the visit counts,
    and the value for the player to move.
    """
    game_to_play(game, who)  # refuses wrong names before JAX is imported
    keep_compiled_programs()
    from podzero.evaluation.evaluate import analyze as run

    for answer in run(who, standard_input(), simulations, game):
        print_json(answer)


def engine(
    who: Who,
    protocol: Annotated[Literal["gtp", "uci"], typer.Option(help="gtp for Go and other games, uci for chess.")],
    simulations: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The most simulations per move, under a clock. Without one a trained player takes as many as in "
            "training, or this number if it is smaller.",
            show_default="4 times the number in training; N for mcts:N",
        ),
    ] = None,
    game: GameOption = None,
) -> None:
    """Play as an engine of other programs, which talk to it on standard input and output."""
    game_to_play(game, who)  # refuses wrong names before JAX is imported
    keep_compiled_programs()
    from podzero.tools.play.engine import serve

    serve(who, protocol, simulations, game)
