"""Chess and Gardner's chess on bits, with the observations and actions of AlphaZero (Silver et al. 2018).

First the legal moves: one set of origins for each kind of move. Squares are numbered `8 * file + rank` from the side of
the player to move, whose pawns go up the ranks; smaller boards use the first files and ranks. The kinds of moves are
AlphaZero's planes: nine underpromotions, a queen's moves by direction and distance, and eight knight's moves.

No move is tried out. A pinned piece moves only along the line of its pin; in check a move must end between king and
attacker or on the attacker; the king avoids attacked squares.

Directions and moves are axes of arrays, and lines grow in a loop: XLA takes minutes to compile unrolled code, and would
repeat what moves share. Each step of a loop is a kernel on an accelerator: moves along lines are arrays over distances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.core.types import Array, Symmetry
from podzero.envs.boards.bits import EMPTY, Bits, constant, either, intersection, single, turned, union
from podzero.envs.boards.rules import BoardGame, BoardState, PlyResult, mirror

PAWN, KNIGHT, BISHOP, ROOK, QUEEN, KING = range(6)
"""The kinds of pieces."""
KINDS = 6

ChessStep = tuple[int, int]
"""Files and ranks of a move."""
Steps = np.ndarray[Any, np.dtype[np.int_]]
"""Files and ranks of moves, `[n, 2]`, or of one move, `[2]`."""

_DIRECTIONS = np.array([(0, -1), (0, 1), (-1, 0), (1, 0), (-1, -1), (1, 1), (-1, 1), (1, -1)])
"""By planes, in opposite pairs: the first of a pair begins with the greatest distance, the second with the least."""
_STRAIGHT = (_DIRECTIONS == 0).any(axis=1)
_DOWN, _UP, _LEFT, _RIGHT, _UP_RIGHT, _UP_LEFT = 0, 1, 2, 3, 5, 6
"""Indices into `_DIRECTIONS`."""
_PROMOTIONS = [_UP, _UP_RIGHT, _UP_LEFT]
"""Directions of planes 0 to 2, to a rook, and again of 3 to 5 (bishop) and 6 to 8 (knight)."""
_CAPTURES = [_UP_LEFT, _UP_RIGHT]
"""Directions in which pawns capture."""
_KNIGHT_STEPS = np.array([(-2, -1), (-2, 1), (-1, -2), (-1, 2), (2, -1), (2, 1), (1, -2), (1, 2)])
UNDERPROMOTIONS = 9
_KING_HOME = 32
_CASTLINGS = ((_LEFT, 0, (8, 16, 24), (16, 24, 32)), (_RIGHT, 56, (40, 48), (32, 40, 48)))
"""On the queen's and the king's side: the king's direction, the rook's home, squares to be empty, and not attacked."""
_QUIET = 100
"""Plies without a capture or a pawn's move after which a game is drawn."""
_CODES = np.arange(1, KINDS + 1)
"""The codes of the kinds of pieces; 0 is an empty square."""
_HISTORY = 8
"""Positions that an observation shows."""
_REMEMBERED = _QUIET + _HISTORY
"""Positions whose hashes are stored: an observed position can only repeat one of the `_QUIET` before it."""
_NOWHERE = -1
_ROOK_HOMES = np.array([0, 56])
_CASTLED = ((0, 16, 24), (56, 48, 40))
"""On the queen's and on the king's side: the rook's home, the king's target, and the rook's target."""
_DARK = constant(sum(1 << square for square in range(64) if (square // 8 + square % 8) % 2 == 0))
_BACK_RANK = (ROOK, KNIGHT, BISHOP, QUEEN, KING, BISHOP, KNIGHT, ROOK)
_ZOBRIST = np.random.default_rng(64).integers(1, 2**32, (2, KINDS, 64), np.uint32)
_ZOBRIST_OTHER = np.random.default_rng(65).integers(1, 2**32, 5 + 64, np.uint32)
"""Hash numbers of the player to move, the four castling rights, and the en passant square."""


class Pieces(NamedTuple):
    """The pieces of one position, as the player to move sees them."""

    mine: Bits
    """`[6]`, by kind."""
    theirs: Bits
    """`[6]`."""

    def own(self, *kinds: int) -> Bits:
        """Own pieces of some kinds, by default of all."""
        return _of_kinds(self.mine, *kinds)

    def other(self, *kinds: int) -> Bits:
        """The opponent's pieces of some kinds, by default of all."""
        return _of_kinds(self.theirs, *kinds)

    @property
    def empty(self) -> Bits:
        """The squares without a piece."""
        return ~(self.own() | self.other())


def _of_kinds(pieces: Bits, *kinds: int) -> Bits:
    return union(Bits(pieces.low[kind], pieces.high[kind]) for kind in kinds or range(KINDS))


def _sliders(pieces: Bits) -> Bits:
    """The pieces that move in each direction as far as they can, `[8]`."""
    return either(_STRAIGHT, _of_kinds(pieces, ROOK, QUEEN), _of_kinds(pieces, BISHOP, QUEEN))


class KingSafety(NamedTuple):
    """Checks, attacks and pins: what decides whether a move leaves the king safe."""

    checks: jax.Array
    """`[]` int32, the number of attackers."""
    attacked: Bits
    """The squares that the opponent attacks, also through one's king."""
    targets: Bits
    """Where pieces other than the king may move: anywhere without a check, to squares that end a single check."""
    pinned: Bits
    """`[8]`, the piece that is pinned in each direction."""


class ChessMoves:
    """The moves on a board of 8 files and ranks, or of 5, without double steps of pawns, en passant and castling."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._whole = size == 8
        far, near = range(size - 1, 0, -1), range(1, size)
        self._distances = np.array([near if way % 2 else far for way in range(len(_DIRECTIONS))])
        self._lines = _DIRECTIONS[:, None] * self._distances[..., None]
        promotions = [_DIRECTIONS[_PROMOTIONS[plane % 3]] for plane in range(UNDERPROMOTIONS)]
        steps = np.array([*promotions, *self._lines.reshape(-1, 2), *_KNIGHT_STEPS])
        self.steps: list[ChessStep] = [(files, ranks) for files, ranks in steps.tolist()]
        """Files and ranks of each plane's move."""

    def _rank(self, number: int) -> Bits:
        return constant(sum(1 << 8 * file + number for file in range(self._size)))

    def _inside(self, steps: Steps) -> Bits:
        """The squares from which a move stays on the board, for each step."""
        squares = np.array([(file, rank) for file in range(self._size) for rank in range(self._size)])
        ends = squares + steps[..., None, :]
        stays = ((ends >= 0) & (ends < self._size)).all(axis=-1)
        numbers = squares @ [8, 1]
        bits = np.where(stays, np.uint32(1) << (numbers % 32).astype(np.uint32), np.uint32(0))
        low, high = (np.where(numbers // 32 == word, bits, 0).sum(axis=-1, dtype=np.uint32) for word in range(2))
        return Bits(low, high)

    def moved(self, squares: Bits, steps: Steps) -> Bits:
        """The squares moved by each of `steps` (`[n, 2]`, or `[2]` for one); those that leave the board are lost.

        `squares` is one set, or one for each step in the last axis.
        """
        staying, by = squares & self._inside(steps), steps @ [8, 1]
        up = staying.up(np.maximum(by, 0)) if (by > 0).any() else staying
        return up.down(np.maximum(-by, 0)) if (by < 0).any() else up

    def _rays(self, start: Bits, empty: Bits) -> Bits:
        """The empty squares in each direction up to and including the first occupied one, `[8]`."""

        def farther(_: int, lines: Bits) -> Bits:
            return lines | self.moved(lines & empty, _DIRECTIONS)

        lines: Bits = jax.lax.fori_loop(0, self._size - 2, farther, self.moved(start, _DIRECTIONS))
        return lines

    def _attackers(self, pieces: Pieces, rays: Bits) -> Bits:
        """The opponent's pieces that attack one's king, from which lines run as far as `rays`."""
        king = pieces.own(KING)
        return union([
            (rays & _sliders(pieces.theirs)).joined(),
            self.moved(king, _KNIGHT_STEPS).joined() & pieces.other(KNIGHT),
            self.moved(king, _DIRECTIONS[_CAPTURES]).joined() & pieces.other(PAWN),
        ])  # fmt: skip

    def guard(self, pieces: Pieces) -> KingSafety:
        """The checks, attacks and pins of a position."""
        king, empty, sliders = pieces.own(KING), pieces.empty, _sliders(pieces.theirs)
        rays = self._rays(king, empty)
        attackers = self._attackers(pieces, rays)
        checks = attackers.size()
        # A check ends on the attacker, or between it and the king.
        ends = attackers | rays.when((rays & sliders).any()).joined()
        blockers = rays & pieces.own()
        attacked = union([
            # The king does not block: it cannot escape along the attacker's line.
            self._rays(sliders, empty | king).joined(),
            self.moved(pieces.other(KNIGHT), _KNIGHT_STEPS).joined(),
            self.moved(pieces.other(PAWN), -_DIRECTIONS[_CAPTURES]).joined(),
            self.moved(pieces.other(KING), _DIRECTIONS).joined(),
        ])  # fmt: skip
        return KingSafety(
            checks,
            attacked,
            self._inside(np.zeros(2, int)).when(checks == 0) | ends.when(checks == 1),
            blockers.when((self._rays(blockers, empty) & sliders).any()),
        )

    def legal(self, pieces: Pieces, guard: KingSafety, castling: jax.Array, en_passant: Bits) -> Bits:
        """The origins of the legal moves of each plane, `[planes]`.

        `castling` (`[2]` bool) is the rights to castle on the queen's and on the king's side, `en_passant` the square
        over which a pawn has just moved, or the empty set.
        """
        pinned, targets = guard.pinned.joined(), ~pieces.own() & guard.targets
        # A pinned piece may move along the line of its pin, in both directions.
        both_ways = (word | jnp.flip(word.reshape(-1, 2), 1).reshape(-1) for word in map(jnp.asarray, guard.pinned))
        free = ~pinned | Bits(*both_ways)
        pawns = pieces.own(PAWN) & free
        lines = self._along(_sliders(pieces.mine) & free, pieces.empty, targets)
        # Kings and pawns use the planes of lines too: distance 1, and distance 2 for double steps and castling.
        kings = pieces.own(KING) & self.moved(~guard.attacked & ~pieces.own(), -_DIRECTIONS)
        near = kings | self._pawns(pieces, pawns, guard.targets)
        if self._whole:
            near = near | self._en_passant(pieces, en_passant)
            second = self._double(pieces, pawns, guard.targets) | _castling_king(pieces, guard, castling)
            lines = lines | _for_distances(second).when(self._distances == 2)
        lines = lines | _for_distances(near).when(self._distances == 1)
        knights = pieces.own(KNIGHT) & ~pinned & self.moved(targets, -_KNIGHT_STEPS)
        promoted = near & pieces.own(PAWN) & self._rank(self._size - 2)
        return Bits(*map(_in_order, promoted, lines, knights))

    def _along(self, sliders: Bits, empty: Bits, targets: Bits) -> Bits:
        """The origins of the sliders' moves in each direction, by distance in the order of planes, `[8, size - 1]`."""
        # A move by d squares passes d - 1 squares, which must be empty.
        path = ~EMPTY
        for passed in range(1, self._size - 1):
            clear = _for_distances(self.moved(empty, -passed * _DIRECTIONS))
            path = path & either(self._distances <= passed, ~EMPTY, clear)
        return _for_distances(sliders) & path & self.moved(targets, -self._lines)

    def _pawns(self, pieces: Pieces, pawns: Bits, targets: Bits) -> Bits:
        """The pawns that may capture or move by one square in each direction, `[8]`."""
        captures = self.moved(pieces.other() & targets, -_DIRECTIONS).when(_among(*_CAPTURES))
        return pawns & (captures | self.moved(pieces.empty & targets, -_DIRECTIONS).when(_among(_UP)))

    def _double(self, pieces: Pieces, pawns: Bits, targets: Bits) -> Bits:
        """The pawns that may move by two squares, `[8]`."""
        over = self.moved(pieces.empty, -_DIRECTIONS)
        return (pawns & self._rank(1) & over & self.moved(pieces.empty & targets, -2 * _DIRECTIONS)).when(_among(_UP))

    def _en_passant(self, pieces: Pieces, square: Bits) -> Bits:
        """The pawns that may take en passant in each direction, `[8]`, if the king is not attacked afterwards."""
        # Two pawns leave a rank at once, so a pin does not tell: look for attackers after the move.
        taken, found = self.moved(square, _DIRECTIONS[_DOWN]), EMPTY
        remaining = pieces._replace(theirs=pieces.theirs & ~taken)
        for way in _CAPTURES:
            pawn = pieces.own(PAWN) & self.moved(square, -_DIRECTIONS[way])
            rays = self._rays(pieces.own(KING), (pieces.empty | pawn | taken) & ~square)
            takes = (taken & pieces.other(PAWN)).any() & ~self._attackers(remaining, rays).any()
            found = found | pawn.when(takes & _among(way))
        return found


def _among(*ways: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """A mask of these directions, `[8]`."""
    return np.isin(np.arange(len(_DIRECTIONS)), ways)


def _castling_king(pieces: Pieces, guard: KingSafety, castling: jax.Array) -> Bits:
    """The king in the directions in which it may castle, `[8]`."""
    found = EMPTY
    for side, (way, rook, between, crossed) in enumerate(_CASTLINGS):
        blocked = constant(sum(1 << square for square in between)) & ~pieces.empty
        attacked = constant(sum(1 << square for square in crossed)) & guard.attacked
        at_home = (pieces.own(ROOK) & constant(1 << rook)).any()
        may = castling[side] & at_home & ~blocked.any() & ~attacked.any()
        found = found | (pieces.own(KING) & constant(1 << _KING_HOME)).when(may & _among(way))
    return found


def _in_order(promoted: Array, lines: Array, knights: Array) -> jax.Array:
    """One word of the planes' origins, from promotions `[8]`, lines `[8, distances]` and knights `[8]`."""
    under = [promoted[way][None] for way in _PROMOTIONS] * (UNDERPROMOTIONS // len(_PROMOTIONS))
    return jnp.concatenate([*under, lines.reshape(-1), knights])


def _for_distances(squares: Bits) -> Bits:
    """Sets of each direction, `[8]`, for all distances, `[8, 1]`."""
    return Bits(squares.low[:, None], squares.high[:, None])


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
    move, when neither player can mate, and after `max_plies`. Positions are compared by 32-bit hashes. On a board of 5
    files and ranks (Gardner's chess) there is no castling, and pawns make no double steps.
    """

    def __init__(self, size: int = 8) -> None:
        self._size, self._moves = size, ChessMoves(size)
        self._planes = len(self._moves.steps)
        self._deltas = np.array([8 * files + ranks for files, ranks in self._moves.steps], np.int32)
        self._squares = np.array([8 * file + rank for file in range(size) for rank in range(size)], np.int32)
        self._view = np.array([[8 * file + size - 1 - row for file in range(size)] for row in range(size)], np.int32)
        self.max_plies = 512 if size == 8 else 256
        (self.name,) = (name for name, known in CHESS_SIZES.items() if known == size)

    @cached_property
    def symmetries(self) -> Sequence[Symmetry]:
        """The mirror of left and right; none where castling distinguishes them."""
        if self._size == 8:
            return []
        kinds = [(min(plane // 3, 3), *step) for plane, step in enumerate(self._moves.steps)]  # 3: no underpromotion
        mirrored = [kinds.index((promotion, -files, ranks)) for promotion, files, ranks in kinds]
        actions = np.arange(25 * self._planes, dtype=np.int32).reshape(5, 5, self._planes)
        return [Symmetry(mirror, actions[::-1, :, mirrored].ravel())]

    def start(self) -> ChessBoard:
        """The initial position."""
        last, codes = self._size - 1, dict[int, int]()
        for file, kind in enumerate(_BACK_RANK[: self._size]):
            home = 8 * file
            codes |= {home: kind + 1, home + 1: PAWN + 1, home + last - 1: PAWN + 9, home + last: kind + 9}
        board = ChessBoard(
            history=history_of(codes),
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
        held = [[kind for kind in range(KINDS) if (kind + 1) >> bit & 1] for bit in range(3)]
        planes = [*(_of_kinds(first | second, *kinds) for kinds in held), _of_kinds(second)]
        low, high = (jnp.stack(words)[None] for words in zip(*planes, strict=True))
        return Bits(jnp.concatenate([low, board.history.low[:-1]]), jnp.concatenate([high, board.history.high[:-1]]))


def history_of(codes: Mapping[int, int]) -> Bits:
    """A history of one position: the code of the piece on each square, plus 8 for those of the second player."""
    planes = [sum((code >> bit & 1) << square for square, code in codes.items()) for bit in range(4)]
    words = np.zeros((2, _HISTORY, 4), np.uint32)
    words[0, 0], words[1, 0] = [plane % 2**32 for plane in planes], [plane >> 32 for plane in planes]
    return Bits(jnp.asarray(words[0]), jnp.asarray(words[1]))


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
        moves = (np.arange(KINDS) == ROOK) & king_moves & (target == to)
        leave, arrive = (constant(1 << square).when(moves) for square in (home, rook_to))
        mine = (mine & ~leave) | arrive
    return mine


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
