"""The moves of chess as UCI writes them: the squares of origin and target, and the piece of a promotion, as e7e8q."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from podzero.envs.boards.chess_moves import UNDERPROMOTIONS, ChessMoves, Step
from podzero.envs.notation.names import NotationError
from podzero.types import EnvState

_PROMOTIONS = "rbn"
"""The pieces of planes 0 to 2, 3 to 5 and 6 to 8."""
_FILES = "abcdefgh"
_FORM = re.compile(r"([a-h])([1-8])([a-h])([1-8])([qrbn]?)", re.IGNORECASE)


class ChessNames:
    """Names on a board of `size` files and ranks.

    Actions are numbered from the side of the player to move, and a pawn's move to the last rank is a promotion to a
    queen, so names depend on whose turn it is and on where pawns are: a set of bits, `8 * file + rank`, as the first
    player sees them.
    """

    def __init__(self, game: str, size: int) -> None:
        self._game, self._size = game, size
        self._steps = ChessMoves(size).steps
        self._start = sum(1 << 8 * file + rank for file in range(size) for rank in (1, size - 2))

    @cached_property
    def _planes(self) -> dict[tuple[Step, str], int]:
        """The plane of a step, as the player to move sees it, and an underpromotion."""
        return {
            (step, _PROMOTIONS[plane // 3] if plane < UNDERPROMOTIONS else ""): plane
            for plane, step in enumerate(self._steps)
        }

    def name(self, state: EnvState, action: int) -> str:
        """See `Notation`."""
        return self._named(pawns_of(state), not white_to_move(state), action)

    def action(self, state: EnvState, name: str) -> int:
        """See `Notation`."""
        found = _FORM.fullmatch(name)
        action = None if found is None else self._encoded(not white_to_move(state), *found.groups())
        if action is None or self.name(state, action) != name.lower():
            raise NotationError(
                f"'{name}' is no move of {self._game} in this position; moves are named as e2e4 or a7a8q"
            )
        return action

    def names(self, actions: Sequence[int]) -> list[str]:
        """See `LineNotation`. Follows the pawns; one taken en passant may remain, because it is never moved again."""
        pawns = self._start
        named: list[str] = []
        for ply, action in enumerate(actions):
            origin, target, _ = self._squares(ply % 2 == 1, action)
            named.append(self._named(pawns, ply % 2 == 1, action))
            stays = pawns >> origin & 1 and len(named[-1]) == 4
            pawns = (pawns & ~(1 << origin | 1 << target)) | (stays << target)
        return named

    def _squares(self, second: bool, action: int) -> tuple[int, int, int]:
        """Origin and target as the first player sees them, and the plane."""
        index, plane = divmod(action, len(self._steps))
        file, rank = divmod(index, self._size)
        files, ranks = self._steps[plane]
        ends = ((file, rank), (file + files, rank + ranks))
        origin, target = (8 * file + (self._size - 1 - rank if second else rank) for file, rank in ends)
        return origin, target, plane

    def _named(self, pawns: int, second: bool, action: int) -> str:
        origin, target, plane = self._squares(second, action)
        if plane < UNDERPROMOTIONS:
            promotion = _PROMOTIONS[plane // 3]
        else:
            last = 0 if second else self._size - 1
            promotion = "q" if pawns >> origin & 1 and target % 8 == last else ""
        return f"{_square(origin)}{_square(target)}{promotion}"

    def _encoded(self, second: bool, file: str, rank: str, to_file: str, to_rank: str, promotion: str) -> int | None:
        """The action, or None if no piece moves like this or a square is not on the board."""
        squares = [_FILES.index(file.lower()), int(rank) - 1, _FILES.index(to_file.lower()), int(to_rank) - 1]
        if max(squares) >= self._size:
            return None
        if second:
            squares[1::2] = [self._size - 1 - rank for rank in squares[1::2]]
        step = (squares[2] - squares[0], squares[3] - squares[1])
        plane = self._planes.get((step, promotion.lower().replace("q", "")))
        return None if plane is None else len(self._steps) * (self._size * squares[0] + squares[1]) + plane


def pawns_of(state: EnvState) -> int:
    """The pawns of both players, as a set of bits."""
    words = (np.asarray(state.board.history.low)[0], np.asarray(state.board.history.high)[0])
    low, high = (int(planes[0] & ~planes[1] & ~planes[2]) for planes in words)
    return low | high << 32


def white_to_move(state: EnvState) -> bool:
    """Whether it is white's turn in a state of `Chess`, also after a FEN in which black moved first."""
    return int(state.board.plies) % 2 == 0


def _square(square: int) -> str:
    return f"{_FILES[square // 8]}{square % 8 + 1}"
