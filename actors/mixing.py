"""From finished games to bundles: samples that replay stores together come from different games."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from podzero.types import Sample


class GameMixer:
    """Holds finished games until their samples can be bundled.

    Replay reads a bundle always as a whole, so its samples should be as independent as single ones: each comes from
    another game, at a random place in it. After `take` fewer than `bundle` games are left over.
    """

    def __init__(self, bundle: int, seed: int) -> None:
        self._bundle = bundle
        self._random = np.random.default_rng(seed)
        self._games: list[Sample] = []

    def add(self, samples: Sample) -> None:
        """Takes the samples of one finished game, `[T, ...]` on every field."""
        order = self._random.permutation(len(samples.version))
        self._games.append(Sample(*(field[order] for field in samples)))

    def take(self) -> Sample | None:
        """All whole bundles, `[n * bundle, ...]` on every field, each of `bundle` neighbours; None if there is none."""
        left = np.array([len(game.version) for game in self._games], np.int64)
        bundles = []
        while np.count_nonzero(left) >= self._bundle:
            longest = np.argsort(-left, kind="stable")[: self._bundle]  # the long ones first, so that few are left over
            left[longest] -= 1
            bundles.append(np.stack([longest, left[longest]], axis=1))
        return self._remove(np.concatenate(bundles), left) if bundles else None

    def take_rest(self) -> Sample | None:
        """What `take` left over, up to a whole bundle, now regardless of which game it is from."""
        if not self._games:
            return None
        rest = Sample(*map(np.concatenate, zip(*self._games, strict=True)))
        self._games = []
        order = self._random.permutation(len(rest.version))
        whole = order[: len(order) - len(order) % self._bundle]
        return Sample(*(field[whole] for field in rest)) if whole.size else None

    def _remove(self, chosen: npt.NDArray[np.int64], left: npt.NDArray[np.int64]) -> Sample:
        """The samples `chosen`, rows (game, place); keeps the first `left` samples of each game."""
        starts = np.cumsum([0, *(len(game.version) for game in self._games[:-1])])
        flat = starts[chosen[:, 0]] + chosen[:, 1]
        taken = Sample(*(np.concatenate(column)[flat] for column in zip(*self._games, strict=True)))
        kept = zip(self._games, left.tolist(), strict=True)
        self._games = [Sample(*(field[:n] for field in game)) for game, n in kept if n]
        return taken
