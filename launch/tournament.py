"""The command `tournament`: options, progress, and the results as tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from podzero.core.errors import ConfigError
from podzero.core.machine import keep_compiled_programs
from podzero.files.players import game_to_play
from podzero.files.workdir import refuse_url
from podzero.runtime.stopping import StopSignals
from podzero.tools.commands.options import GameOption, Json, Simulations
from podzero.tools.commands.printing import plain_table, print_json

if TYPE_CHECKING:
    from podzero.evaluation.tournament import TournamentProgress


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
    # Before the import of JAX, which takes seconds.
    game_to_play(game, *who)
    keep_compiled_programs()
    from podzero.envs import simulator_errors
    from podzero.evaluation.tournament import open_tournament

    with (
        simulator_errors(),
        closing(open_tournament(who, workdir, anchors, simulations, seed, game)) as running,
        StopSignals() as signals,
    ):
        show_each = (lambda progress: None) if as_json else show_progress
        ended = running.play(games, until, lambda: not signals.number, show_each)
        if records is not None:
            running.write_records(records)
        result = running.standings() | {"workdir": str(running.folder), "ended": ended}
    if as_json:
        print_json(result)
    else:
        show(result)
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
        # Not `>=`, so that NaN is refused too.
        if not name or not abs(rating) < 1e5:
            raise ConfigError(f"--anchor {text}: expected a player and its Elo points, for example random=0")
        if name in anchors:
            raise ConfigError(f"--anchor {text}: '{name}' has two ratings")
        anchors[name] = rating
    return anchors


def show_progress(progress: TournamentProgress) -> None:
    """Prints a line of progress on standard error."""
    error = progress.largest_error
    known = "not all players compared yet" if error is None else f"largest interval ±{error:.0f} Elo"
    players = " - ".join(map(short_name, (progress.first, progress.second)))
    print(f"{progress.games:,} games  {players}  {known}", file=sys.stderr, flush=True)


def show(result: Mapping[str, Any]) -> None:
    """Prints the ratings, the cross table and the findings."""
    console = Console()
    console.print(standings_table(result))
    if any(any(row) for row in result["cross"]):
        console.print("\nWins, draws and losses of the row's player; in bold where the ratings predict otherwise:")
        console.print(cross_table(result))
    for line in findings(result):
        console.print(line, style="yellow", highlight=False)
    console.print(
        f"\n{result['ended']}: {result['games']:,} games, in {result['workdir']}/games.jsonl", highlight=False
    )


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
    flagged = {frozenset((surprise["first"], surprise["second"])) for surprise in result["surprises"]}
    names = [player["name"] for player in result["players"]]
    table = plain_table("", "player", *map(str, range(1, len(names) + 1)), justify="right")
    table.columns[0].justify = table.columns[1].justify = "left"
    for place, (name, row) in enumerate(zip(names, result["cross"], strict=True), 1):
        cells = [_cell(held, frozenset((name, other)) in flagged) for other, held in zip(names, row, strict=True)]
        table.add_row(str(place), short_name(name), *cells)
    return table


def findings(result: Mapping[str, Any]) -> list[str]:
    """Sentences about results that contradict the ratings, and about games that were cut off."""
    lines = [
        f"{short_name(one['first'])} scores {100 * one['score']:.0f}% against {short_name(one['second'])}; all other "
        f"games predict {100 * one['expected']:.0f}% (p = {one['p_value']:.2g})"
        for one in result["surprises"]
    ]
    for cycle in result["cycles"]:
        lines.append("intransitive: " + " beats ".join(short_name(name) for name in (*cycle, cycle[0])))
    if result["cut_off"]:
        lines.append(
            f"{result['cut_off']:,} games were cut off by the limit on plies and are scored by their rewards so far"
        )
    return lines


def short_name(name: str) -> str:
    """A player's name; an absolute path becomes relative if that is shorter."""
    return min(name, os.path.relpath(name), key=len) if name.startswith("/") else name


def _cell(held: Mapping[str, int] | None, flagged: bool) -> str:
    if held is None:
        return "·"
    text = f"{held['wins']} {held['draws']} {held['losses']}"
    return f"[bold]{text}[/bold]" if flagged else text
