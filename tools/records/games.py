"""What is read from a file of games: moves and result of each, or why a game is left out; and games in JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from podzero.core.reading import printable, unique_keys
from podzero.core.types import EnvSpec

FaultKind = Literal["unreadable", "foreign", "illegal", "unfinished", "wrong result"]
"""Why a game is left out. `foreign`: it is another game, has another board, or starts from another position.
`unfinished`: it ends before the game does, and its result is unknown."""


class RecordedGame(NamedTuple):
    """A game from the initial position of its rules."""

    where: str
    """The file and the number of the game in it."""
    moves: tuple[int | str, ...]
    """Actions by number, or by name in the notation of the game; chess also in standard algebraic notation."""
    points: float | None
    """The points of the player that moved first: 1 for a win, 0.5 for a draw, 0 for a loss; None if not recorded."""
    opening_plies: int = 0
    """How many of the first moves were random, so that nothing is learned from them."""
    komi: float | None = None
    """The komi of a game of Go; None if it is not recorded."""
    players: tuple[str, str] = ("", "")
    """The names of the player that moved first and of the other; empty where they are not recorded."""


class Fault(NamedTuple):
    """A game that is left out, and why."""

    where: str
    kind: FaultKind
    reason: str

    def __str__(self) -> str:
        """Where and why; files hold any characters."""
        return printable(f"{self.where}: {self.reason}")


def usable(game: RecordedGame) -> RecordedGame | Fault:
    """The game, if it has a move that can be learned from."""
    if len(game.moves) > game.opening_plies:
        return game
    return Fault(game.where, "unfinished", "it has no move to learn from")


RESULTS: Mapping[str, float | None] = {"1-0": 1.0, "0-1": 0.0, "1/2-1/2": 0.5, "*": None}
"""The first player's points by the results of PGN."""


# JSON lines: games that runs and tournaments record, and those of other programs.


def read_lines(lines: Iterable[str], file: str, spec: EnvSpec) -> Iterator[RecordedGame | Fault]:
    """The games of a file with one JSON object a line.

    {"moves": [3, "d", 2], "result": "1-0", "game": "connect_four"}

    `moves` are actions by number or by name. `result` is 1-0, 0-1, 1/2-1/2 or *; it may be missing where the rules
    decide it, and so may `game`. In Go `komi` may be given. Of the first `opening_plies` moves, if given, nothing is
    learned. Instead of `result` podzero's own games have `points` and `end` (`podzero.evaluation.games.game_to_tree`).
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{file}, line {number}"
            try:
                yield _game(where, json.loads(line, object_pairs_hook=unique_keys), spec)
            except _INVALID:
                expected = '{"moves": [...], "result": "1-0"}'
                yield Fault(where, "unreadable", f"expected an object such as {expected}")


_INVALID = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading a tree raises that is not that of a game."""


def _game(where: str, tree: dict[str, Any], spec: EnvSpec) -> RecordedGame | Fault:
    if (name := tree.get("game", spec.name)) != spec.name:
        return Fault(where, "foreign", f"it is a game of {name}, not of {spec.name}")
    moves, komi = tree["moves"], tree.get("komi")
    if type(moves) is not list or not all(type(move) in (str, int) for move in moves):
        raise TypeError("moves are neither numbers nor names")
    if type(komi) not in (int, float, type(None)):
        return Fault(where, "unreadable", f'"komi" is {json.dumps(komi)}, not a number')
    if type(opening := tree.get("opening_plies", 0)) is not int or opening < 0:
        raise ValueError("invalid opening_plies")
    first, second, *_ = map(str, [*players, "", ""] if type(players := tree.get("players")) is list else ("", ""))
    return usable(RecordedGame(where, tuple(moves), _points(tree), opening, komi, (first, second)))


def _points(tree: dict[str, Any]) -> float | None:
    if "points" not in tree:
        return RESULTS["*" if (result := tree.get("result")) is None else result]
    points, others = map(float, tree["points"])
    if points not in RESULTS.values() or points + others != 1 or "result" in tree:
        raise ValueError("invalid points")
    # A limit on plies has ended the game, so the points say nothing about how it would have ended.
    return None if tree.get("end") == "cut off" else points
