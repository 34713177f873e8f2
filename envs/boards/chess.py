"""Chess and Gardner's chess on bits, with the observations and actions of AlphaZero (Silver et al. 2018)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.core.types import Array
from podzero.envs.boards.bits import Bits, constant, either, intersection, single, turned, union
from podzero.envs.boards.chess_moves import (
    BISHOP,
    KINDS,
    KING,
    KNIGHT,
    PAWN,
    QUEEN,
    ROOK,
    UNDERPROMOTIONS,
    ChessMoves,
    KingSafety,
    Pieces,
)
from podzero.envs.boards.rules import BoardGame, BoardState, PlyResult

_QUIET = 100
"""Plies without a capture or a pawn's move after which a game is drawn."""
_CODES = np.arange(1, KINDS + 1)
"""The codes of the kinds of pieces; 0 is an empty square."""
_HISTORY = 8
"""Positions that an observation shows."""
_REMEMBERED = _QUIET + _HISTORY
"""Positions whose hashes are kept: an observed position can only repeat one of the `_QUIET` before it."""
_NOWHERE = -1
_KING_HOME = 32
_ROOK_HOMES = np.array([0, 56])
_CASTLED = ((0, 16, 24), (56, 48, 40))
"""On the queen's and on the king's side: the rook's home, the king's target, and the rook's target."""
_DARK = constant(sum(1 << square for square in range(64) if (square // 8 + square % 8) % 2 == 0))
_BACK_RANK = (ROOK, KNIGHT, BISHOP, QUEEN, KING, BISHOP, KNIGHT, ROOK)
_ZOBRIST = np.random.default_rng(64).integers(1, 2**32, (2, KINDS, 64), np.uint32)
_ZOBRIST_OTHER = np.random.default_rng(65).integers(1, 2**32, 5 + 64, np.uint32)
"""Hash numbers of the player to move, the four castling rights, and the en passant square."""


class ChessBoard(NamedTuple):
    """A position with its history. Squares are those of the player to move, whose pawns go up."""

    history: Bits
    """`[8, 4]`, the last positions, the newest first, seen by the first player. The four bits of a square: three hold 1
    to 6 for a pawn, knight, bishop, rook, queen or king, and the last marks the second player's pieces."""
    castling: Array
    """`[2, 2]` bool, whether the player to move (row 0) and the opponent may castle on the queen's (column 0) and on
    the king's side."""
    en_passant: Array
    """`[]` int8, the square that a pawn has just skipped by moving two squares, or -1."""
    quiet: Array
    """`[]` int8, plies since the last capture or pawn's move."""
    plies: Array
    """`[]` int16."""
    hashes: Array
    """`[108]` uint32, hashes of the last positions, the newest first; zero before the start."""


CHESS_SIZES = {"chess": 8, "gardner_chess": 5}
"""The size of the board of each game of `Chess`."""


class Chess(BoardGame):
    """`Env` of chess; action `planes * square + plane` is a move from a square, numbered file by file.

    A game is drawn by stalemate, by the third occurrence of a position, after 100 plies without a capture or a pawn's
    move, when neither player can mate, and after `max_plies`. Positions are compared by 32-bit hashes.

    Args:
      size: files and ranks: 8, or 5 for Gardner's chess, which has no castling and no double steps of pawns.
    """

    dtype = "float32"

    def __init__(self, size: int = 8) -> None:
        self._size, self._moves = size, ChessMoves(size)
        self._planes = len(self._moves.steps)
        self._deltas = np.array([8 * files + ranks for files, ranks in self._moves.steps], np.int32)
        self._squares = np.array([8 * file + rank for file in range(size) for rank in range(size)], np.int32)
        self._view = np.array([[8 * file + size - 1 - row for file in range(size)] for row in range(size)], np.int32)
        self.max_plies = 512 if size == 8 else 256
        (self.name,) = (name for name, known in CHESS_SIZES.items() if known == size)
        self.shape = (size, size, 14 * _HISTORY + (7 if size == 8 else 3))
        self.actions = size * size * self._planes

    def start(self) -> ChessBoard:
        """The initial position."""
        board = ChessBoard(
            history=self._initial_history(),
            castling=np.full((2, 2), self._size == 8),
            en_passant=np.full((), _NOWHERE, np.int8),
            quiet=np.zeros((), np.int8),
            plies=np.zeros((), np.int16),
            hashes=np.zeros(_REMEMBERED, np.uint32),
        )
        return board._replace(hashes=jnp.asarray(board.hashes).at[0].set(position_hash(board)))

    def play(self, board: ChessBoard, action: Array) -> PlyResult:
        """Moves a piece."""
        index, plane = action // self._planes, action % self._planes
        origin = 8 * (index // self._size) + index % self._size
        target = origin + jnp.sum(jnp.where(jnp.arange(self._planes) == plane, self._deltas, 0))
        pieces, start, end = self._pieces(board), single(origin), single(target)
        moving = (pieces.mine & start).any()
        pawn, king = moving[PAWN], moving[KING]
        passing = pawn & (board.en_passant != _NOWHERE) & (target == board.en_passant)
        # A pawn taken en passant stands one rank behind the target.
        removed = end | single(target - 1).when(passing)
        captures = (pieces.other() & end).any()
        arrives = _arrives(moving, pawn & (origin % 8 == self._size - 2), plane)
        mine = (pieces.mine & ~start) | Bits(*(word[None] for word in end)).when(arrives)
        mine = _castled(mine, king & (origin == _KING_HOME) & (self._size == 8), target)
        double = pawn & (jnp.abs(target - origin) == 2)
        # The next player sees the board from the other side: `^ 7` mirrors the rank, `[::-1]` swaps the rights.
        after = ChessBoard(
            history=self._remembered(board, mine, pieces.theirs & ~removed),
            castling=_castling(board.castling, origin, target)[::-1],
            en_passant=jnp.where(double, ((origin + target) // 2) ^ 7, _NOWHERE).astype(jnp.int8),
            quiet=jnp.where(pawn | captures, 0, board.quiet + 1).astype(jnp.int8),
            plies=board.plies + 1,
            hashes=board.hashes,
        )
        number = position_hash(after)
        after = after._replace(hashes=jnp.concatenate([number[None], board.hashes[:-1]]))
        return PlyResult(after, *self._ending(after))

    def step(self, state: BoardState, action: Array) -> BoardState:
        """Plays a legal action; see `BoardGame.step`."""
        after = super().step(state, action)
        # The end is computed again from the board that `view` sees: XLA then computes what both share only once, and
        # drops the result of `play`.
        result, done = self._ending(after.board)
        reward = jnp.where(state.player == 0, result, -result)
        return after._replace(reward=jnp.where(state.done, 0, reward).astype(jnp.int8), done=state.done | done)

    def _ending(self, board: ChessBoard) -> tuple[jax.Array, jax.Array]:
        """`[]` int8, 1 if the player who moved has won; `[]` bool, whether the game is over."""
        # Seen by the player to move, who has lost if mated.
        seen = self._pieces(board)
        guard = self._moves.guard(seen)
        stuck = ~self._origins(board, seen, guard).joined().any()
        mate = stuck & (guard.checks > 0)
        repeated = jnp.sum(board.hashes == board.hashes[0]) > 2
        done = stuck | (board.quiet >= _QUIET) | _cannot_mate(seen) | repeated | (board.plies >= self.max_plies)
        return mate.astype(jnp.int8), done

    def legal(self, board: ChessBoard) -> jax.Array:
        """The legal moves."""
        pieces = self._pieces(board)
        return self._origins(board, pieces, self._moves.guard(pieces)).members(self._squares).T.reshape(-1)

    def checks(self, board: ChessBoard) -> jax.Array:
        """The number of pieces that give check to the player to move, `[]` int32."""
        return self._moves.guard(self._pieces(board)).checks

    def observe(self, board: ChessBoard) -> jax.Array:
        """The pieces and repetitions of the last eight positions; turn, plies, castling rights and quiet plies."""
        first, second = _sets(board.history)
        turn = board.plies % 2 == 1
        mine, theirs = either(turn, self._turned(second), first), either(turn, self._turned(first), second)
        planes = jnp.concatenate([mine.members(self._view), theirs.members(self._view)], axis=1)
        shown = board.hashes[:_HISTORY]
        # A hash of zero stands for a position before the start.
        repeated = (jnp.sum(shown[:, None] == board.hashes, axis=1) > 1) & (shown != 0)
        again = jnp.stack([~repeated, repeated], axis=1)[:, :, None, None]
        again = jnp.broadcast_to(again, (_HISTORY, 2, self._size, self._size))
        positions = jnp.concatenate([planes, again], axis=1).reshape(-1, self._size, self._size)
        rights = board.castling.reshape(-1).astype(jnp.float32) if self._size == 8 else jnp.zeros(0)
        numbers = jnp.concatenate([
            jnp.stack([turn.astype(jnp.float32), board.plies / self.max_plies]), rights, board.quiet[None] / 100.0,
        ])  # fmt: skip
        constants = jnp.broadcast_to(numbers[:, None, None], (len(numbers), self._size, self._size))
        return jnp.concatenate([positions.astype(jnp.float32), constants]).transpose(1, 2, 0)

    def _initial_history(self) -> Bits:
        planes, last = [0, 0, 0, 0], self._size - 1
        for file, kind in enumerate(_BACK_RANK[: self._size]):
            codes = {0: kind + 1, 1: PAWN + 1, last - 1: PAWN + 9, last: kind + 9}
            for rank, code in codes.items():
                for bit in range(4):
                    planes[bit] |= (code >> bit & 1) << 8 * file + rank
        words = np.zeros((2, _HISTORY, 4), np.uint32)
        words[0, 0], words[1, 0] = [plane % 2**32 for plane in planes], [plane >> 32 for plane in planes]
        return Bits(jnp.asarray(words[0]), jnp.asarray(words[1]))

    def _turned(self, squares: Bits) -> Bits:
        """The squares as the other player sees them."""
        seen = turned(squares)
        return seen if self._size == 8 else seen.down(8 - self._size)

    def _pieces(self, board: ChessBoard) -> Pieces:
        """The pieces as the player to move sees them."""
        first, second = _sets(Bits(board.history.low[0], board.history.high[0]))
        turn = board.plies % 2 == 1
        return Pieces(either(turn, self._turned(second), first), either(turn, self._turned(first), second))

    def _origins(self, board: ChessBoard, pieces: Pieces, guard: KingSafety) -> Bits:
        """The origins of the legal moves of each plane, `[planes]`."""
        return self._moves.legal(pieces, guard, board.castling[0], single(board.en_passant.astype(jnp.int32)))

    def _remembered(self, board: ChessBoard, mine: Bits, theirs: Bits) -> Bits:
        """The history with a new position, in which the player who moved has the pieces `mine`."""
        turn = board.plies % 2 == 1
        first, second = either(turn, self._turned(theirs), mine), either(turn, self._turned(mine), theirs)
        both, planes = first | second, []
        for bit in range(3):
            held = [kind for kind in range(KINDS) if (kind + 1) >> bit & 1]
            planes.append(union(Bits(both.low[kind], both.high[kind]) for kind in held))
        planes.append(union(Bits(second.low[kind], second.high[kind]) for kind in range(KINDS)))
        low, high = (jnp.stack(words)[None] for words in zip(*planes, strict=True))
        return Bits(jnp.concatenate([low, board.history.low[:-1]]), jnp.concatenate([high, board.history.high[:-1]]))


def _sets(history: Bits) -> tuple[Bits, Bits]:
    """The pieces of the first and the second player: `[..., 4]` to `[..., 6]` each."""
    plane = [Bits(history.low[..., bit, None], history.high[..., bit, None]) for bit in range(4)]
    kinds = intersection(either(_CODES >> bit & 1 == 1, plane[bit], ~plane[bit]) for bit in range(3))
    return kinds & ~plane[3], kinds & plane[3]


def _arrives(moving: jax.Array, promotes: Array, plane: Array) -> jax.Array:
    """The kind of the piece that arrives, `[6]` bool."""
    kinds = jnp.arange(KINDS)
    under = ROOK - plane // 3  # a rook, a bishop, a knight
    promoted = jnp.where(plane < UNDERPROMOTIONS, kinds == under, kinds == QUEEN)
    return jnp.where(promotes, promoted, moving)


def _castled(mine: Bits, king_moves: Array, target: Array) -> Bits:
    """One's own pieces with the rook moved, if the king has castled."""
    for home, to, rook_to in _CASTLED:
        castles = king_moves & (target == to)
        rook = np.arange(KINDS) == ROOK
        leave, arrive = (_at(square, rook).when(castles) for square in (home, rook_to))
        mine = (mine & ~leave) | arrive
    return mine


def _at(square: int, kinds: np.ndarray[Any, Any]) -> Bits:
    """A square in the sets of some kinds, `[6]`."""
    one = constant(1 << square)
    return Bits(np.where(kinds, one.low, np.uint32(0)), np.where(kinds, one.high, np.uint32(0)))


def _castling(rights: Array, origin: Array, target: Array) -> jax.Array:
    """The rights after a move that leaves a home square, or takes a rook at home."""
    keeps_mine = (origin != _KING_HOME) & (origin != _ROOK_HOMES)
    keeps_theirs = target != _ROOK_HOMES + 7
    return jnp.asarray(rights & jnp.stack([keeps_mine, keeps_theirs]))


def position_hash(board: ChessBoard) -> jax.Array:
    """The Zobrist hash of a position, `[]` uint32."""
    squares = np.arange(64, dtype=np.int32)
    sides = _sets(Bits(board.history.low[0], board.history.high[0]))
    numbers = [jnp.where(side.members(squares), table, 0) for side, table in zip(sides, _ZOBRIST, strict=True)]
    flags = jnp.concatenate([
        (board.plies % 2 == 1)[None], board.castling.reshape(-1), squares == board.en_passant,
    ])  # fmt: skip
    other = jax.lax.reduce_xor(jnp.where(flags, _ZOBRIST_OTHER, 0), (0,))
    return jax.lax.reduce_xor(jnp.stack(numbers), (0, 1, 2)) ^ other


def _cannot_mate(pieces: Pieces) -> jax.Array:
    """Whether neither player can mate: kings alone, with one bishop or knight, or with bishops of one colour."""
    count = (pieces.own() | pieces.other()).size()
    heavy = (pieces.own(PAWN, ROOK, QUEEN) | pieces.other(PAWN, ROOK, QUEEN)).any()
    bishops = pieces.own(BISHOP) | pieces.other(BISHOP)
    dark = (bishops & _DARK).size()
    one_colour = (dark == 0) | (dark == bishops.size())
    return (count <= 2) | ((count == 3) & ~heavy) | ((count == bishops.size() + 2) & one_colour)
