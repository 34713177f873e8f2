"""Boards as data and as text: each square's owner and label, and each action's squares.

Chess and shogi pieces are read from the game's state, stones of other games from the observation planes.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, permutations
from string import ascii_letters, ascii_lowercase, digits
from typing import Any, NamedTuple, cast

import numpy as np
from rich.text import Text

from podzero.core.types import EnvSpec
from podzero.envs.boards.chess import CHESS_SIZES
from podzero.envs.boards.hex import HEX_GAMES
from podzero.envs.notation import SHOGI_GAMES, ShogiGame, notation_of, pieces_of, square_seen_first
from podzero.envs.registry import GAMES
from podzero.tools.play.game import PlayableGame

_OWN = {*GAMES, *HEX_GAMES}
Square = tuple[int, int]
"""Row from the top and column from the left, from 0."""


class Drawing(NamedTuple):
    """A board position with its labels and legal actions."""

    owner: np.ndarray[Any, Any]
    """`[H, W]` int8: 0 for the stones or pieces of the player who began, 1 for the other player's, -1 for none."""
    text: tuple[tuple[str, ...], ...]
    """`[H][W]`, the text in each square; empty for stones."""
    rows: tuple[str, ...]
    """Labels of the rows, from the top."""
    columns: tuple[str, ...]
    """Labels of the columns, from the left."""
    squares: Mapping[int, tuple[Square, ...]]
    """The squares of each legal action: a piece's origin and target, or all squares that place the same stone."""
    moves_pieces: bool = False
    """Whether actions move pieces between squares, as in chess."""
    hands: int = 0
    """Number of columns of captured pieces on each side of the board: left for the second player, right for the first.
    """

    @property
    def size(self) -> Square:
        """Number of rows and of columns."""
        return int(self.owner.shape[0]), int(self.owner.shape[1])

    def actions_at(self, square: Square, origin: Square | None = None) -> list[int]:
        """The legal actions for a click on `square`: those from `origin` to it, if `origin` is given."""
        if origin is not None:
            return [action for action, squares in self.squares.items() if squares == (origin, square)]
        ends = 1 if self.moves_pieces else None
        return [action for action, squares in self.squares.items() if square in squares[:ends]]

    def in_hand(self, square: Square) -> bool:
        """Whether `square` lies outside the board, among the captured pieces that may be dropped."""
        return not self.hands <= square[1] < self.size[1] - self.hands


def drawing_of(game: PlayableGame) -> Drawing | None:
    """The board of the position shown; None if its observation is not a board."""
    spec = game.env.spec
    if spec.name in CHESS_SIZES:
        return chess_drawing(game)
    if spec.name in SHOGI_GAMES:
        return shogi_drawing(game)
    if spec.name == "2048":
        return tiles_drawing(game)
    planes = _planes(game)
    if planes.ndim != 3:
        return None
    height, width = planes.shape[:2]
    rows, columns = _labels(spec, height, width)
    # Plane 0 of a built-in game has the stones of the player to move, plane 1 the other player's.
    owner = Stones((0, 1), (0, 1), by_mover=True).owners(planes, game.turn) if spec.name in _OWN else owners(game)
    text = np.full((height, width), "")
    if owner is None:
        # The first nonzero plane of each square, for a person who knows the observation.
        owner = np.full((height, width), -1, np.int8)
        text = np.where(planes.any(axis=-1), planes.argmax(axis=-1).astype(str), "")
    squares = _squares_to_fill(game, height, width)
    if spec.name in HEX_GAMES and game.ply % 2:  # the second player sees the board transposed
        owner, squares = owner.T, {action: ((column, row),) for action, ((row, column),) in squares.items()}
    return Drawing(owner, tuple(map(tuple, text.tolist())), rows, columns, squares)


def last_squares(game: PlayableGame) -> tuple[Square, ...]:
    """The squares of the last move: origin and target of a piece, or the square of a stone."""
    if game.last_move is None:
        return ()
    # A drawing has squares for legal actions only, so take that of the position before the move.
    before = game.copy()
    before.take_back()
    drawing = drawing_of(before)
    if drawing is None:
        return ()
    squares = drawing.squares.get(game.last_move, ())
    return squares if drawing.moves_pieces else tuple(s for s in squares if drawing.owner[s] < 0)[-1:]


def _squares_to_fill(game: PlayableGame, height: int, width: int) -> dict[int, tuple[Square, ...]]:
    """The squares of each legal action in games of stones."""
    actions = game.env.spec.num_actions
    # One action per column, as in connect four.
    if actions == width:
        return {action: tuple((row, action) for row in range(height)) for action in game.legal}
    # One action per square, and perhaps a pass after them.
    if actions in (height * width, height * width + 1):
        return {action: (divmod(action, width),) for action in game.legal if action < height * width}
    return {}


def _labels(spec: EnvSpec, height: int, width: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels of rows and columns: those in the names of moves, or numbers for games without such names."""
    if spec.num_actions == width:
        names = notation_of(spec)
        return ("",) * height, tuple(names.names([column])[0] for column in range(width))
    if spec.num_actions not in (height * width, height * width + 1) or spec.name not in _OWN:
        return tuple(str(row + 1) for row in range(height)), tuple(str(column + 1) for column in range(width))
    names = notation_of(spec)
    named = [names.names([action])[0] for action in range(height * width)]
    rows = tuple(named[row * width].lstrip(ascii_letters) for row in range(height))
    return rows, tuple(name.rstrip(digits) for name in named[:width])


_PIECES = dict(zip("KQRBNPkqrbnp", "♔♕♖♗♘♙♚♛♜♝♞♟", strict=True))
_SQUARE_NAME = re.compile(r"([a-h])([0-9])")


def tiles_drawing(game: PlayableGame) -> Drawing:
    """The tiles of 2048 with their numbers; its actions have no squares."""
    levels = np.asarray(game.position.state.game.board)
    text = tuple(tuple(str(2**level) if level else "" for level in row) for row in levels.tolist())
    nothing = ("",) * len(levels)
    return Drawing(np.where(levels > 0, 0, -1).astype(np.int8), text, nothing, nothing, {})


def chess_drawing(game: PlayableGame) -> Drawing:
    """A chess board, with white at the bottom."""
    size = CHESS_SIZES[game.env.spec.name]
    pieces = pieces_of(game.state)
    ranks = [[pieces.get(f"{file}{rank}", "") for file in "abcdefgh"[:size]] for rank in range(size, 0, -1)]
    owner = np.array([[int(piece.islower()) if piece else -1 for piece in rank] for rank in ranks], np.int8)
    text = tuple(tuple(_PIECES.get(piece, "") for piece in rank) for rank in ranks)
    # The names of moves begin with the origin and the target, such as e7e8q.
    squares = {
        action: tuple((size - int(rank), "abcdefgh".index(file)) for file, rank in _SQUARE_NAME.findall(name)[:2])
        for action in game.legal
        for name in [game.name(action)]
    }
    rows = tuple(str(size - row) for row in range(size))
    return Drawing(owner, text, rows, tuple("abcdefgh"[:size]), squares, moves_pieces=True)


def shogi_drawing(game: PlayableGame) -> Drawing:
    """A board of shogi or animal shogi, with the first player at the bottom and captured pieces at the sides."""
    rules = SHOGI_GAMES[game.env.spec.name]
    # Board and hands are as the player to move sees them.
    board, hands, mover = (np.asarray(part) for part in rules.position(game.state))
    second = bool(mover)
    owner = np.full((rules.ranks, rules.files + 2), -1, np.int8)
    text = np.full(owner.shape, "", object)

    def put(square: Square, kind: int, of_second: bool, count: int = 1) -> None:
        # The letters of SFEN, in lower case for the second player.
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
    """The drawing's square for a square number as the player to move sees it."""
    file, rank = divmod(square_seen_first(rules, number, second), rules.ranks)
    return rank, rules.files - file


def _hand(rules: ShogiGame, kind: int, of_second: bool) -> Square:
    """The square of a kind of captured pieces: from the top for the second player, from the bottom for the first."""
    return (kind, 0) if of_second else (rules.ranks - 1 - kind, rules.files + 1)


Planes = np.ndarray[Any, np.dtype[np.bool_]]
"""`[H, W, planes]`, the nonzero entries of an observation."""
Owners = np.ndarray[Any, np.dtype[np.int8]]
"""`owner` of a `Drawing`."""
_LONGEST_GAME = 200
"""Plies after which the random game that shows the meaning of planes is cut off."""


class Stones(NamedTuple):
    """Which observation planes show stones."""

    varying: tuple[int, ...]
    """The planes that differ between squares: two of stones, and perhaps one of empty squares."""
    planes: tuple[int, int]
    """Those of the player to move and the other if `by_mover`, else of the first player and the other."""
    by_mover: bool
    upside_down: bool = False
    """Whether row 0 is the lowest row, to which stones fall."""

    def owners(self, planes: Planes, turn: int) -> Owners:
        """The owner of each square when player `turn` is to move."""
        first, second = self.planes[::-1] if self.by_mover and turn else self.planes
        owner = np.full(planes.shape[:2], -1, np.int8)
        owner[planes[..., first]], owner[planes[..., second]] = 0, 1
        return owner[::-1] if self.upside_down else owner

    def alternate(self, turns: Sequence[int], seen: Sequence[Planes]) -> bool:
        """Whether new stones of each player appear only when that player moves, and the first player's do appear."""
        owned = [self.owners(planes, turn) for planes, turn in zip(seen, turns, strict=True)]
        gains = [
            (turn, player)
            for turn, (before, after) in zip(turns, pairwise(owned), strict=False)
            for player in (0, 1)
            if ((after == player) & (before != player)).any()
        ]
        return (0, 0) in gains and all(turn == player for turn, player in gains)


def owners(game: PlayableGame) -> Owners | None:
    """The owner of each square in the position shown; None if its planes show more than stones."""
    stones, planes = _stones(cast(Hashable, game.env)), _planes(game)
    if stones is None or not _only_stones(planes, stones.varying):
        return None
    if not (game.over and game.ply and stones.by_mover):
        return stones.owners(planes, game.turn)
    # Once a game is over, nobody is to move: try both turns, and take the one that agrees with the position before.
    earlier = game.copy()
    earlier.take_back()
    before = stones.owners(_planes(earlier), earlier.turn)
    return max((stones.owners(planes, turn) for turn in (0, 1)), key=lambda seen: int((seen == before).sum()))


@lru_cache(maxsize=16)
def _stones(env: Any) -> Stones | None:
    """Infers from a random game which planes show stones; None if that is ambiguous or planes show more than stones."""
    if env.spec.players != 2:
        return None
    game, choose = PlayableGame(env), np.random.default_rng(0)
    seen = [_planes(game)]
    while not game.over and game.ply < _LONGEST_GAME:
        game.play(int(choose.choice(game.legal)))
        # At the end, nobody is to move.
        seen += [] if game.over else [_planes(game)]
    turns = [game.turn_at(ply) for ply in range(len(seen))]
    varying = tuple(i for i in range(seen[0].shape[-1]) if not all(_constant(planes[..., i]) for planes in seen))
    if len(varying) not in (2, 3) or not all(_only_stones(planes, varying) for planes in seen):
        return None
    # Both players start with the same number of stones.
    pairs = [pair for pair in permutations(varying, 2) if len({int(seen[0][..., one].sum()) for one in pair}) == 1]
    possible = [Stones(varying, pair, by_mover) for pair in pairs for by_mover in (False, True)]
    found = [stones for stones in possible if stones.alternate(turns, seen)]
    if len(found) != 1:
        return None
    falls = env.spec.num_actions == seen[0].shape[1] and bool((found[0].owners(seen[1], turns[1])[0] == 0).any())
    return found[0]._replace(upside_down=falls)


def _planes(game: PlayableGame) -> Planes:
    return cast(Planes, np.asarray(game.position.view.observation) != 0)


def _only_stones(planes: Planes, varying: Sequence[int]) -> bool:
    """Whether each square has at most one stone or mark in the `varying` planes, and all other planes are constant."""
    others = (i for i in range(planes.shape[-1]) if i not in varying)
    return all(_constant(planes[..., i]) for i in others) and bool((planes[..., varying].sum(axis=-1) <= 1).all())


def _constant(plane: Planes) -> bool:
    return bool(plane.all()) or not plane.any()


def handicap_squares(size: int, stones: int) -> list[Square]:
    """The points of a fixed handicap in Go, in the order of the GTP specification (section 4.1.1).

    None below 7 x 7, at most four on 7 x 7 and where no point is the centre, elsewhere nine.
    """
    stones = min(stones, 0 if size < 7 else 4 if size == 7 or size % 2 == 0 else 9)
    low, middle = 2 if size < 13 else 3, size // 2
    high = size - 1 - low
    corners = [(high, low), (low, high), (low, low), (high, high)]
    sides = [(middle, low), (middle, high), (high, middle), (low, middle)]
    # The centre is the last stone of 5, 7 and 9.
    around = stones if stones < len(corners) else stones - stones % 2
    return [*(corners + sides)[:around], *[(middle, middle)] * (stones - around)]


def checkers(game: PlayableGame) -> str:
    """Where the checkers of backgammon are, by the points' numbers for the player to move, and the dice."""
    position = game.position.state.game
    board, dice = np.asarray(position.board), np.asarray(position.dice)
    lines = []
    for number, sign in ((game.turn, 1), (1 - game.turn, -1)):
        counts = np.maximum(sign * board, 0)
        points = " ".join(f"{24 - place}:{count}" for place, count in enumerate(counts[:24].tolist()) if count)
        bar, off = (int(counts[first + (sign < 0)]) for first in (24, 26))
        lines.append(f"{_STONES[number]}  {points}  bar:{bar} off:{off}")
    rolled = " ".join(str(die + 1) for die in np.repeat(np.arange(6), dice))
    return "\n".join([*lines, f"{_STONES[game.turn]} to move, dice {rolled}"])


_COLOURS = ("bold red", "bold cyan")
_STONES = "XO"


def board_text(game: PlayableGame) -> Text:
    """The board with its labels, X for stones of the player who began and O for the other; moves if it has no board."""
    drawing = drawing_of(game)
    if drawing is None:
        return Text(checkers(game) if game.env.spec.name == "backgammon" else " ".join(game.names))
    width = max(map(len, (*drawing.rows, "")))
    cell = max(len(written) for row in (drawing.columns, *drawing.text) for written in (*row, "."))
    text = Text()
    for row, label in enumerate(drawing.rows):
        text.append(f"{label:>{width}}", style="dim")
        for column in range(drawing.size[1]):
            owner = int(drawing.owner[row, column])
            empty = " " if drawing.in_hand((row, column)) else "."
            written = drawing.text[row][column] or (empty if owner < 0 else _STONES[owner])
            text.append(f" {written:<{cell}}", style="dim" if owner < 0 else _COLOURS[owner])
        text.append("\n")
    labels = " ".join(f"{label:<{cell}}" for label in drawing.columns)
    text.append(f"{'':{width}} {labels}", style="dim")
    return text
