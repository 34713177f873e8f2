"""Results of agents: evaluations, searches and finished games."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from podzero.core.errors import ConfigError
from podzero.evaluation.games import PlayedGame
from podzero.evaluation.records import record_text, write_records
from podzero.tools.play.drawing import Drawing, drawing_of
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.picture import heat_of

Floats = np.ndarray[Any, np.dtype[np.float32]]
Integers = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """The policy and value of a position."""

    game: PlayableGame
    """A copy of the game that shows the position."""
    policy: Floats
    """`[A]` float32, the probability of each action; 0 for illegal ones."""
    value: float
    """The value for the player to move, in [-1, 1]."""

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
        """The probability of each legal move by name, descending."""
        likely_first = sorted(self.game.legal, key=lambda action: -self.policy[action])
        return {self.game.name(action): float(self.policy[action]) for action in likely_first}

    @property
    def heat_map(self) -> Floats:
        """`[H, W]` float32, the policy by square: the probability that a stone or piece moves there.

        Raises:
          ConfigError: the position has no board.
        """
        drawing = board(self.game)
        heat = np.zeros(drawing.size, np.float32)
        policy = {action: float(self.policy[action]) for action in self.game.legal}
        for square, share in heat_of(drawing, policy).items():
            heat[square] = share
        return heat

    def __repr__(self) -> str:
        return f"{type(self).__name__}(best={self.best!r}, value={self.value:+.3f})"


@dataclass(frozen=True, eq=False, repr=False)
class Search(Evaluation):
    """The result of a search; `policy` is the improved policy."""

    chosen: int
    """The selected action."""
    visits: Integers
    """`[A]` int32, the visit counts at the root."""
    simulations: int

    @property
    def action(self) -> int:
        """The selected action, which need not be the most probable one."""
        return self.chosen

    @property
    def visit_counts(self) -> dict[str, int]:
        """The visit count of each legal move by name, descending; ties by probability."""
        visited_first = sorted(self.game.legal, key=lambda action: (-self.visits[action], -self.policy[action]))
        return {self.game.name(action): int(self.visits[action]) for action in visited_first}


@dataclass(frozen=True, eq=False, repr=False)
class FinishedGame:
    """A game between two agents."""

    game: PlayableGame
    """The game at its end; `game.show(ply)` steps through it."""
    players: tuple[str, str]
    """The players' names; the first one began."""
    values: Floats
    """`[plies]` float32, the value before each move by the search of the player to move, for the player who began; NaN
    without a search."""
    resigned: bool = False
    """Whether the player to move at the end resigned or forfeited."""

    @property
    def moves(self) -> Sequence[str]:
        """The names of all moves."""
        return self.game.names

    @property
    def result(self) -> str:
        """The result in words."""
        if self.resigned:
            return f"{('second', 'first')[self.game.turn]} player wins, the other one resigned"
        return self.game.result

    @property
    def points(self) -> float:
        """The points of the player who began: 1 for a win, 0.5 for a draw, 0 for a loss."""
        # With `turn` 1 the second player resigned.
        return float(self.game.turn) if self.resigned else 0.5 + 0.5 * float(np.sign(self.game.points))

    def record(self, date: str | None = None) -> str:
        """The game as SGF (Go, Othello and Hex) or PGN (others).

        Args:
          date: the date in the record, such as 2026-01-31.

        Raises:
          ConfigError: the game did not start from the initial state, or has one player.
        """
        return record_text(self.game.env, self._played, date)

    def save(self, path: str | Path, date: str | None = None) -> None:
        """Writes `record` to a file and creates its folder.

        Raises:
          ConfigError: see `record`; or the file cannot be written.
        """
        write_records(Path(path), self.game.env, [self._played], date)

    @property
    def _played(self) -> PlayedGame:
        if not self.game.from_beginning or self.game.env.spec.players != 2:
            raise ConfigError("only two-player games from the initial state can be recorded; see `moves` for others")
        cut_off = bool(self.game.position.view.truncated)
        moves = tuple(self.game.moves)
        return PlayedGame(*self.players, moves, self.points, given_up=self.resigned, cut_off=cut_off)

    def __repr__(self) -> str:
        first, second = self.players
        return f"<{first} against {second}: {self.result} after {len(self.game.moves)} moves>"


def board(game: PlayableGame) -> Drawing:
    """The board of the position that a game shows.

    Returns:
      `owner` (`[H, W]`: 0 for stones or pieces of the player who began, 1 for the other player's, -1 for none), `text`
      (in each square), `rows` and `columns` (labels, from the top and from the left).

    Raises:
      ConfigError: the game has no board.
    """
    drawing = drawing_of(game)
    if drawing is None:
        raise ConfigError(f"{game.env.spec.name} has no board to draw: its observations are not planes of a board")
    return drawing
