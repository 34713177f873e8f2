"""Turns finished games into samples with value targets, and shuffles samples across games. Pure NumPy."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from podzero.actors.targets import Plies, Targets, outcome_classes, owner_classes, targets_of
from podzero.config import ActorsConfig
from podzero.core.types import Move, Sample, StoredState


class Game(NamedTuple):
    """A finished game."""

    samples: Sample
    """`[T, ...]` on every field, in the order played. T is the number of searched moves, without those of an opponent.
    """
    states: StoredState | None
    """`[T, ...]`, the same positions as stored for reanalysis; None if the moves have no states."""
    plies: int
    """The number of all moves after the opening."""


class GameAssembler:
    """Collects the moves of B running games until the games end."""

    def __init__(
        self, config: ActorsConfig, discount: float = 1.0, auxiliary_targets: bool = False, values: int = 1
    ) -> None:
        """With `auxiliary_targets`, samples include the targets of auxiliary heads; `values` is `EnvSpec.values`."""
        self._config, self._discount = config, discount
        self._values, self._auxiliary_targets = values, auxiliary_targets
        self._moves: deque[tuple[Move, int]] = deque()
        self._first = 0
        """Index of the oldest stored move, counted from the first move ever."""
        self._started = np.zeros(config.games, np.int64)
        """`[B]` index of the first move of each running game."""

    def add(self, move: Move, version: int) -> Iterator[Game]:
        """Adds one move of all games (host arrays), searched with parameters `version`; yields the games that end."""
        self._moves.append((move, version))
        end = self._first + len(self._moves)
        for slot in np.flatnonzero(move.done):
            yield self._finish(int(slot), end)
            self._started[slot] = end
        # Drop the moves that belong to no running game.
        while self._first < self._started.min():
            self._moves.popleft()
            self._first += 1

    def _finish(self, slot: int, end: int) -> Game:
        stored = [self._moves[i - self._first] for i in range(self._started[slot], end)]
        moves = [move for move, _ in stored]

        def column(name: str) -> npt.NDArray[np.generic]:
            return np.stack([getattr(move, name)[slot] for move in moves])

        history = Plies(*(column(name)[..., None] for name in Plies._fields))
        every = targets_of(history, self._config, self._discount, self._values, np)
        targets = Targets(*(field[..., 0] for field in every))
        samples = Sample(
            observation=column("observation"),
            legal=column("legal"),
            policy_target=column("policy"),
            value_target=targets.value,
            version=np.array([version for _, version in stored], np.int32),
            state=None if moves[0].state is None else column("state"),
        )
        if self._auxiliary_targets:
            outcome = outcome_classes(targets.outcome, targets.truncated)
            samples = samples._replace(outcome=outcome, moves_left=targets.moves_left, reply=targets.reply)
        states, last = None, moves[-1]
        if last.ownership is not None:
            owners = owner_classes(last.ownership[None, slot], history.player[:, 0], targets.truncated)
            samples = samples._replace(ownership=owners)
        if samples.state is not None:
            kept = (targets.outcome, targets.lambda_return, targets.truncated)
            states = StoredState(samples.state, *kept, samples.version)
        if last.own is not None:
            # Only now, because targets depend on the opponent's moves as well.
            samples, states = rows_of((samples, states), column("own").astype(bool))
        return Game(samples, states, len(moves))


class SampleShuffler[Samples]:
    """Buffers the samples of finished games until they fill replay items.

    Replay always samples whole items. Each sample of an item comes from a different game, so that the samples of a
    batch are nearly independent. `Samples` is a pytree of arrays `[T, ...]`.
    """

    def __init__(self, samples_per_item: int, seed: int | Sequence[int]) -> None:
        self._samples_per_item = samples_per_item
        self._random = np.random.default_rng(seed)
        self._games: list[Samples] = []

    def add(self, game: Samples) -> None:
        """Adds the samples of one finished game, `[T, ...]` on every field."""
        self._games.append(rows_of(game, self._random.permutation(_length(game))))

    def take(self) -> Samples | None:
        """Removes and returns all full items, `[n * samples_per_item, ...]` on every field; None if there are none.

        Samples of fewer than `samples_per_item` games remain.
        """
        left = np.array([*map(_length, self._games)], np.int64)
        items = []
        while np.count_nonzero(left) >= self._samples_per_item:
            # Taking from the longest games leaves the fewest samples over.
            longest = np.argsort(-left, kind="stable")[: self._samples_per_item]
            left[longest] -= 1
            # What is left of a game is also the index of the sample taken from it: each game is used up from its end.
            items.append(np.stack([longest, left[longest]], axis=1))
        if not items:
            return None
        game, index = np.concatenate(items).T
        starts = np.cumsum([0, *map(_length, self._games[:-1])])
        samples = rows_of(concatenated(self._games), starts[game] + index)
        self._games = [rows_of(game, slice(n)) for game, n in zip(self._games, left.tolist(), strict=True) if n]
        return samples

    def take_rest(self) -> Samples | None:
        """Removes all samples and returns those that fill items; samples of one item may come from the same game."""
        if not self._games:
            return None
        rest = concatenated(self._games)
        self._games = []
        order = self._random.permutation(_length(rest))
        full = order[: len(order) - len(order) % self._samples_per_item]
        return rows_of(rest, full) if full.size else None


def _length[Samples](game: Samples) -> int:
    return len(jax.tree.leaves(game)[0])


def rows_of[Samples](game: Samples, index: npt.NDArray[np.generic] | slice) -> Samples:
    """The samples at `index`, in that order, or those where a mask is true."""
    rows: Samples = jax.tree.map(lambda field: field[index], game)
    return rows


def concatenated[Samples](games: list[Samples]) -> Samples:
    """The samples of several games in one array per field."""
    concatenated: Samples = jax.tree.map(lambda *fields: np.concatenate(fields), *games)
    return concatenated
