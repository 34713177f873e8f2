"""The boards of games in which pieces move: chess and shogi."""

from __future__ import annotations

import re
from string import ascii_lowercase

import numpy as np

from podzero.envs.boards.chess import CHESS_SIZES
from podzero.envs.notation import SHOGI_GAMES, ShogiGame, fen_of, square_seen_first
from podzero.tools.play.board import Drawing, Square
from podzero.tools.play.game import Game

_PIECES = dict(zip("KQRBNPkqrbnp", "♔♕♖♗♘♙♚♛♜♝♞♟", strict=True))
_SQUARE_NAME = re.compile(r"([a-h])([0-9])")


def chess_drawing(game: Game) -> Drawing:
    """The board of chess, white below."""
    size = CHESS_SIZES[game.env.spec.name]
    ranks = fen_of(game.state, size).split()[0].split("/")
    expanded = [re.sub(r"[0-9]+", lambda found: " " * int(found[0]), rank) for rank in ranks]
    owner = np.array([[-1 if p == " " else int(p.islower()) for p in rank] for rank in expanded], np.int8)
    text = tuple(tuple(_PIECES.get(piece, "") for piece in rank) for rank in expanded)
    squares = {
        action: tuple((size - int(rank), "abcdefgh".index(file)) for file, rank in _SQUARE_NAME.findall(name)[:2])
        for action in game.legal
        for name in [game.name(action)]
    }
    rows = tuple(str(size - row) for row in range(size))
    return Drawing(owner, text, rows, tuple("abcdefgh"[:size]), squares, moves_pieces=True)


def shogi_drawing(game: Game) -> Drawing:
    """The board of shogi or animal shogi, the first player below; captured pieces with their number at the sides.

    Pieces have the letters of SFEN, those of the second player in lower case.
    """
    rules = SHOGI_GAMES[game.env.spec.name]
    board, hands, mover = (np.asarray(part) for part in rules.position(game.state))
    second = bool(mover)
    owner = np.full((rules.ranks, rules.files + 2), -1, np.int8)
    text = np.full(owner.shape, "", object)

    def put(square: Square, kind: int, of_second: bool, count: int = 1) -> None:
        letter = rules.letters[kind].lower() if of_second else rules.letters[kind]
        owner[square], text[square] = of_second, letter if count == 1 else f"{letter}{count}"

    for number, piece in enumerate(board):
        if piece >= 0:
            put(_square(rules, number, second), piece % rules.kinds, second ^ (piece >= rules.kinds))
    for of_other, hand in enumerate(hands):
        for kind in np.flatnonzero(hand):
            of_second = second ^ bool(of_other)
            put(_hand(rules, int(kind), of_second), int(kind), of_second, int(hand[kind]))
    squares = {}
    for action in game.legal:
        move = rules.decode(board, action)
        assert move is not None
        held = _hand(rules, move.piece, second)
        origin = held if move.origin is None else _square(rules, move.origin, second)
        squares[action] = (origin, _square(rules, move.target, second))
    files = (str(rules.files - column) for column in range(rules.files))
    rows = tuple(ascii_lowercase[: rules.ranks])
    return Drawing(owner, tuple(map(tuple, text)), rows, ("", *files, ""), squares, moves_pieces=True, hands=1)


def _square(rules: ShogiGame, number: int, second: bool) -> Square:
    """The square of the drawing, from a number as the player to move sees it."""
    file, rank = divmod(square_seen_first(rules, number, second), rules.ranks)
    return rank, rules.files - file


def _hand(rules: ShogiGame, kind: int, of_second: bool) -> Square:
    """Where captured pieces are shown: those of the second player from the top, of the first from the bottom."""
    return (kind, 0) if of_second else (rules.ranks - 1 - kind, rules.files + 1)
