"""The drawing of a position."""

from __future__ import annotations

from string import ascii_letters, digits
from typing import Any

import numpy as np

from podzero.envs.boards.chess import CHESS_SIZES
from podzero.envs.notation import SHOGI_GAMES, notation_of
from podzero.envs.registry import GAMES
from podzero.tools.play.board import Drawing, Square
from podzero.tools.play.game import Game
from podzero.tools.play.observed_boards import owners
from podzero.tools.play.piece_boards import chess_drawing, shogi_drawing
from podzero.types import EnvSpec


def drawing_of(game: Game) -> Drawing | None:
    """The board of the position that is shown; None if its observation is not one of a board."""
    spec = game.env.spec
    if spec.name in CHESS_SIZES:
        return chess_drawing(game)
    if spec.name in SHOGI_GAMES:
        return shogi_drawing(game)
    observation = np.asarray(game.position.view.observation)
    if observation.ndim != 3:
        return None
    owner, text = _known_stones(game, observation) if spec.name in GAMES else _observed(game, observation)
    height, width = owner.shape
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


_Contents = tuple[np.ndarray[Any, Any], tuple[tuple[str, ...], ...]]
"""The owner of each square and what is written in it, as in a `Drawing`."""


def _known_stones(game: Game, observation: np.ndarray[Any, Any]) -> _Contents:
    """The stones of a game of the registry, whose first planes are those of the player to move and of the other."""
    owner, mover = np.full(observation.shape[:2], -1, np.int8), game.turn
    owner[observation[..., 0] != 0], owner[observation[..., 1] != 0] = mover, 1 - mover
    return owner, _blank(owner)


def _observed(game: Game, observation: np.ndarray[Any, Any]) -> _Contents:
    """Stones where the observation of an unknown game shows them, else the number of the first plane in each square."""
    owner = owners(game)
    if owner is not None:
        return owner, _blank(owner)
    planes = observation != 0
    text = tuple(tuple(str(int(np.argmax(square))) if square.any() else "" for square in row) for row in planes)
    return np.full(observation.shape[:2], -1, np.int8), text


def _blank(owner: np.ndarray[Any, Any]) -> tuple[tuple[str, ...], ...]:
    return tuple(("",) * owner.shape[1] for _ in owner)


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
