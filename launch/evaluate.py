"""The commands `evaluate` and `analyze`: how well a player plays, and what it thinks of positions.

They check the names of players first, since importing JAX takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from podzero.core.machine import keep_compiled_programs
from podzero.core.reading import standard_input
from podzero.files.players import game_to_play
from podzero.tools.commands.options import GameOption, Json, Records, Simulations, Who
from podzero.tools.commands.printing import (
    ReportTable,
    Rows,
    measure,
    print_json,
    print_rows,
    print_tables,
    progress,
    share,
)


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


def print_evaluation(found: Mapping[str, Any]) -> None:
    """Prints what `evaluate` returned."""
    if "bands" in found:
        print_tables([judgement_table(found)])
    else:
        print_rows(episode_rows(found) if "episodes" in found else match_rows(found))


def match_rows(found: Mapping[str, Any]) -> Rows:
    """The rows of one match, or of the matches against several opponents."""
    rows = [("player", found["player"]), ("game", found["game"])]
    for opponent, one in found.get("matches", {found.get("opponent"): found}).items():
        counts = [f"{one['wins']:,} won", f"{one['draws']:,} drawn" if one["draws"] else "", f"{one['losses']:,} lost"]
        score = share(one["score"], one["games"], one["interval"])
        rows.append((f"against {opponent}", f"{', '.join(filter(None, counts))}: {score}"))
        if one["records"]:
            rows.append(("games", one["records"]))
    return rows


def judgement_table(found: Mapping[str, Any]) -> ReportTable:
    """The table of a solver's judgement: a row for all plies and for each band of them."""
    network = found.get("network")
    parts = [(name.removeprefix("plies "), one) for name, one in found["bands"].items()]
    alone = network and [network, *network["bands"].values()]
    rows = []
    for row, (plies, one) in enumerate([("all", found), *parts]):
        shares = [text for judged in ([one, alone[row]] if alone else [one]) for text in _judged(judged)]
        rows.append((plies, f"{one['positions']:,}", *shares))
    alone_header = ("network: keeps the value", "best") if network else ()
    return ReportTable(
        f"{found['player']} in {found['game']}, judged by perfect play: how many moves keep the game's value, with the "
        "95% interval, and how many are among the best"
        + ("; with search, then the network's most probable moves without." if network else "."),
        ("plies", "positions", "keeps the value", "best", *alone_header),
        rows,
    )


def _judged(one: Mapping[str, Any]) -> tuple[str, str]:
    positions = one["positions"]
    return share(one["keeps_value"], positions, one["interval"]), share(one["exact"], positions)


def episode_rows(found: Mapping[str, Any]) -> Rows:
    """The rows of episodes."""
    mean = measure(found["mean_return"])
    if found["interval"] is not None:
        mean += f" (95%: {' to '.join(map(measure, found['interval']))})"
    rows = [
        ("player", found["player"]),
        ("game", found["game"]),
        ("episodes", f"{found['episodes']:,}"),
        ("mean return", mean),
        ("standard deviation", measure(found["std_return"])),
    ]
    if "mean_length" in found:
        rows.append(("mean length", f"{measure(found['mean_length'])} steps"))
    if found.get("failures"):
        rows.append(("failed", f"{found['failures']:,} episodes, which were repeated"))
    return rows
