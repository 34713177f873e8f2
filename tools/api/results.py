"""What an agent says of a position, and the games that agents played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from podzero.errors import ConfigError
from podzero.evaluation.games import PlayedGame
from podzero.evaluation.records import record_text, write_records
from podzero.tools.play.drawing import Drawing, drawing_of
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.picture import heat_of

Floats = np.ndarray[Any, np.dtype[np.float32]]
Integers = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """A policy and a value of a position."""

    game: PlayableGame
    """A copy of the game, which shows the position."""
    policy: Floats
    """`[A]` float32, the probability of each action; zero for illegal ones."""
    value: float
    """For the player to move, in [-1, 1]."""

    @property
    def action(self) -> int:
        """The most probable action."""
        return int(self.policy.argmax())

    @property
    def best(self) -> str:
        """The name of `action`."""
        return self.game.name(self.action)

    @property
    def probabilities(self) -> dict[str, float]:
        """The probability of each legal move by its name, most probable first."""
        likely_first = sorted(self.game.legal, key=lambda action: -self.policy[action])
        return {self.game.name(action): float(self.policy[action]) for action in likely_first}

    @property
    def heat_map(self) -> Floats:
        """`[H, W]` float32, the policy on the board: the probability that a stone or piece comes to each square.

        Raises:
          ConfigError: the position has no board.
        """
        drawing = board(self.game)
        heat = np.zeros(drawing.size, np.float32)
        for square, share in heat_of(
            drawing, {action: float(self.policy[action]) for action in self.game.legal}
        ).items():
            heat[square] = share
        return heat

    def __repr__(self) -> str:
        return f"{type(self).__name__}(best={self.best!r}, value={self.value:+.3f})"


@dataclass(frozen=True, eq=False, repr=False)
class Search(Evaluation):
    """What a search found; `policy` is the improved one."""

    chosen: int
    """The action that the agent plays."""
    visits: Integers
    """`[A]` int32, the visits of each action of the position."""
    simulations: int

    @property
    def action(self) -> int:
        """The action that the agent plays."""
        return self.chosen

    @property
    def visit_counts(self) -> dict[str, int]:
        """The visits of each legal move by its name, most visited first, then most probable first."""
        visited_first = sorted(self.game.legal, key=lambda action: (-self.visits[action], -self.policy[action]))
        return {self.game.name(action): int(self.visits[action]) for action in visited_first}


@dataclass(frozen=True, eq=False, repr=False)
class FinishedGame:
    """A game between two agents."""

    game: PlayableGame
    """At its end; `game.show(ply)` steps through it."""
    players: tuple[str, str]
    """Their names; who began comes first."""
    values: Floats
    """`[plies]` float32, what the player to move expected before each move, for the player who began; NaN where it did
    not search."""
    resigned: bool = False
    """Whether the player to move at the end resigned or forfeited the game."""

    @property
    def moves(self) -> Sequence[str]:
        """The names of all moves."""
        return self.game.names

    @property
    def result(self) -> str:
        """How the game ended, in words."""
        if self.resigned:
            return f"{('second', 'first')[self.game.turn]} player wins, the other one resigned"
        return self.game.result

    @property
    def points(self) -> float:
        """Of the player who began: 1 won, 0.5 drew, 0 lost."""
        return float(self.game.turn) if self.resigned else 0.5 + 0.5 * float(np.sign(self.game.points))

    def record(self, date: str | None = None) -> str:
        """The game as other programs read it: SGF for Go, Othello and Hex, PGN for others; `date` as 2026-01-31.

        Raises:
          ConfigError: it did not start at the beginning, or is no game of two.
        """
        return record_text(self.game.env, self._played, date)

    def save(self, path: str | Path, date: str | None = None) -> None:
        """Writes `record` to a file, whose folder is made.

        Raises:
          ConfigError: it has no record, or the file cannot be written.
        """
        write_records(Path(path), self.game.env, [self._played], date)

    @property
    def _played(self) -> PlayedGame:
        if not self.game.from_beginning or self.game.env.spec.players != 2:
            raise ConfigError("only games of two players from the beginning have records; `moves` has those of others")
        cut_off = bool(self.game.position.view.truncated)
        moves = tuple(self.game.moves)
        return PlayedGame(*self.players, moves, self.points, given_up=self.resigned, cut_off=cut_off)

    def __repr__(self) -> str:
        first, second = self.players
        return f"<{first} against {second}: {self.result} after {len(self.game.moves)} moves>"


def board(game: PlayableGame) -> Drawing:
    """The position that a game shows, as values to be drawn.

    Returns:
      `owner` (`[H, W]`: 0 where the player who began has a stone or piece, 1 where the other one has, -1 elsewhere),
      `text` (what is written in each square), `rows` and `columns` (their labels, from the top and from the left).

    Raises:
      ConfigError: the game has no board.
    """
    drawing = drawing_of(game)
    if drawing is None:
        raise ConfigError(
            f"{game.env.spec.name} has no board that can be drawn: its observations are no planes of squares"
        )
    return drawing
