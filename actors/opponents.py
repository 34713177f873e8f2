"""Self-play in which an opponent has one side of some games; only the moves of the other side become samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.actors.core import Replies, SelfPlayCore, SelfPlayState, keys_of
from podzero.core.types import Array, EnvState, Move, Params


class Opponent(NamedTuple):
    """A player that self-play plays against."""

    name: str
    """Its name in metrics."""
    share: float
    """Fraction of the games in which it has a side, in (0, 1]."""
    choose: Callable[[Array, EnvState], Array | None]
    """Maps a key and n states that are not over to actions, `[n]` int32. None: there is no such player yet, and the
    search plays both sides."""


class _Block(NamedTuple):
    """The games of one opponent, which are consecutive."""

    opponent: Opponent
    games: slice
    side: np.ndarray[Any, Any]
    """`[n]` int32, the player whose moves the search chooses."""


class OpposedGames:
    """Plays all games like the core; in some of them, opponents have one side.

    Each opponent has a block of games, in one half of which the search plays for player 0, in the other for player 1.
    The searches of an opponent's turns are of no use: batches keep their size, so that nothing is compiled again.
    """

    def __init__(self, core: SelfPlayCore, games: int, opponents: Sequence[Opponent]) -> None:
        self._search = jax.jit(core.search)
        self._play = jax.jit(core.play, donate_argnums=0)
        self._rows = jax.jit(_rows, static_argnums=(1, 2))
        self._games = games
        self._blocks = blocks(opponents, games)
        self._points: dict[str, list[float]] = defaultdict(list)

    def move(self, params: Params, state: SelfPlayState) -> tuple[SelfPlayState, Move]:
        """Plays one move in every game, as `SelfPlayCore.move` does; `state` cannot be used afterwards."""
        result = self._search(params, state)
        key = keys_of(state).replies
        action, side = [], np.full(self._games, -1, np.int32)
        for number, block in enumerate(self._blocks):
            size = len(block.side)
            states = self._rows(state.games, block.games.start, size)
            chosen = block.opponent.choose(jax.random.fold_in(key, number), states)
            if chosen is not None:
                side[block.games] = block.side
            action.append(jnp.zeros(size, jnp.int32) if chosen is None else jnp.asarray(chosen, jnp.int32))
        alone = self._games - sum(map(len, action))
        replies = Replies(jnp.concatenate([*action, jnp.zeros(alone, jnp.int32)]), jnp.asarray(side))
        after: tuple[SelfPlayState, Move] = self._play(state, result, replies)
        return after

    def count(self, move: Move) -> None:
        """Counts the results of the games that ended with a move (host arrays)."""
        for block in self._blocks:
            done, rewards = move.done[block.games], move.rewards[block.games]
            ours = np.take_along_axis(rewards, block.side[:, None], axis=1)[:, 0]
            self._points[block.opponent.name] += (0.5 + 0.5 * np.sign(ours[done])).tolist()

    def flush(self) -> dict[str, float]:
        """`selfplay/score_OPPONENT`, the search's mean points per game since the last call: 1 won, 0.5 drew, 0 lost."""
        scores = {f"selfplay/score_{name}": float(np.mean(points)) for name, points in self._points.items() if points}
        self._points.clear()
        return scores


def blocks(opponents: Sequence[Opponent], games: int) -> list[_Block]:
    """The games of each opponent: its share of `games`, rounded to an even number of at least 2."""
    sizes = [2 * max(1, round(opponent.share * games / 2)) for opponent in opponents]
    while sum(sizes) > games:
        sizes[int(np.argmax(sizes))] -= 2
    ends = pairwise(accumulate(sizes, initial=0))
    return [
        _Block(opponent, slice(start, end), np.arange(end - start, dtype=np.int32) % 2)
        for opponent, (start, end) in zip(opponents, ends, strict=True)
    ]


def _rows(states: EnvState, start: int, size: int) -> EnvState:
    return jax.tree.map(lambda leaf: leaf[start : start + size], states)
