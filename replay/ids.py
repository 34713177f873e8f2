"""Ids of samples, which cost no bytes: a Reverb item needs a key, and the writer chooses it.

The upper 32 bits of a key stand for the writer with its attempt, the lower ones for a running number. An item of n
samples has the key of its first one; the others have the numbers after it.
"""

from __future__ import annotations

import hashlib

import numpy as np

NUMBERS = 2**32
"""Keys that share their upper bits."""


class SampleIds:
    """Numbers the samples of one attempt of a writer. Not thread-safe."""

    def __init__(self, writer: str) -> None:
        """`writer` names run, writer, attempt and table: keys of two tables must differ too, since a checkpoint of
        Reverb holds the chunks of all tables by their keys.
        """
        self._writer, self._next = writer, 0

    def take(self, items: int, samples_per_item: int) -> list[int]:
        """The keys of the next items."""
        count = items * samples_per_item
        if self._next % NUMBERS + count > NUMBERS:
            self._next += -self._next % NUMBERS  # the next series of `NUMBERS` numbers, with upper bits of its own
        series, begin = divmod(self._next, NUMBERS)
        self._next += count
        # Each series counts on from a number of its own: among 10,000 writers, two with the same upper bits are likely.
        digest = hashlib.blake2b(f"{self._writer}/{series}".encode(), digest_size=8).digest()
        upper, first = divmod(int.from_bytes(digest), NUMBERS)
        numbers = np.arange(begin, begin + count, samples_per_item, dtype=np.uint64)
        keys: list[int] = ((numbers + first) % NUMBERS + upper * NUMBERS).tolist()
        return keys
