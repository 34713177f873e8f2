"""From finished games to bundles: samples that replay stores together come from different games."""

from __future__ import annotations

from typing import Generic, TypeVar

import jax
import numpy as np
import numpy.typing as npt

Played = TypeVar("Played")
"""A tree of arrays `[T, ...]`, of samples and what goes with them."""


class SampleShuffler(Generic[Played]):
    """Holds finished games until their samples can be bundled.

    Replay reads a bundle always as a whole, so its samples should be as independent as single ones: each comes from
    another game, at a random place in it. After `take` fewer than `bundle` games are left over.
    """

    def __init__(self, samples_per_item: int, seed: int) -> None:
        self._samples_per_item = samples_per_item
        self._random = np.random.default_rng(seed)
        self._games: list[Played] = []

    def add(self, game: Played) -> None:
        """Takes the samples of one finished game, `[T, ...]` on every field."""
        self._games.append(_chosen(game, self._random.permutation(_plies(game))))

    def take(self) -> Played | None:
        """All whole bundles, `[n * bundle, ...]` on every field, each of `bundle` neighbours; None if there is none."""
        left = np.array([*map(_plies, self._games)], np.int64)
        items = []
        while np.count_nonzero(left) >= self._samples_per_item:
            longest = np.argsort(-left, kind="stable")[
                : self._samples_per_item
            ]  # the long ones first, so that few are left over
            left[longest] -= 1
            items.append(np.stack([longest, left[longest]], axis=1))
        return self._remove(np.concatenate(items), left) if items else None

    def take_rest(self) -> Played | None:
        """What `take` left over, up to a whole bundle, now regardless of which game it is from."""
        if not self._games:
            return None
        rest = _all_of(self._games)
        self._games = []
        order = self._random.permutation(_plies(rest))
        whole = order[: len(order) - len(order) % self._samples_per_item]
        return _chosen(rest, whole) if whole.size else None

    def _remove(self, chosen: npt.NDArray[np.int64], left: npt.NDArray[np.int64]) -> Played:
        """The samples `chosen`, rows (game, place); keeps the first `left` samples of each game."""
        starts = np.cumsum([0, *map(_plies, self._games[:-1])])
        taken = _chosen(_all_of(self._games), starts[chosen[:, 0]] + chosen[:, 1])
        kept = zip(self._games, left.tolist(), strict=True)
        self._games = [_chosen(game, slice(n)) for game, n in kept if n]
        return taken


def _plies(game: Played) -> int:
    return len(jax.tree.leaves(game)[0])


def _chosen(game: Played, which: npt.NDArray[np.int64] | slice) -> Played:
    chosen: Played = jax.tree.map(lambda field: field[which], game)
    return chosen


def _all_of(games: list[Played]) -> Played:
    """The samples of all games, one game after the other."""
    together: Played = jax.tree.map(lambda *fields: np.concatenate(fields), *games)
    return together
