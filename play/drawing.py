"""Boards as plain values: who stands where, what is written there, and which squares mean which action."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import ascii_letters, digits
from typing import Any, NamedTuple

import numpy as np

from podzero.envs.boards.chess import CHESS_SIZES
from podzero.envs.notation import fen_of, notation_of
from podzero.envs.registry import GAMES
from podzero.play.game import Game
from podzero.types import EnvSpec

Square = tuple[int, int]
"""Row from the top, column from the left."""

PIECES = ("shogi", "animal_shogi")
"""Games in JAX whose first planes are not the stones of the two players."""
_SQUARE_NAME = re.compile(r"([a-z])([0-9]+)", re.IGNORECASE)
_PIECES = dict(zip("KQRBNPkqrbnp", "♔♕♖♗♘♙♚♛♜♝♞♟", strict=True))


class Drawing(NamedTuple):
    """A board."""

    owner: np.ndarray[Any, Any]
    """`[H, W]` int8: 0 for a stone or piece of the player who began, 1 for one of the other, -1 for none."""
    text: tuple[tuple[str, ...], ...]
    """`[H][W]`, what is written in each square; empty for stones."""
    rows: tuple[str, ...]
    """The labels of rows, from the top."""
    columns: tuple[str, ...]
    """The labels of columns, from the left."""
    squares: Mapping[int, tuple[Square, ...]]
    """The squares of each legal action: where a piece moves from and to, or where a stone may be put (any of them)."""
    moves_pieces: bool = False
    """Whether actions move pieces from a square to another, as in chess."""

    @property
    def size(self) -> Square:
        """Rows and columns."""
        return int(self.owner.shape[0]), int(self.owner.shape[1])

    def actions_at(self, square: Square, origin: Square | None = None) -> list[int]:
        """The legal actions that a click on a square may mean; with an `origin`, those of its piece that go there."""
        if origin is not None:
            return [action for action, squares in self.squares.items() if squares == (origin, square)]
        ends = 1 if self.moves_pieces else None
        return [action for action, squares in self.squares.items() if square in squares[:ends]]


def drawing_of(game: Game) -> Drawing | None:
    """The board of the position that is shown; None if its observation is not one of a board."""
    spec, state = game.env.spec, game.state
    if spec.name in CHESS_SIZES:
        return _pieces(game, fen_of(state, CHESS_SIZES[spec.name]).split()[0].split("/"))
    observation = np.asarray(game.position.view.observation)
    if observation.ndim != 3:
        return None
    known = spec.name in GAMES
    own = spec.name.startswith("simulator/")  # planes come last by its contract
    planes = (observation if known or own else _channels_last(observation)) != 0
    height, width = planes.shape[:2]
    owner = np.full((height, width), -1, np.int8)
    text = tuple(("",) * width for _ in range(height))
    if known and spec.name not in PIECES:
        mover = game.turn
        owner[planes[..., 0]], owner[planes[..., 1]] = mover, 1 - mover
    else:
        text = tuple(tuple(_planes_in(square) for square in row) for row in planes)
    rows, columns = _labels(spec, height, width)
    return Drawing(owner, text, rows, columns, _squares_to_fill(game, height, width))


def last_squares(game: Game) -> tuple[Square, ...]:
    """Where the last move went: what was drawn before it, for the squares of that action."""
    if game.last_move is None:
        return ()
    action, ply = game.last_move, game.ply
    game.show(ply - 1)
    before = drawing_of(game)
    game.show(ply)
    if before is None:
        return ()
    squares = before.squares.get(action, ())
    return squares if before.moves_pieces else tuple(s for s in squares if before.owner[s] < 0)[-1:]


def _channels_last(observation: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Foreign games may have their planes first: the shortest axis is taken for that of the planes."""
    return np.moveaxis(observation, int(np.argmin(observation.shape)), -1)


def _planes_in(square: np.ndarray[Any, Any]) -> str:
    """The number of the first plane that is set in a square; empty if none is."""
    return str(int(np.argmax(square))) if square.any() else ""


def _pieces(game: Game, ranks: list[str]) -> Drawing:
    """A board of chess, white below, from the ranks of FEN."""
    expanded = [re.sub(r"[0-9]+", lambda found: " " * int(found[0]), rank) for rank in ranks]
    height, width = len(expanded), len(expanded[0])
    owner = np.array([[-1 if p == " " else int(p.islower()) for p in rank] for rank in expanded], np.int8)
    text = tuple(tuple(_PIECES.get(piece, "") for piece in rank) for rank in expanded)
    squares = {
        action: tuple((height - int(row), "abcdefgh".index(column)) for column, row in _SQUARE_NAME.findall(name)[:2])
        for action in game.legal
        for name in [game.name(action)]
    }
    rows = tuple(str(height - row) for row in range(height))
    return Drawing(owner, text, rows, tuple("abcdefgh"[:width]), squares, moves_pieces=True)


def _squares_to_fill(game: Game, height: int, width: int) -> dict[int, tuple[Square, ...]]:
    """Where each legal action puts a stone: in a square of its own, or in any of its column."""
    actions = game.env.spec.num_actions
    if actions == width:
        return {action: tuple((row, action) for row in range(height)) for action in game.legal}
    if actions in (height * width, height * width + 1):
        return {action: (divmod(action, width),) for action in game.legal if action < height * width}
    return {}


def _labels(spec: EnvSpec, height: int, width: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels that agree with the names of moves, or numbers."""
    if spec.num_actions == width:
        names = notation_of(spec)
        return ("",) * height, tuple(names.names([column])[0] for column in range(width))
    if spec.num_actions not in (height * width, height * width + 1) or spec.name not in GAMES:
        return tuple(str(row + 1) for row in range(height)), tuple(str(column + 1) for column in range(width))
    names = notation_of(spec)
    named = [names.names([action])[0] for action in range(height * width)]
    rows = tuple(named[row * width].lstrip(ascii_letters) for row in range(height))
    return rows, tuple(name.rstrip(digits) for name in named[:width])
