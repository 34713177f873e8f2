"""Shuffles samples across games, so that the samples of one replay item come from different games."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
import numpy.typing as npt


class SampleShuffler[Samples]:
    """Buffers the samples of finished games until they fill replay items.

    Replay always samples a whole item. So that the samples of a batch are nearly independent, each sample of an item
    comes from a different game and a random position in it. After `take`, fewer than `samples_per_item` games remain.
    `Samples` is a pytree of arrays `[T, ...]`.
    """

    def __init__(self, samples_per_item: int, seed: int | Sequence[int]) -> None:
        self._samples_per_item = samples_per_item
        self._random = np.random.default_rng(seed)
        self._games: list[Samples] = []

    def add(self, game: Samples) -> None:
        """Adds the samples of one finished game, `[T, ...]` on every field."""
        self._games.append(rows_of(game, self._random.permutation(_length(game))))

    def take(self) -> Samples | None:
        """Removes and returns all full items, `[n * samples_per_item, ...]` on every field; None if there is none."""
        left = np.array([*map(_length, self._games)], np.int64)
        items = []
        while np.count_nonzero(left) >= self._samples_per_item:
            # Taking from the longest games leaves the fewest samples over.
            longest = np.argsort(-left, kind="stable")[: self._samples_per_item]
            left[longest] -= 1
            items.append(np.stack([longest, left[longest]], axis=1))
        return self._remove(np.concatenate(items), left) if items else None

    def take_rest(self) -> Samples | None:
        """Removes all remaining samples and returns as many as fill items, whose samples may share games."""
        if not self._games:
            return None
        rest = concatenated(self._games)
        self._games = []
        order = self._random.permutation(_length(rest))
        full = order[: len(order) - len(order) % self._samples_per_item]
        return rows_of(rest, full) if full.size else None

    def _remove(self, taken: npt.NDArray[np.int64], left: npt.NDArray[np.int64]) -> Samples:
        """Returns the samples `taken`, as rows (game, index); keeps the first `left` samples of each game."""
        starts = np.cumsum([0, *map(_length, self._games[:-1])])
        samples = rows_of(concatenated(self._games), starts[taken[:, 0]] + taken[:, 1])
        kept = zip(self._games, left.tolist(), strict=True)
        self._games = [rows_of(game, slice(n)) for game, n in kept if n]
        return samples


def _length[Samples](game: Samples) -> int:
    return len(jax.tree.leaves(game)[0])


def rows_of[Samples](game: Samples, index: npt.NDArray[np.int64] | slice) -> Samples:
    """The samples at `index`, in its order."""
    rows: Samples = jax.tree.map(lambda field: field[index], game)
    return rows


def concatenated[Samples](games: list[Samples]) -> Samples:
    """The samples of several games one after the other."""
    concatenated: Samples = jax.tree.map(lambda *fields: np.concatenate(fields), *games)
    return concatenated
