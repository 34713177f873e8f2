"""Chess as people write it: moves as in UCI (origin, target and promotion, such as e7e8q), and positions as FEN."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from podzero.core.types import EnvState
from podzero.envs.boards.bits import Bits
from podzero.envs.boards.chess import UNDERPROMOTIONS, Chess, ChessBoard, ChessMoves, history_of, position_hash
from podzero.envs.boards.rules import BoardState
from podzero.envs.notation.names import NotationError

_PROMOTIONS = "rbn"
"""The pieces of planes 0 to 2, 3 to 5 and 6 to 8."""
_FILES = "abcdefgh"
_FORM = re.compile(r"([a-h])([1-8])([a-h])([1-8])([qrbn]?)", re.IGNORECASE)


class ChessNames:
    """Names on a board of `size` files and ranks.

    Actions are numbered from the side of the player to move, and a pawn's move to the last rank promotes to a queen, so
    names depend on whose turn it is and on where pawns stand: bits `8 * file + rank`, as the first player sees them.
    """

    def __init__(self, game: str, size: int) -> None:
        self._game, self._size = game, size
        self._steps = ChessMoves(size).steps
        self._start = sum(1 << 8 * file + rank for file in range(size) for rank in (1, size - 2))
        # By the step, as the player to move sees it, and the underpromotion.
        self._planes = {
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
            raise NotationError(f"'{name}' is not a move of {self._game} in this position; moves are as e2e4 or a7a8q")
        return action

    def names(self, actions: Sequence[int]) -> list[str]:
        """See `LineNotation`."""
        # Follows the pawns. One taken en passant remains, which does no harm: it never moves again.
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
    first, second, third = (_bits(state.board.history, plane) for plane in range(3))
    return first & ~second & ~third


def white_to_move(state: EnvState) -> bool:
    """Whether it is white's turn, even if black moved first from a FEN."""
    return int(state.board.plies) % 2 == 0


def _square(square: int) -> str:
    return f"{_FILES[square // 8]}{square % 8 + 1}"


_PIECES = ".PNBRQK"
"""Letters by the code of a piece, 1 to 6."""
_RIGHTS = ("QK", "qk")
"""Castling rights of the first and the second player, on the queen's and on the king's side."""
_WINGS = {"Q": 0, "A": 0, "K": 1, "H": 1}
"""The wing of a castling right, which X-FEN and Shredder-FEN name by the file of the rook."""
_LATEST_PLY = 200
"""The latest ply at which a FEN's position starts, because the length of a game is limited."""


def fen_of(state: EnvState, size: int) -> str:
    """The FEN of a state of `Chess`, with the en passant square after every double step."""
    board: ChessBoard = state.board
    second = not white_to_move(state)
    pieces = pieces_of(state)
    ranks = ("".join(pieces.get(f"{file}{rank}", ".") for file in _FILES[:size]) for rank in range(size, 0, -1))
    rows = [re.sub(r"\.+", lambda found: str(len(found[0])), rank) for rank in ranks]
    castling = np.asarray(board.castling)[::-1] if second else np.asarray(board.castling)
    rights = "".join(_RIGHTS[side][wing] for side in (0, 1) for wing in (1, 0) if castling[side, wing])
    square = int(board.en_passant)
    passing = "-" if square < 0 else f"{_FILES[square // 8]}{(7 - square % 8 if second else square % 8) + 1}"
    number = int(board.plies) // 2 + 1
    return f"{'/'.join(rows)} {'b' if second else 'w'} {rights or '-'} {passing} {int(board.quiet)} {number}"


def pieces_of(state: EnvState) -> dict[str, str]:
    """The pieces of a state of `Chess` by square: letters as in FEN, capital ones for the first player's."""
    planes = [_bits(state.board.history, plane) for plane in range(4)]
    codes = {square: sum((plane >> square & 1) << bit for bit, plane in enumerate(planes)) for square in range(64)}
    return {
        f"{_FILES[square // 8]}{square % 8 + 1}": _PIECES[code] if code < 8 else _PIECES[code - 8].lower()
        for square, code in codes.items()
        if code
    }


def state_of(fen: str, size: int) -> BoardState:
    """The state of `Chess` that a FEN describes, without earlier positions.

    The last two fields may be missing.

    Raises:
      NotationError: the FEN is malformed, a player does not have exactly one king, a castling right lacks the king or
        the rook at home, or no pawn can have passed over the square for taking en passant.
    """
    fields = fen.split()
    if len(fields) == 4:
        fields += ["0", "1"]
    if len(fields) != 6 or fields[1] not in ("w", "b") or not all(re.fullmatch(r"\d{1,4}", f) for f in fields[4:]):
        raise NotationError(f"'{fen}' is not a FEN: expected pieces, w or b, castling, en passant, and two numbers")
    squares = _placed(fields[0], size)
    second = fields[1] == "b"
    plies = min(2 * max(int(fields[5]) - 1, 0), _LATEST_PLY) + second
    board = Chess(size).start()
    board = board._replace(
        history=history_of({at: _PIECES.index(piece.upper()) + 8 * piece.islower() for at, piece in squares.items()}),
        castling=_castling(fields[2], fen, squares, size)[:: -1 if second else 1],
        en_passant=np.asarray(_passing(fields[3], fen, squares, size, second), np.int8),
        quiet=np.asarray(min(int(fields[4]), 99), np.int8),
        plies=np.asarray(plies, np.int16),
    )
    board = board._replace(hashes=jnp.zeros_like(board.hashes).at[0].set(position_hash(board)))
    return BoardState(board, jnp.int32(second), jnp.zeros((), jnp.int8), jnp.zeros((), bool))


def _bits(history: Bits, plane: int) -> int:
    return int(np.asarray(history.low)[0, plane]) | int(np.asarray(history.high)[0, plane]) << 32


def _placed(text: str, size: int) -> dict[int, str]:
    """The pieces by square, `8 * file + rank`."""
    rows = [re.sub("[1-8]", lambda found: "." * int(found[0]), row) for row in text.split("/")]
    known = re.fullmatch("[1-8PNBRQKpnbrqk/]*", text)
    if not known or [len(row) for row in rows] != [size] * size:
        raise NotationError(f"'{text}' does not describe {size} ranks of {size} squares")
    squares = {
        8 * file + size - 1 - row: piece
        for row, pieces in enumerate(rows)
        for file, piece in enumerate(pieces)
        if piece != "."
    }
    pieces = list(squares.values())
    if pieces.count("K") != 1 or pieces.count("k") != 1:
        raise NotationError(f"'{text}': each player must have one king")
    if any(piece in "pP" and square % 8 in (0, size - 1) for square, piece in squares.items()):
        raise NotationError(f"'{text}': a pawn cannot stand on the first or the last rank")
    return squares


def _castling(text: str, fen: str, squares: dict[int, str], size: int) -> NDArray[np.bool_]:
    """`[2, 2]`, the first player's rights and the second's, on the queen's and on the king's side."""
    rights = np.zeros((2, 2), bool)
    for letter in "" if text == "-" else text:
        wing, second = _WINGS.get(letter.upper()), letter.islower()
        if wing is None or size != 8:
            raise NotationError(f"'{fen}': castling '{letter}': expected - or letters of KQkq (HAha)")
        king, rook = (32, 56 * wing) if not second else (32 + 7, 56 * wing + 7)
        if (squares.get(king), squares.get(rook)) != (("k", "r") if second else ("K", "R")):
            raise NotationError(f"'{fen}': castling '{letter}': no king on {_square(king)} or rook on {_square(rook)}")
        rights[int(second), wing] = True
    return rights


def _passing(text: str, fen: str, squares: dict[int, str], size: int, second: bool) -> int:
    """The square over which a pawn has moved, as the player to move sees it."""
    if text == "-":
        return -1
    if size != 8 or not re.fullmatch("[a-h]3" if second else "[a-h]6", text):
        raise NotationError(f"'{fen}': expected a square as e{3 if second else 6} or - for taking en passant")
    first = 8 * _FILES.index(text[0])
    origin, over, target = (first + rank for rank in ((1, 2, 3) if second else (6, 5, 4)))
    pawn = "P" if second else "p"
    if squares.get(target) != pawn or origin in squares or over in squares:
        raise NotationError(f"'{fen}': no pawn has just passed over {text}; write - for taking en passant")
    return first + 5
