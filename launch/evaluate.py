"""The commands `evaluate`, `analyze` and `tournament`: how well players play, and what one thinks of positions.

They check the names of players first, since importing JAX takes seconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from podzero.core.errors import ConfigError
from podzero.core.machine import keep_compiled_programs
from podzero.core.reading import standard_input
from podzero.files.players import game_to_play
from podzero.files.workdir import refuse_url
from podzero.runtime.stopping import StopSignals
from podzero.tools.commands.options import GameOption, Json, Records, Simulations, Who
from podzero.tools.commands.printing import (
    ReportTable,
    Rows,
    measure,
    plain_table,
    print_json,
    print_rows,
    print_tables,
    progress,
    share,
)

if TYPE_CHECKING:
    from podzero.evaluation.tournament import Tournament


def evaluate(
    who: Who,
    opponent: Annotated[
        str | None,
        typer.Option(help="Another player, as WHO.", show_default="none with a solver, else mcts:200 and random"),
    ] = None,
    games: Annotated[int, typer.Option(min=1, help="Games per match, half of them from each side; or episodes.")] = 100,
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
    in games without a solver it plays matches against mcts:200 and random,
    and on the 7 x 7 board of Hex its answers to all openings are judged.
    In single-player environments it plays episodes.
    """
    game_to_play(game, who, opponent)
    keep_compiled_programs()
    from podzero.evaluation.evaluate import evaluate as run

    report = progress("{1:,} of {2:,} games against {0} are over at ply {3}".format)
    found = run(who, opponent, games, simulations, positions, seed, game, records, report=report)
    (print_json if as_json else print_evaluation)(found)


def analyze(
    who: Who,
    simulations: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Simulations per position of trained players; the most of them with --protocol katago.",
            show_default="as in training; at most 1024 with --protocol katago",
        ),
    ] = None,
    game: GameOption = None,
    protocol: Annotated[
        Literal["lines", "katago"],
        typer.Option(help="lines: as below. katago: KataGo's analysis protocol for Go, for KaTrain and others."),
    ] = "lines",
) -> None:
    """Search the positions on standard input.

    Each line is a JSON object with the moves of a game, as actions or names, such as
    {"id": 1, "moves": [3, 3, 4]} or {"id": 1, "moves": ["d", "d", "e"], "maxVisits": 8}

    Each answer is a line of JSON with the move, the policy, the visit counts,
    and the value for the player to move. It names moves if the question does,
    or has "names": true. The exit code is 1 if a line had an error.
    """
    game_to_play(game, who)
    keep_compiled_programs()
    if protocol == "katago":
        from podzero.tools.play.engine import serve

        serve(who, protocol, simulations, game)
        return
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
    if openings := found.get("openings"):
        wrong = ", ".join(openings["wrong"])
        rows.append(("openings", f"{openings['right']} of 49 answered right" + (f", not {wrong}" if wrong else "")))
    return rows


def judgement_table(found: Mapping[str, Any]) -> ReportTable:
    """The table of a solver's judgement: a row for all plies and for each band of them; and the same for positions of
    games between strong players, if there are any.
    """
    network, rows = found.get("network"), _judgement_rows(found, "")
    if strong := found.get("games"):
        rows += _judgement_rows(strong, "strong games, ")
    alone_header = ("network: keeps the value", "best", "value error") if network else ()
    return ReportTable(
        f"{found['player']} in {found['game']}, judged by perfect play: how many moves keep the game's value, with the "
        "95% interval, and how many are among the best"
        + (
            "; with search, then the network's most probable moves without, and how far its values are off."
            if network
            else "."
        ),
        ("plies", "positions", "keeps the value", "best", *alone_header),
        rows,
    )


def _judgement_rows(found: Mapping[str, Any], prefix: str) -> list[tuple[str, ...]]:
    """The row of all positions, and those of the bands."""
    judged = [one for one in (found, found.get("network")) if one]
    parts = [("all", judged)]
    parts += [(plies.removeprefix("plies "), [one["bands"][plies] for one in judged]) for plies in found["bands"]]
    return [
        (prefix + plies, f"{ones[0]['positions']:,}", *(text for one in ones for text in _judged(one)))
        for plies, ones in parts
    ]


def _judged(one: Mapping[str, Any]) -> tuple[str, ...]:
    positions, error = one["positions"], one.get("value_error")
    shares = share(one["keeps_value"], positions, one["interval"]), share(one["exact"], positions)
    return shares if error is None else (*shares, f"{error:.3f}")


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


def tournament(
    who: Annotated[list[str], typer.Argument(metavar="WHO WHO ...", help="Players; see WHO of `podzero evaluate`.")],
    games: Annotated[int, typer.Option(min=2, help="Most games of the whole tournament.")] = 1000,
    until: Annotated[
        float | None,
        typer.Option(min=1, help="Stop once all 95% intervals are within +-ELO.", metavar="ELO", show_default=False),
    ] = None,
    anchor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHO=ELO",
            help="A player's known rating; may be repeated.",
            show_default="random=0 if it plays, else 0 for the first WHO",
        ),
    ] = None,
    simulations: Simulations = None,
    workdir: Annotated[
        Path | None,
        typer.Option(help="The folder of the games; resumes its tournament.", show_default="tournaments/..."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of openings and all random choices.")] = 0,
    game: GameOption = None,
    records: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all games of the tournament as SGF or PGN.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Rate players by games against each other, with 95% intervals.

    The pair with the least certain ratings plays next, each opening from both sides.
    Every game becomes a line of games.jsonl.
    Ctrl-C stops the tournament; the same command resumes it.
    """
    if workdir is not None:
        refuse_url(workdir)
    anchors = parse_anchors(anchor or [])
    game_to_play(game, *who)
    keep_compiled_programs()
    from podzero.envs import simulator_errors
    from podzero.evaluation.tournament import open_tournament

    with (
        simulator_errors(),
        closing(open_tournament(who, workdir, anchors, simulations, seed, game)) as running,
        StopSignals() as signals,
    ):
        show_each = (lambda first, second: None) if as_json else partial(show_progress, running)
        ended = running.play(games, until, lambda: not signals.number, show_each)
        if records is not None:
            running.write_records(records)
        result = running.standings() | {"workdir": str(running.folder), "ended": ended}
    (print_json if as_json else print_ratings)(result)
    if signals.number:
        raise typer.Exit(128 + signals.number)


def parse_anchors(given: Sequence[str]) -> dict[str, float]:
    """Parses ratings given as `WHO=ELO`."""
    anchors: dict[str, float] = {}
    for text in given:
        name, _, elo = text.rpartition("=")
        try:
            rating = float(elo)
        except ValueError:
            rating = float("nan")
        # NaN is not below the bound either.
        if not name or not abs(rating) < 1e5:
            raise ConfigError(f"--anchor {text}: expected a player and its Elo points, for example random=0")
        if name in anchors:
            raise ConfigError(f"--anchor {text}: '{name}' has two ratings")
        anchors[name] = rating
    return anchors


def show_progress(tournament: Tournament, first: str, second: str) -> None:
    """Prints a line of progress on standard error, after a match of two players."""
    error = tournament.largest_error()
    known = "not all players compared yet" if error is None else f"largest interval ±{error:.0f} Elo"
    players = f"{short_name(first)} - {short_name(second)}"
    print(f"{tournament.games:,} games  {players}  {known}", file=sys.stderr, flush=True)


def print_ratings(result: Mapping[str, Any]) -> None:
    """Prints the ratings, the cross table and the games that were cut off."""
    console = Console()
    console.print(standings_table(result))
    if any(any(row) for row in result["cross"]):
        console.print("\nWins, draws and losses of the row's player:")
        console.print(cross_table(result))
    if result["cut_off"]:
        line = f"{result['cut_off']:,} games were cut off by the limit on plies and scored by rewards so far"
        console.print(line, style="yellow", highlight=False)
    console.print(f"\n{result['ended']}: {result['games']:,} games in {result['workdir']}/games.jsonl", highlight=False)


def standings_table(result: Mapping[str, Any]) -> Table:
    """A table of ratings, with the strongest player first."""
    table = plain_table("", "player", "Elo", "95% interval", "games", "score", justify="right")
    table.columns[1].justify = "left"
    for place, player in enumerate(result["players"], 1):
        rated = player["elo"] is not None
        interval = f"{player['low']:.0f} to {player['high']:.0f}" if rated else ""
        if rated and player["low"] == player["high"]:
            interval = "anchor"
        score = "" if player["score"] is None else f"{100 * player['score']:.1f}%"
        elo = f"{player['elo']:.0f}" if rated else "no games"
        table.add_row(str(place), short_name(player["name"]), elo, interval, f"{player['games']:,}", score)
    return table


def cross_table(result: Mapping[str, Any]) -> Table:
    """A table of each player's results (row) against each other player (column)."""
    names = [player["name"] for player in result["players"]]
    table = plain_table("", "player", *map(str, range(1, len(names) + 1)), justify="right")
    table.columns[0].justify = table.columns[1].justify = "left"
    for place, (name, row) in enumerate(zip(names, result["cross"], strict=True), 1):
        cells = ("·" if held is None else f"{held['wins']} {held['draws']} {held['losses']}" for held in row)
        table.add_row(str(place), short_name(name), *cells)
    return table


def short_name(name: str) -> str:
    """A player's name; an absolute path becomes relative if that is shorter."""
    return min(name, os.path.relpath(name), key=len) if name.startswith("/") else name
