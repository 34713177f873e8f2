"""A cache of network evaluations, so that few positions are evaluated twice by one version of the parameters.

Search meets most positions again: by transposition, in the tree of the next move, in other games, and at the end of a
game, where each further visit is another evaluation.
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
"""Places by which equal rows of a batch find one another."""


class EvaluationCache:
    """A direct-mapped table: a new evaluation takes the place of that in its slot.

    A position is known by a hash of 63 bits, so two positions are confused with probability 2**-63.

    Args:
      mebibytes: of the table, at most.
      outputs: numbers of one evaluation.
    """

    def __init__(self, mebibytes: float, outputs: int) -> None:
        slots = mebibytes * 2**20 / (8 + 4 * outputs)
        bits = max(1, int(slots).bit_length() - 1)
        self._shift = np.uint64(64 - bits)
        self._keys = np.zeros(2**bits, np.uint64)
        self._evaluations = np.zeros((2**bits, outputs), np.float32)
        self._scratch = np.zeros(_SCRATCH, np.int64)
        self.asked = 0
        """Evaluations that were asked for."""
        self.found = 0
        """Those that the table had."""

    def __call__(self, version: int, observations: Rows, evaluate: Callable[[Rows], Rows]) -> Rows:
        """The evaluations of B observations by a version of the parameters, `[B, outputs]` float32.

        Args:
          version: any number.
          observations: `[B, ...]`.
          evaluate: evaluates those that the table lacks, equal ones once (seldom twice).
        """
        keys = hashes(observations, version)
        slots = (keys >> self._shift).astype(np.int64)
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
        """For each of `rows`, one of them that has the same key; itself where others contend for a place in scratch.

        Three times as fast as a sort.
        """
        places = (keys[rows] % np.uint64(len(self._scratch))).astype(np.int64)
        self._scratch[places] = rows
        last = self._scratch[places]
        one: Rows = np.where(keys[last] == keys[rows], last, rows)
        return one


def hashes(rows: Rows, seed: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A hash of each of B rows, `[B]` uint64, never zero: each 8 bytes and their place are mixed by the finalizer of
    SplitMix64 (Steele et al. 2014, https://doi.org/10.1145/2714064.2660195), and their exclusive or once more. Rows of
    bool are packed to bits before.
    """
    flat = rows.reshape(len(rows), -1)
    data = np.packbits(flat, axis=1) if flat.dtype == np.bool_ else np.ascontiguousarray(flat).view(np.uint8)
    padded = np.zeros((len(data), data.shape[1] + -data.shape[1] % 8), np.uint8)  # np.pad takes eight times as long
    padded[:, : data.shape[1]] = data
    words = padded.view(np.uint64)
    return _mix(np.bitwise_xor.reduce(_mix(words ^ _places(words.shape[1], seed)), axis=1)) | np.uint64(1)


@lru_cache(maxsize=8)
def _places(words: int, seed: int) -> Rows:
    """A number for each word of a row, `[words]` uint64."""
    return _mix(np.arange(1, words + 1, dtype=np.uint64) * _GAMMA + np.uint64(seed))


def _mix(value: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    value = (value ^ (value >> _SHIFTS[0])) * _FACTORS[0]
    value = (value ^ (value >> _SHIFTS[1])) * _FACTORS[1]
    return value ^ (value >> _SHIFTS[2])
