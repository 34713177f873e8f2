"""Legal moves of chess on bits: one set of origins for each kind of move.

Square `8 * file + rank` is that of the player to move, whose pawns go up the ranks; smaller boards take the first files
and ranks. Kinds of moves are the planes of AlphaZero (Silver et al. 2018): nine underpromotions, a queen's moves by
direction and distance, and eight of a knight.

No move is tried out. A piece that is pinned moves along the line of its pin alone, and in check a move must end between
king and attacker or on the attacker; the king avoids attacked squares.
"""

from __future__ import annotations

from typing import NamedTuple

import jax

from podzero.envs.boards.bits import Bits, constant, union

PAWN, KNIGHT, BISHOP, ROOK, QUEEN, KING = range(6)
"""The kinds of pieces."""
KINDS = 6

Step = tuple[int, int]
"""Files and ranks of a move."""

_DOWN, _UP, _LEFT, _RIGHT = (0, -1), (0, 1), (-1, 0), (1, 0)
_UP_LEFT, _UP_RIGHT = (-1, 1), (1, 1)
_DIRECTIONS = (_DOWN, _UP, _LEFT, _RIGHT, (-1, -1), _UP_RIGHT, _UP_LEFT, (1, -1))
"""In the order of their planes."""
_FARTHEST_FIRST = (True, False, True, False, True, False, True, False)
"""Whether the planes of a direction begin with the greatest distance."""
_KNIGHT_STEPS = ((-2, -1), (-2, 1), (-1, -2), (-1, 2), (2, -1), (2, 1), (1, -2), (1, 2))
_PROMOTION_STEPS = (_UP, _UP_RIGHT, _UP_LEFT)
"""Of planes 0 to 2, to a rook, and again of 3 to 5 (bishop) and 6 to 8 (knight)."""
_CAPTURES = (_UP_LEFT, _UP_RIGHT)
"""Of pawns."""
UNDERPROMOTIONS = 9
_KING_HOME = constant(1 << 32)
_CASTLINGS = (((-2, 0), 0, (8, 16, 24), (16, 24, 32)), ((2, 0), 56, (40, 48), (32, 40, 48)))
"""On the queen's and on the king's side: the king's move, the rook's home, the squares that must be empty, and those
that must not be attacked."""


class Pieces(NamedTuple):
    """The pieces of one position, as the player to move sees them."""

    mine: Bits
    """`[6]`, by kind."""
    theirs: Bits
    """`[6]`."""

    def own(self, *kinds: int) -> Bits:
        """Own pieces of some kinds, by default of all."""
        return union(Bits(self.mine.low[kind], self.mine.high[kind]) for kind in kinds or range(KINDS))

    def other(self, *kinds: int) -> Bits:
        """The opponent's pieces of some kinds, by default of all."""
        return union(Bits(self.theirs.low[kind], self.theirs.high[kind]) for kind in kinds or range(KINDS))

    @property
    def empty(self) -> Bits:
        """The squares without a piece."""
        return ~(self.own() | self.other())


class Guard(NamedTuple):
    """What concerns the safety of one's king."""

    checks: jax.Array
    """`[]` int32, the number of attackers."""
    targets: Bits
    """Where other pieces may move: all squares without a check, those that end the check with one."""
    pinned: dict[Step, Bits]
    """The pieces that are pinned in each direction."""


def _sliders(direction: Step) -> tuple[int, int]:
    """The kinds of pieces that move in a direction as far as they can."""
    return (ROOK, QUEEN) if 0 in direction else (BISHOP, QUEEN)


class ChessMoves:
    """The moves on a board of `size` files and ranks.

    Args:
      size: 8; or 5, where pawns move by one square, so that none is taken en passant, and kings do not castle.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._whole = size == 8
        self.steps: list[Step] = [_PROMOTION_STEPS[plane % 3] for plane in range(UNDERPROMOTIONS)]
        """Files and ranks of the moves of each plane."""
        distances = range(1, size)
        for (files, ranks), reverse in zip(_DIRECTIONS, _FARTHEST_FIRST, strict=True):
            self.steps += [(files * n, ranks * n) for n in (reversed(distances) if reverse else distances)]
        self.steps += _KNIGHT_STEPS

    def _squares(self, step: Step = (0, 0)) -> Bits:
        """The squares from which a move stays on the board."""
        inside = range(self._size)
        return constant(
            sum(
                1 << 8 * file + rank
                for file in inside
                for rank in inside
                if file + step[0] in inside and rank + step[1] in inside
            )
        )

    def moved(self, squares: Bits, step: Step) -> Bits:
        """The squares moved by some files and ranks; those that leave the board are dropped."""
        kept, by = squares & self._squares(step), 8 * step[0] + step[1]
        move, far = (Bits.up, by) if by > 0 else (Bits.down, -by)
        while far > 31:  # the greatest distance of `Bits`
            kept, far = move(kept, 31), far - 31
        return move(kept, far)

    def _back(self, squares: Bits, step: Step) -> Bits:
        """The origins of the moves that lead to `squares`."""
        return self.moved(squares, (-step[0], -step[1]))

    def _ray(self, start: Bits, direction: Step, empty: Bits) -> Bits:
        """The squares in a direction as far as they are empty, and the first that is not."""
        line = self.moved(start, direction)
        for _ in range(self._size - 2):
            line = line | self.moved(line & empty, direction)
        return line

    def attacked(self, pieces: Pieces) -> Bits:
        """The squares that the opponent attacks, also behind one's king."""
        empty = pieces.empty | pieces.own(KING)
        return union([
            *(self._ray(pieces.other(*_sliders(direction)), direction, empty) for direction in _DIRECTIONS),
            *(self.moved(pieces.other(KNIGHT), step) for step in _KNIGHT_STEPS),
            *(self._back(pieces.other(PAWN), step) for step in _CAPTURES),
            *(self.moved(pieces.other(KING), step) for step in _DIRECTIONS),
        ])  # fmt: skip

    def guard(self, pieces: Pieces) -> Guard:
        """The checks and pins of a position."""
        king, empty = pieces.own(KING), pieces.empty
        knights = union(self.moved(king, step) for step in _KNIGHT_STEPS) & pieces.other(KNIGHT)
        pawns = union(self.moved(king, step) for step in _CAPTURES) & pieces.other(PAWN)
        checks, ends, pinned = knights.size() + pawns.size(), knights | pawns, {}
        for direction in _DIRECTIONS:
            ray, attackers = self._ray(king, direction, empty), pieces.other(*_sliders(direction))
            given = (ray & attackers).any()
            checks, ends = checks + given, ends | ray.when(given)
            blocker = ray & pieces.own()
            pinned[direction] = blocker.when((self._ray(blocker, direction, empty) & attackers).any())
        targets = self._squares().when(checks == 0) | ends.when(checks == 1)
        return Guard(checks, targets, pinned)

    def legal(self, pieces: Pieces, castling: jax.Array, en_passant: Bits) -> list[Bits]:
        """The origins of the legal moves of each plane.

        Args:
          pieces: of the position.
          castling: `[2]` bool, whether one may still castle on the queen's and on the king's side.
          en_passant: the square over which a pawn has just moved, if one has.
        """
        guard = self.guard(pieces)
        found: dict[Step, Bits] = {}
        for direction in _DIRECTIONS:
            found |= self._along(pieces, guard, direction)
        knights = pieces.own(KNIGHT) & ~union(guard.pinned.values())
        for step in _KNIGHT_STEPS:
            found[step] = knights & self._back(~pieces.own() & guard.targets, step)
        safe = ~self.attacked(pieces)
        for direction in _DIRECTIONS:
            found[direction] |= pieces.own(KING) & self._back(safe & ~pieces.own(), direction)
        if self._whole:
            for direction in _CAPTURES:
                found[direction] |= self._en_passant(pieces, en_passant, direction)
            for side, (step, rook, between, crossed) in enumerate(_CASTLINGS):
                found[step] |= _castling(pieces, safe, rook, between, crossed).when(castling[side])
        last = constant(sum(1 << 8 * file + self._size - 2 for file in range(self._size)))
        promoting = pieces.own(PAWN) & last
        return [
            found[step] & promoting if plane < UNDERPROMOTIONS else found[step] for plane, step in enumerate(self.steps)
        ]

    def _along(self, pieces: Pieces, guard: Guard, direction: Step) -> dict[Step, Bits]:
        """The origins of sliders' and pawns' moves in a direction."""
        line = (direction, (-direction[0], -direction[1]))
        free = ~union(pin for along, pin in guard.pinned.items() if along not in line)
        sliders, path, empty = pieces.own(*_sliders(direction)) & free, self._squares(), pieces.empty
        found = {}
        for distance in range(1, self._size):
            step = (direction[0] * distance, direction[1] * distance)
            found[step] = sliders & path & self._back(~pieces.own() & guard.targets, step)
            path = path & self._back(empty, step)
        pawns = pieces.own(PAWN) & free
        if direction in _CAPTURES:
            found[direction] |= pawns & self._back(pieces.other() & guard.targets, direction)
        if direction == _UP:
            found[_UP] |= pawns & self._back(empty & guard.targets, _UP)
        if direction == _UP and self._whole:
            home = constant(sum(1 << 8 * file + 1 for file in range(8)))
            found[0, 2] |= pawns & home & self._back(empty, _UP) & self._back(empty & guard.targets, (0, 2))
        return found

    def _en_passant(self, pieces: Pieces, square: Bits, direction: Step) -> Bits:
        """The pawn that may take en passant in a direction, if the king is not attacked afterwards."""
        pawn, taken = pieces.own(PAWN) & self._back(square, direction), self.moved(square, _DOWN)
        empty, king = (pieces.empty | pawn | taken) & ~square, pieces.own(KING)
        attackers = union([
            *(self._ray(king, way, empty) & pieces.other(*_sliders(way)) for way in _DIRECTIONS),
            *(self.moved(king, step) & pieces.other(KNIGHT) for step in _KNIGHT_STEPS),
            *(self.moved(king, step) & pieces.other(PAWN) & ~taken for step in _CAPTURES),
        ])  # fmt: skip
        return pawn.when((taken & pieces.other(PAWN)).any() & ~attackers.any())


def _castling(pieces: Pieces, safe: Bits, rook: int, between: tuple[int, ...], crossed: tuple[int, ...]) -> Bits:
    """The king, if the position allows it to castle."""
    blocked = constant(sum(1 << square for square in between)) & ~pieces.empty
    attacked = constant(sum(1 << square for square in crossed)) & ~safe
    at_home = (pieces.own(ROOK) & constant(1 << rook)).any()
    return (pieces.own(KING) & _KING_HOME).when(at_home & ~blocked.any() & ~attacked.any())
