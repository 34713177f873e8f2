"""Turns finished games into samples with value targets, and shuffles samples across games. Pure NumPy."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from podzero.config import ActorsConfig
from podzero.core.types import Move, Sample, StoredState

Floats = npt.NDArray[np.float32]


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
        self._config = config
        self._values = values
        self._auxiliary_targets = auxiliary_targets
        self._discount = discount
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

        def samples_with(value_target: Floats) -> Sample:
            return Sample(
                observation=column("observation"),
                legal=column("legal"),
                policy_target=column("policy"),
                value_target=value_target,
                version=np.array([version for _, version in stored], np.int32),
            )

        last = moves[-1]
        truncated = bool(last.truncated[slot])
        rewards, players = column("rewards").astype(np.float32), column("player")
        if self._values > 1:
            return Game(samples_with(outcomes_of_all(rewards, players, self._discount)), None, len(moves))
        if truncated:
            # The game has no outcome: the root value of its last position replaces the rewards that would follow.
            value = last.value[slot]
            rewards[-1] = np.where(np.arange(2) == players[-1], value, -value)
        config, values = self._config, column("value").astype(np.float32)
        returns = lambda_returns(rewards, players, values, config.td_lambda, self._discount)
        outcome = outcomes(rewards, players, self._discount)
        samples = samples_with(value_targets(returns, values, config.root_value_weight))
        if self._auxiliary_targets:
            samples = samples._replace(**auxiliary_targets(rewards, players, column("action"), truncated))
        states = None
        if last.state is not None:
            cut = np.full(len(moves), truncated)
            states = StoredState(column("state"), outcome, returns, cut, samples.version)
        if last.own is not None:
            # Only now, because targets depend on the opponent's moves as well.
            samples, states = rows_of((samples, states), column("own").astype(bool))
        return Game(samples, states, len(moves))


def auxiliary_targets(
    rewards: Floats,
    players: npt.NDArray[np.generic],
    actions: npt.NDArray[np.generic],
    truncated: bool = False,
) -> dict[str, npt.NDArray[np.int32]]:
    """The targets of auxiliary heads, `outcome`, `moves_left` and `reply` of `Sample`, for a game of T moves.

    Args:
      rewards: `[T, 2]`, both players' rewards for each move.
      players: `[T]`, the player that moved.
      truncated: whether a limit ended the game, which leaves its outcome and length unknown.
    """
    unknown = np.full(len(actions), -1, np.int32)
    # The next action is a reply only if the opponent takes it: some games let a player move twice in a row.
    replied = np.append(players[1:] != players[:-1], False)
    return {
        "outcome": unknown if truncated else np.sign(outcomes(rewards, players)).astype(np.int32) + 1,
        "moves_left": unknown if truncated else np.arange(len(actions), 0, -1, dtype=np.int32),
        "reply": np.where(replied, np.roll(actions, -1), -1).astype(np.int32),
    }


def outcomes(rewards: Floats, players: npt.NDArray[np.generic], discount: float = 1.0) -> Floats:
    """The outcome of each position, `[T]`: the discounted sum of the rewards that the player to move still gets.

    Args:
      rewards: `[T, 2]`, both players' rewards for each move.
      players: `[T]`, the player that moved.
    """
    return lambda_returns(rewards, players, np.zeros(len(rewards), np.float32), 1.0, discount)


def outcomes_of_all(rewards: Floats, players: npt.NDArray[np.generic], discount: float = 1.0) -> Floats:
    """The outcome of each position for every player, `[T, P]`, beginning with the player to move; see `outcomes`."""
    returns = returns_of_all(rewards, np.zeros_like(rewards), 1.0, discount)
    place = (players.astype(np.int64)[:, None] + np.arange(rewards.shape[1])) % rewards.shape[1]
    return np.clip(np.take_along_axis(returns, place, axis=1), -1.0, 1.0)


def lambda_returns(
    rewards: Floats, players: npt.NDArray[np.generic], root_values: Floats, td_lambda: float, discount: float = 1.0
) -> Floats:
    """The lambda-return of each position for the player to move, `[T]` (Sutton and Barto 2018, section 12.1).

    `G_t = r_t + d * ((1 - l) * v_(t+1) + l * G_(t+1))`. All terms are those of the player who moves at t, v is the
    search's root value, and v and G are zero after the last move.

    Args:
      rewards: `[T, 2]`, both players' rewards for each move.
      players: `[T]`, the player that moved.
      root_values: `[T]`, the root value for the player that moved.
      td_lambda: l, in [0, 1].
      discount: d, the discount per move.
    """
    values = np.where(np.arange(2) == players[:, None], root_values[:, None], -root_values[:, None])
    returns = returns_of_all(rewards, values, td_lambda, discount)
    own: Floats = np.take_along_axis(returns, players.astype(np.int64)[:, None], axis=1)[:, 0]
    return own


def returns_of_all(rewards: Floats, values: Floats, td_lambda: float, discount: float) -> Floats:
    """The lambda-return of each position for every player, `[T, P]`, by the players' numbers.

    Args:
      rewards: `[T, P]`, each player's reward for each move.
      values: `[T, P]`, each player's value of each position.
    """
    # The recursion keeps the returns of all players, since any of them may move next.
    returns, later = np.empty_like(rewards), np.zeros(rewards.shape[1], np.float32)
    for t in reversed(range(len(rewards))):
        returns[t] = rewards[t] + np.float32(discount) * later
        later = np.float32(1.0 - td_lambda) * values[t] + np.float32(td_lambda) * returns[t]
    return returns


def value_targets(returns: Floats, root_values: npt.NDArray[np.generic], root_value_weight: float) -> Floats:
    """Value targets of T positions for the player to move: `w * v_t + (1 - w) * G_t`.

    The search's root value `v_t` lowers the variance of the lambda-return `G_t` (Young et al., Lessons from AlphaZero,
    2018: averaging z and q).
    """
    mixed = root_value_weight * root_values.astype(np.float32) + (1.0 - root_value_weight) * returns
    targets: Floats = np.clip(mixed, -1.0, 1.0).astype(np.float32)
    return targets


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
            items.append(np.stack([longest, left[longest]], axis=1))
        return self._remove(np.concatenate(items), left) if items else None

    def take_rest(self) -> Samples | None:
        """Removes all samples and returns those that fill items; samples of one item may come from the same game."""
        if not self._games:
            return None
        rest = concatenated(self._games)
        self._games = []
        order = self._random.permutation(_length(rest))
        full = order[: len(order) - len(order) % self._samples_per_item]
        return rows_of(rest, full) if full.size else None

    def _remove(self, taken: npt.NDArray[np.int64], left: npt.NDArray[np.int64]) -> Samples:
        """Returns the samples `taken`, given as rows (game, index); keeps the first `left` samples of each game."""
        starts = np.cumsum([0, *map(_length, self._games[:-1])])
        samples = rows_of(concatenated(self._games), starts[taken[:, 0]] + taken[:, 1])
        kept = zip(self._games, left.tolist(), strict=True)
        self._games = [rows_of(game, slice(n)) for game, n in kept if n]
        return samples


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
