"""The moves of shogi and animal shogi in USI notation (http://hgm.nubati.net/usi.html).

A move is its origin and target, such as 7g7f, with a + if the piece promotes. A drop is a piece and its target: P*5e.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from podzero.core.types import EnvState
from podzero.envs.notation.names import NotationError

ShogiBoard = np.ndarray[Any, np.dtype[np.int64]]
"""`[squares]`: the kind of the piece on each square, plus the number of kinds if the opponent owns it; -1 if empty.
Squares are numbered down the files, starting at the right one, as the player to move sees them.
"""

_FORM = re.compile(r"(?:[A-Z]\*|[1-9][a-i])([1-9])([a-i])\+?", re.IGNORECASE | re.ASCII)


class ShogiMove(NamedTuple):
    """An action, as the player to move sees it."""

    origin: int | None
    """Square of the piece; None for a drop."""
    target: int
    piece: int
    """Kind of the piece before a promotion."""
    promoted: int
    """Kind of the piece on the target square."""
    marked: bool = False
    """Whether the name ends in +. Animal shogi has no +: a chick that can promote always does."""


class ShogiGame(NamedTuple):
    """The properties of shogi or animal shogi."""

    files: int
    ranks: int
    letters: tuple[str, ...]
    """The letter of each kind of piece of the first player."""
    start: str
    """Initial position in SFEN."""
    decode: Callable[[ShogiBoard, int], ShogiMove | None]
    """Decodes an action; None if no piece can make the move."""
    actions_to: Callable[[int], Iterable[int]]
    """All actions that might lead to a square."""
    position: Callable[[Any], tuple[Any, Any, Any]]
    """From a state: the board, the hands `[2, kinds in hand]` (the player to move first), and who moves (0: first)."""

    @property
    def kinds(self) -> int:
        """The number of kinds of pieces."""
        return len(self.letters)


# The steps of shogi's ten directions from the origin of a move to its target, in files from the right and ranks; the
# last two are those of the knight.
_SHOGI_STEPS = ((0, -1), (1, -1), (-1, -1), (1, 0), (-1, 0), (0, 1), (1, 1), (-1, 1), (1, -2), (-1, -2))
_KNIGHT_STEPS = 2
_ANIMAL_STEPS = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))
_CHICK, _HEN = 0, 4


def _shogi_move(board: ShogiBoard, action: int) -> ShogiMove | None:
    """An action is a direction, with or without promotion, or a piece to drop; and the target."""
    direction, target = divmod(action, 81)
    if direction >= 20:
        return ShogiMove(None, target, direction - 20, direction - 20)
    files, ranks = _SHOGI_STEPS[direction % 10]
    file, rank = divmod(target, 9)
    for _ in range(1 if direction % 10 >= len(_SHOGI_STEPS) - _KNIGHT_STEPS else 8):
        file, rank = file - files, rank - ranks
        if not (0 <= file < 9 and 0 <= rank < 9):
            return None
        piece = int(board[9 * file + rank])
        if 0 <= piece < 14:
            promotes = direction >= 10
            return ShogiMove(9 * file + rank, target, piece, piece + 8 if promotes else piece, promotes)
    return None


def _animal_move(board: ShogiBoard, action: int) -> ShogiMove | None:
    """An action is a step and its origin, or a piece to drop and its target."""
    kind, square = divmod(action, 12)
    if kind >= len(_ANIMAL_STEPS):
        return ShogiMove(None, square, kind - len(_ANIMAL_STEPS), kind - len(_ANIMAL_STEPS))
    file, rank = square // 4 + _ANIMAL_STEPS[kind][0], square % 4 + _ANIMAL_STEPS[kind][1]
    piece = int(board[square])
    if not (0 <= file < 3 and 0 <= rank < 4 and 0 <= piece < 5):
        return None
    return ShogiMove(square, 4 * file + rank, piece, _HEN if piece == _CHICK and rank == 0 else piece)


SHOGI_GAMES = {
    "shogi": ShogiGame(
        files=9, ranks=9, letters=("P", "L", "N", "S", "B", "R", "G", "K", "+P", "+L", "+N", "+S", "+B", "+R"),
        start="lnsgkgsnl/1r5b1/ppppppppp/9/9/9/PPPPPPPPP/1B5R1/LNSGKGSNL", decode=_shogi_move,
        actions_to=lambda square: range(square, 27 * 81, 81),
        position=lambda state: (state._x.board, state._x.hand, state._x.color),
    ),
    "animal_shogi": ShogiGame(
        files=3, ranks=4, letters=("C", "E", "G", "L", "H"), start="gle/1c1/1C1/ELG", decode=_animal_move,
        actions_to=lambda _: range(11 * 12), position=lambda state: (state._board, state._hand, state._turn),
    ),
}  # fmt: skip
"""In animal shogi a chick (C) becomes a hen (H); E, G and L are elephant, giraffe and lion."""


class ShogiNames:
    """Names of moves. Actions are numbered from the mover's side of the board, names from the first player's."""

    def __init__(self, name: str) -> None:
        self._name, self._game = name, SHOGI_GAMES[name]

    def name(self, state: EnvState, action: int) -> str:
        """See `Notation`."""
        board, second = self._position(state)
        return self._named(board, second, action)

    def action(self, state: EnvState, name: str) -> int:
        """See `Notation`."""
        board, second = self._position(state)
        found = _FORM.fullmatch(name)
        file, rank = (int(found[1]) - 1, ord(found[2].lower()) - ord("a")) if found else (self._game.files, 0)
        if file < self._game.files and rank < self._game.ranks:
            square = square_seen_first(self._game, self._game.ranks * file + rank, second)
            for action in self._game.actions_to(square):
                if self._named(board, second, action).lower() == name.lower():
                    return action
        raise NotationError(f"'{name}' is not a move of {self._name} in this position; moves look like 1c1b or P*2b")

    def names(self, actions: Sequence[int]) -> list[str]:
        """See `LineNotation`. Follows the pieces."""
        board, named = board_of(self._game), list[str]()
        for ply, action in enumerate(actions):
            named.append(self._named(board, ply % 2 == 1, action))
            board = self._after(board, action)
        return named

    def _position(self, state: EnvState) -> tuple[ShogiBoard, bool]:
        board, _, mover = self._game.position(state)
        return np.asarray(board).astype(np.int64), bool(mover)

    def _named(self, board: ShogiBoard, second: bool, action: int) -> str:
        """The name of an action; empty if no piece can make the move."""
        move = self._game.decode(board, action)
        if move is None:
            return ""
        origin = f"{self._game.letters[move.piece]}*" if move.origin is None else self._square(move.origin, second)
        return f"{origin}{self._square(move.target, second)}{'+' if move.marked else ''}"

    def _square(self, square: int, second: bool) -> str:
        file, rank = divmod(square_seen_first(self._game, square, second), self._game.ranks)
        return f"{file + 1}{chr(ord('a') + rank)}"

    def _after(self, board: ShogiBoard, action: int) -> ShogiBoard:
        """The board as the other player sees it after the move."""
        move, kinds = self._game.decode(board, action), self._game.kinds
        assert move is not None
        after = board.copy()
        if move.origin is not None:
            after[move.origin] = -1
        after[move.target] = move.promoted
        return np.where(after < 0, -1, (after + kinds) % (2 * kinds))[::-1]


def square_seen_first(game: ShogiGame, square: int, second: bool) -> int:
    """Converts a square between the view of one player and that of the first player, in both directions."""
    return game.files * game.ranks - 1 - square if second else square


def board_of(game: ShogiGame) -> ShogiBoard:
    """The initial position of a game."""
    board = np.full((game.files, game.ranks), -1, np.int64)
    for rank, row in enumerate(game.start.split("/")):
        expanded = "".join(" " * int(letter) if letter.isdigit() else letter for letter in row)
        for column, letter in enumerate(expanded):
            if letter != " ":
                kind = game.letters.index(letter.upper())
                board[game.files - 1 - column, rank] = kind if letter.isupper() else kind + game.kinds
    return board.reshape(-1)
