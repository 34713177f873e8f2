"""Legal moves of chess on bits: one set of origins for each kind of move.

Squares are numbered `8 * file + rank` from the side of the player to move, whose pawns go up the ranks; smaller boards
use the first files and ranks. The kinds of moves are AlphaZero's planes (Silver et al. 2018): nine underpromotions, a
queen's moves by direction and distance, and eight knight's moves.

No move is tried out. A pinned piece moves only along the line of its pin; in check a move must end between king and
attacker or on the attacker; the king avoids attacked squares.

Directions and moves are axes of arrays, and lines grow in a loop: XLA would take minutes to compile unrolled code, and
would repeat what moves share. Every step of a loop is a kernel on an accelerator, so moves along lines are arrays over
all distances instead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.core.types import Array
from podzero.envs.boards.bits import EMPTY, Bits, constant, either, union

PAWN, KNIGHT, BISHOP, ROOK, QUEEN, KING = range(6)
"""The kinds of pieces."""
KINDS = 6

ChessStep = tuple[int, int]
"""Files and ranks of a move."""
Steps = np.ndarray[Any, np.dtype[np.int_]]
"""Files and ranks of moves, `[n, 2]`, or of one move, `[2]`."""

_DIRECTIONS = np.array([(0, -1), (0, 1), (-1, 0), (1, 0), (-1, -1), (1, 1), (-1, 1), (1, -1)])
"""In the order of their planes. Each pair is opposite: planes of its first direction begin with the greatest distance,
those of its second with the smallest."""
_STRAIGHT = (_DIRECTIONS == 0).any(axis=1)
_DOWN, _UP, _LEFT, _RIGHT, _UP_RIGHT, _UP_LEFT = 0, 1, 2, 3, 5, 6
"""Indices into `_DIRECTIONS`."""
_PROMOTIONS = [_UP, _UP_RIGHT, _UP_LEFT]
"""Directions of planes 0 to 2, to a rook, and again of 3 to 5 (bishop) and 6 to 8 (knight)."""
_CAPTURES = [_UP_LEFT, _UP_RIGHT]
"""Directions in which pawns capture."""
_KNIGHT_STEPS = np.array([(-2, -1), (-2, 1), (-1, -2), (-1, 2), (2, -1), (2, 1), (1, -2), (1, 2)])
UNDERPROMOTIONS = 9
_KING_HOME = constant(1 << 32)
_CASTLINGS = ((_LEFT, 0, (8, 16, 24), (16, 24, 32)), (_RIGHT, 56, (40, 48), (32, 40, 48)))
"""On the queen's and on the king's side: the king's direction, the rook's home, the squares that must be empty, and
those that must not be attacked."""


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
        """The squares moved by each of `steps` (`[n, 2]`, or `[2]` for one); those that leave the board are dropped.

        `squares` is one set, or one for each step in the last axis.
        """
        kept, by = squares & self._inside(steps), steps @ [8, 1]
        up = kept.up(np.maximum(by, 0)) if (by > 0).any() else kept
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
        free = ~pinned | _either_way(guard.pinned)
        pawns = pieces.own(PAWN) & free
        lines = self._along(_sliders(pieces.mine) & free, pieces.empty, targets)
        # Kings and pawns use the planes of lines too: distance 1, and distance 2 for double steps and castling.
        near = self._kings(pieces, guard) | self._pawns(pieces, pawns, guard.targets)
        if self._whole:
            near = near | self._en_passant(pieces, en_passant)
            second = self._double(pieces, pawns, guard.targets) | _castled(pieces, guard, castling)
            lines = lines | _for_distances(second).when(self._distances == 2)
        lines = lines | _for_distances(near).when(self._distances == 1)
        knights = pieces.own(KNIGHT) & ~pinned & self.moved(targets, -_KNIGHT_STEPS)
        promoted = near & pieces.own(PAWN) & self._rank(self._size - 2)
        low, high = map(_in_order, promoted, lines, knights)
        return Bits(low, high)

    def _along(self, sliders: Bits, empty: Bits, targets: Bits) -> Bits:
        """The origins of the sliders' moves in each direction, by distance in the order of planes, `[8, size - 1]`."""
        # A move by d squares passes d - 1 squares, which must be empty.
        path = ~EMPTY
        for passed in range(1, self._size - 1):
            clear = _for_distances(self.moved(empty, -passed * _DIRECTIONS))
            path = path & either(self._distances <= passed, ~EMPTY, clear)
        return _for_distances(sliders) & path & self.moved(targets, -self._lines)

    def _kings(self, pieces: Pieces, guard: KingSafety) -> Bits:
        """The king, in the directions in which it may move, `[8]`."""
        return pieces.own(KING) & self.moved(~guard.attacked & ~pieces.own(), -_DIRECTIONS)

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


def _either_way(pinned: Bits) -> Bits:
    """The union of each direction's set and the opposite direction's."""
    low, high = (word | jnp.flip(word.reshape(-1, 2), 1).reshape(-1) for word in map(jnp.asarray, pinned))
    return Bits(low, high)


def _castled(pieces: Pieces, guard: KingSafety, castling: jax.Array) -> Bits:
    """The king in the directions in which it may castle, `[8]`."""
    found = EMPTY
    for side, (way, rook, between, crossed) in enumerate(_CASTLINGS):
        blocked = constant(sum(1 << square for square in between)) & ~pieces.empty
        attacked = constant(sum(1 << square for square in crossed)) & guard.attacked
        at_home = (pieces.own(ROOK) & constant(1 << rook)).any()
        may = castling[side] & at_home & ~blocked.any() & ~attacked.any()
        found = found | (pieces.own(KING) & _KING_HOME).when(may & _among(way))
    return found


def _in_order(promoted: Array, lines: Array, knights: Array) -> jax.Array:
    """One word of the planes' origins, from promotions `[8]`, lines `[8, distances]` and knights `[8]`."""
    under = [promoted[way][None] for way in _PROMOTIONS] * (UNDERPROMOTIONS // len(_PROMOTIONS))
    return jnp.concatenate([*under, lines.reshape(-1), knights])


def _for_distances(squares: Bits) -> Bits:
    """Sets of each direction, `[8]`, for all distances, `[8, 1]`."""
    return Bits(squares.low[:, None], squares.high[:, None])
