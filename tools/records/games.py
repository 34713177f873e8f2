"""What is read from a file of games: moves and result of each, or why a game is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

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


class Fault(NamedTuple):
    """A game that is left out, and why."""

    where: str
    kind: FaultKind
    reason: str

    def __str__(self) -> str:
        """Where and why, with escapes for characters that cannot be printed: files hold any."""
        text = f"{self.where}: {self.reason}"
        return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def recorded_game(
    where: str,
    moves: Sequence[int | str],
    points: float | None,
    opening_plies: int = 0,
    komi: float | None = None,
) -> RecordedGame | Fault:
    """The game of a record, which must have a move that can be learned from."""
    if len(moves) <= opening_plies:
        return Fault(where, "unfinished", "it has no move to learn from")
    return RecordedGame(where, tuple(moves), points, opening_plies, komi)


RESULTS: Mapping[str, float | None] = {"1-0": 1.0, "0-1": 0.0, "1/2-1/2": 0.5, "*": None}
"""The first player's points by the results of PGN."""
