"""A cache of network evaluations.

Search revisits most positions: by transposition, in the tree of the next move, in other games, and at the end of a
game, where every visit evaluates the same terminal state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

Rows = np.ndarray[Any, Any]

_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_SCRATCH = 4093
"""Size of the scratch table that finds equal rows within a batch."""


class EvaluationCache:
    """A direct-mapped table, in which a new evaluation replaces the one in its slot.

    Positions are identified by 63-bit hashes; two different ones collide with probability 2**-63.
    """

    def __init__(self, mebibytes: float, outputs: int) -> None:
        """The table has at most so many `mebibytes`; with 0, all is evaluated. `outputs`: numbers per evaluation."""
        self._used = mebibytes > 0
        slots = mebibytes * 2**20 / (8 + 4 * outputs)
        bits = max(1, int(slots).bit_length() - 1)
        self._shift = np.uint64(64 - bits)
        self._keys = np.zeros(2**bits, np.uint64)
        self._evaluations = np.zeros((2**bits, outputs), np.float32)
        self._scratch = np.zeros(_SCRATCH, np.int64)
        self.asked = 0
        """Evaluations requested so far."""
        self.found = 0
        """Requested evaluations that the table held."""

    def __call__(self, version: int, observations: Rows, evaluate: Callable[[Rows], Rows]) -> Rows:
        """Evaluations `[B, outputs]` float32 of B observations by one version of the parameters.

        `evaluate` is called for the rows that the table lacks; of equal rows usually for just one.
        """
        if not self._used:
            return evaluate(observations)
        keys = hashes(observations, version)
        slots = (keys >> self._shift).astype(np.int64)
        # Rows of slots that hold another key are replaced below.
        evaluations: Rows = self._evaluations[slots]
        new = np.flatnonzero(self._keys[slots] != keys)
        self.asked += len(keys)
        self.found += len(keys) - len(new)
        if len(new):
            one = self._one_of_equals(keys, new)
            first = new[one == new]
            evaluations[first] = evaluate(observations[first])
            evaluations[new] = evaluations[one]
            self._keys[slots[first]], self._evaluations[slots[first]] = keys[first], evaluations[first]
        return evaluations

    def _one_of_equals(self, keys: Rows, rows: Rows) -> Rows:
        """For each of `rows`, one row with the same key; the row itself if another key took its scratch place."""
        # Three times as fast as sorting.
        places = (keys[rows] % np.uint64(len(self._scratch))).astype(np.int64)
        self._scratch[places] = rows
        last = self._scratch[places]
        return np.asarray(np.where(keys[last] == keys[rows], last, rows))


def hashes(rows: Rows, seed: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Hashes B rows: `[B]` uint64, never zero.

    Uses the finalizer of SplitMix64 (Steele et al. 2014, https://doi.org/10.1145/2714064.2660195): on each 8 bytes with
    their position, then on the exclusive or of the results. Bool rows are packed to bits first.
    """
    flat = rows.reshape(len(rows), -1)
    data = np.packbits(flat, axis=1) if flat.dtype == np.bool_ else np.ascontiguousarray(flat).view(np.uint8)
    # np.pad takes eight times as long.
    padded = np.zeros((len(data), data.shape[1] + -data.shape[1] % 8), np.uint8)
    padded[:, : data.shape[1]] = data
    words = padded.view(np.uint64)
    # Zero would be the key of an empty slot.
    return _mix(np.bitwise_xor.reduce(_mix(words ^ _places(words.shape[1], seed)), axis=1)) | np.uint64(1)


@lru_cache(maxsize=8)
def _places(words: int, seed: int) -> Rows:
    """A random number for each word of a row, `[words]` uint64."""
    return _mix(np.arange(1, words + 1, dtype=np.uint64) * _GAMMA + np.uint64(seed))


def _mix(value: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    value = (value ^ (value >> _SHIFTS[0])) * _FACTORS[0]
    value = (value ^ (value >> _SHIFTS[1])) * _FACTORS[1]
    return value ^ (value >> _SHIFTS[2])
