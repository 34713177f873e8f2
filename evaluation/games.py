"""Finished games, and their counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from podzero.intervals import wilson


class PlayedGame(NamedTuple):
    """One finished game."""

    first: str
    """The name of the player who moved first, its random opening included."""
    second: str
    moves: tuple[int, ...]
    """All actions from the initial position, those of a random opening included."""
    points: float
    """Of the player who moved first: 1 won, 0.5 drew, 0 lost."""
    opening_plies: int = 0
    """Random actions at the beginning."""
    position: str = ""
    """A digest of the position after the opening."""
    given_up: bool = False
    """Whether the loser resigned or forfeited."""
    cut_off: bool = False
    """Whether a limit on the plies ended the game; it then counts as what its rewards say, usually a draw."""


def game_title(game: PlayedGame) -> str:
    """Who played, the result, and how long it took, as `@20 - random 1-0, 7 plies`."""
    result = {1.0: "1-0", 0.0: "0-1"}.get(game.points, "draw")
    end = " (given up)" if game.given_up else " (cut off)" if game.cut_off else ""
    return f"{game.first} - {game.second} {result}{end}, {len(game.moves)} plies"


class PlayedPair(NamedTuple):
    """The two games of one opening."""

    opened: PlayedGame
    """The game in which the first player of the match moved first."""
    replied: PlayedGame
    """The game in which it moved second."""

    @property
    def points(self) -> tuple[float, float]:
        """Of the first player of the match in each game."""
        return self.opened.points, 1 - self.replied.points


class MatchResult(NamedTuple):
    """The result of a match, counted for the first player."""

    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """Games played."""
        return self.wins + self.draws + self.losses

    @property
    def points(self) -> float:
        """Wins, and half of the draws."""
        return self.wins + 0.5 * self.draws

    @property
    def score(self) -> float:
        """Points per game, in [0, 1]."""
        return self.points / self.games

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the score, by Wilson's formula (`podzero.intervals`)."""
        return wilson(self.points, self.games)


def match_result(pairs: Iterable[PlayedPair]) -> MatchResult:
    """Wins, draws and losses of the first player of the match."""
    points = [scored for pair in pairs for scored in pair.points]
    return MatchResult(points.count(1.0), points.count(0.5), points.count(0.0))
