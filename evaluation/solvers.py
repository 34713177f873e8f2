"""Solvers: exact scores of every action in games that can be solved. They take observations, as networks do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any

import numpy as np

from podzero.core.errors import ConfigError
from podzero.core.importing import import_extra

Scores = np.ndarray[Any, np.dtype[np.float32]]
"""`[B, A]` float32, NaN for illegal actions."""


Solver = Callable[[np.ndarray[Any, Any]], Scores]
"""The exact scores of all actions for the player to move, from `[B, *observation_shape]` of non-terminal positions.

Positive scores win, zero draws, negative ones lose; sooner wins and later losses score higher.
"""


def game_values(scores: Scores) -> Scores:
    """Game values of scores: 1 wins, 0 draws, -1 loses, NaN is illegal."""
    values: Scores = np.sign(scores)
    return values


def _planes_of_the_mover(board: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Planes of the player to move and the opponent, from planes of players 0 and 1 and one with the mover's number."""
    first, second, mover = board[..., :1], board[..., 1:2], board[..., -1:]
    return np.where(mover == 0, np.concatenate([first, second], -1), np.concatenate([second, first], -1))


_ELSEWHERE: Mapping[str, tuple[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]]] = {
    # Row 0 of OpenSpiel's board is the lowest.
    "open_spiel/connect_four": ("connect_four", lambda seen: _planes_of_the_mover(seen[..., ::-1, :, :])),
    "open_spiel/connect_four(egocentric_obs_tensor=True)": ("connect_four", lambda seen: seen[..., ::-1, :, 1::-1]),
    "open_spiel/tic_tac_toe": ("tic_tac_toe", lambda seen: _planes_of_the_mover(seen[..., [2, 1, 3]])),
}
"""Games of other libraries that have a JAX version: its name, and the conversion of observations to its format."""
SOLVED = ("connect_four", "tic_tac_toe", *_ELSEWHERE)
"""Games that have a solver."""


def known_game(name: str) -> str:
    """The name of the JAX version of another library's solved game; for other games `name` itself."""
    return _ELSEWHERE[name][0] if name in _ELSEWHERE else name


@cache
def make_solver(game: str) -> Solver:
    """The solver of a game; cached.

    Raises:
      ConfigError: the game has no solver, or the solver's package (extra `solver`) is not installed.
    """
    match game:
        case "tic_tac_toe":
            return tic_tac_toe_solver()
        case "connect_four":
            return connect_four_solver()
        case _ if game in _ELSEWHERE:
            name, translate = _ELSEWHERE[game]
            solver = make_solver(name)
            return lambda observations: solver(translate(np.asarray(observations)).astype(np.bool_))
        case _:
            raise ConfigError(f"no solver for '{game}'; games with one: {', '.join(SOLVED)}")


_POWERS_OF_3 = 3 ** np.arange(9)
_OTHER_SIDE = (0, 2, 1)
_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def tic_tac_toe_solver() -> Solver:
    """A table of all positions, by negamax; a win with e empty cells left scores e + 1, a loss -(e + 1)."""
    table = np.full((3**9, 9), np.nan, np.float32)

    def fill(cells: tuple[int, ...]) -> float:
        """The score of a position (0 empty, 1 the mover's, 2 the opponent's); fills the table for its subtree."""
        empty = cells.count(0)
        if any(all(cells[cell] == 2 for cell in line) for line in _LINES):
            return -(empty + 1)
        if not empty:
            return 0
        row = table[int(np.dot(cells, _POWERS_OF_3))]
        if np.isnan(row).all():
            for cell in (cell for cell in range(9) if not cells[cell]):
                played = (*cells[:cell], 1, *cells[cell + 1 :])
                row[cell] = -fill(tuple(_OTHER_SIDE[mark] for mark in played))
        return float(np.nanmax(row))

    def solve(observations: np.ndarray[Any, Any]) -> Scores:
        mine, theirs = (observations[..., side].reshape(-1, 9).astype(np.int64) for side in (0, 1))
        rows: Scores = table[(mine + 2 * theirs) @ _POWERS_OF_3]
        return rows

    fill((0,) * 9)
    return solve


def connect_four_solver() -> Solver:
    """BitBully with its 12-ply book (Thill, https://github.com/MarkusThill/BitBully).

    A win scores the number of moves the winner has left. Solved positions are cached. The slowest positions, just
    beyond the book, take about 0.2 s each on one core.
    """
    library = import_extra("bitbully", "solving connect four", "solver")
    bitbully = library.BitBully()

    @lru_cache(maxsize=200_000)
    def solve_board(packed: bytes) -> tuple[float, ...]:
        board = np.unpackbits(np.frombuffer(packed, np.uint8))[: 6 * 7 * 2].reshape(6, 7, 2)
        # Plane 0 holds the stones of the player to move; BitBully's player 1 is the one who began.
        mover = 1 if board[..., 0].sum() == board[..., 1].sum() else 2
        marks = mover * board[..., 0] + (3 - mover) * board[..., 1]
        known = bitbully.score_all_moves(library.Board.from_array(marks.tolist()))
        return tuple(float(known.get(column, np.nan)) for column in range(7))

    def solve(observations: np.ndarray[Any, Any]) -> Scores:
        boards = np.asarray(observations).reshape(-1, 6, 7, 2)
        return np.array([solve_board(np.packbits(board).tobytes()) for board in boards], np.float32)

    return solve
