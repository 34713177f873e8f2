"""Sets of up to 64 squares as two 32-bit words: JAX without x64 has no 64-bit integers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import and_, or_
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.core.types import Array

_WORD = 32
Distance = int | np.ndarray[Any, np.dtype[np.integer[Any]]]
"""How far squares move: one number, or one for each of several sets."""


class Bits(NamedTuple):
    """A set of squares: square i is bit i of `low`, or bit i - 32 of `high`. Batches of sets have words `[...]`."""

    low: Array
    """`[]` uint32."""
    high: Array
    """`[]` uint32."""

    def __and__(self, other: Bits) -> Bits:
        return Bits(self.low & other.low, self.high & other.high)

    def __or__(self, other: Bits) -> Bits:
        return Bits(self.low | other.low, self.high | other.high)

    def __invert__(self) -> Bits:
        return Bits(~self.low, ~self.high)

    def up(self, by: Distance) -> Bits:
        """The squares moved to higher numbers, by 0 to 63; those beyond the last one are lost."""
        along, rest, near, within = _split(by)
        low, high = self.low << along, self.high << along
        if (within > 0).all():
            return Bits(low, high | (self.low >> rest))
        # `within` drops the carry of a shift by 0; beyond a word (not `near`) the low word becomes the high one.
        return Bits(low & near, ((high | self.low >> rest & within) & near) | (low & ~near))

    def down(self, by: Distance) -> Bits:
        """The squares moved to lower numbers, by 0 to 63; those below 0 are lost."""
        along, rest, near, within = _split(by)
        low, high = self.low >> along, self.high >> along
        if (within > 0).all():
            return Bits(low | (self.high << rest), high)
        return Bits(((low | self.high << rest & within) & near) | (high & ~near), high & near)

    def joined(self) -> Bits:
        """The squares that are in any of the sets of the last axis."""
        low, high = (jax.lax.reduce_or(jnp.asarray(word), (word.ndim - 1,)) for word in self)
        return Bits(low, high)

    def any(self) -> jax.Array:
        """`[]` bool, whether a square is in the set."""
        return jnp.asarray((self.low | self.high) != 0)

    def size(self) -> jax.Array:
        """`[]` int32, the number of squares."""
        low, high = map(jnp.asarray, self)
        return (jax.lax.population_count(low) + jax.lax.population_count(high)).astype(jnp.int32)

    def when(self, condition: Array) -> Bits:
        """The set where the condition `[]` holds, and the empty set elsewhere."""
        return Bits(jnp.where(condition, self.low, 0), jnp.where(condition, self.high, 0))

    def members(self, squares: np.ndarray[Any, np.dtype[np.int32]]) -> jax.Array:
        """Which `squares` are in the set: bool of their shape, or `[..., *squares.shape]` for sets `[...]`."""
        # Without the barrier XLA would compute the set once for each square.
        words = jnp.asarray(self.low), jnp.asarray(self.high)
        low, high = jax.lax.optimization_barrier(words)  # type: ignore[no-untyped-call]
        place = (..., *[None] * squares.ndim)
        word = jnp.where(squares < _WORD, low[place], high[place])
        return jnp.asarray((word >> (squares % _WORD).astype(np.uint32)) & 1 == 1)


def _split(by: Distance) -> tuple[Any, Any, Any, Any]:
    """The shift within a word, the shift of the carry, and two masks: moves by less than a word, of those all but 0."""
    # Both shifts are taken modulo the word, because a shift by 32 is undefined.
    distance, word, ones = np.asarray(by, np.uint32), np.uint32(_WORD), np.uint32(2**_WORD - 1)
    near = np.where(distance < word, ones, np.uint32(0))
    within = np.where((distance > 0) & (distance < word), ones, np.uint32(0))
    return distance % word, (word - distance) % word, near, within


def turned(squares: Bits) -> Bits:
    """The squares with the eight of each file in reverse order: the board seen from the other side."""
    # Swap neighbouring bits, then pairs, then groups of four.
    for by, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F)):
        squares = Bits(*(((word >> np.uint32(by)) & mask) | ((word & mask) << np.uint32(by)) for word in squares))
    return squares


def either(condition: Array, one: Bits, other: Bits) -> Bits:
    """`one` where the condition holds, `other` elsewhere."""
    return Bits(jnp.where(condition, one.low, other.low), jnp.where(condition, one.high, other.high))


def union(sets: Iterable[Bits]) -> Bits:
    """The squares that are in any of the sets (at least one)."""
    return reduce(or_, sets)


def intersection(sets: Iterable[Bits]) -> Bits:
    """The squares that are in all of the sets (at least one)."""
    return reduce(and_, sets)


EMPTY = Bits(np.zeros((), np.uint32), np.zeros((), np.uint32))
"""The empty set."""


def constant(squares: int) -> Bits:
    """The set whose square i is bit i of a Python integer."""
    return Bits(np.asarray(squares % 2**_WORD, np.uint32), np.asarray(squares >> _WORD, np.uint32))


def single(square: Array) -> Bits:
    """The set of one square `[]` int32; empty if it is not in [0, 64)."""
    one, place = jnp.uint32(1), square.astype(jnp.uint32) % _WORD
    return Bits(
        jnp.where((square >= 0) & (square < _WORD), one << place, 0),
        jnp.where((square >= _WORD) & (square < 2 * _WORD), one << place, 0),
    )
