"""Searches of single positions, and the parts of their results that people look at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.core.protocols import Env
from podzero.core.types import EnvState, SearchedNodes, SearchResult
from podzero.evaluation.players import MovesPlayer, Player, SearchPlayer
from podzero.evaluation.resolve import resolve
from podzero.files.players import BuiltinPlayer, EnginePlayer, TrainedPlayer

SIMULATIONS = (1, 8, 32, 128, 512, 2048)
"""The numbers of simulations that the page offers; few, because each one is compiled."""


def usual_simulations(player: BuiltinPlayer | EnginePlayer | TrainedPlayer) -> int:
    """A player's default simulations per move: those of training, those in its name, or 1 without a search."""
    if isinstance(player, TrainedPlayer):
        return player.workdir.experiment().search.simulations
    if isinstance(player, BuiltinPlayer) and player.kind == "mcts":
        return player.simulations
    return 1


def with_simulations(who: str, simulations: int) -> str:
    """Replaces the number of simulations in the name `mcts:N`; other names stay the same."""
    return f"mcts:{simulations}" if who.startswith("mcts:") else who


def make_player(who: str, env: Env, simulations: int, discount: float, keep_nodes: bool = False) -> Player:
    """`resolve`, for a player that is not an engine and so plays from any position."""
    player = resolve(who, env, simulations, discount, keep_nodes)
    assert not isinstance(player, MovesPlayer)
    return player


class Searched(NamedTuple):
    """A player's answer for one position; players that do not search give only the action."""

    action: int
    policy: np.ndarray[Any, Any] | None = None
    """`[A]` float32, the improved policy."""
    value: float | None = None
    """The value for the player to move, in [-1, 1]."""
    visits: np.ndarray[Any, Any] | None = None
    """`[A]` int32, the visit counts at the root."""
    nodes: SearchedNodes | None = None
    """The tree, `[N]` in each field; None unless the player keeps nodes."""

    def probabilities(self, actions: Iterable[int]) -> dict[int, float]:
        """The probability of each of `actions`; empty without a policy."""
        return {} if self.policy is None else {action: float(self.policy[action]) for action in actions}


class PositionSearch:
    """A player that searches one position per call; thread-safe.

    Args:
      make: makes the player for a number of simulations; called once per number.
    """

    def __init__(self, make: Callable[[int], Player]) -> None:
        self._make = make
        self._players: dict[int, Player] = {}
        self._lock = threading.Lock()
        self._count = 0

    def name(self, simulations: int) -> str:
        """The player's full name, such as RUN@STEP."""
        return self._player(simulations).name

    def __call__(self, state: EnvState, simulations: int) -> Searched:
        """Searches a position in which the game is not over; compiles for each new number of simulations."""
        player = self._player(simulations)
        with self._lock:
            # Another key for each call: repeated searches of a position explore differently.
            self._count += 1
            key = jax.random.key(self._count)
        batch = batch_of_one(state)
        if not isinstance(player, SearchPlayer):
            return Searched(int(np.asarray(player.choose(key, batch))[0]))
        result: SearchResult = jax.device_get(player.search(key, batch))
        nodes = None if result.nodes is None else SearchedNodes(*(np.asarray(field)[0] for field in result.nodes))
        policy, visits = np.asarray(result.policy)[0], np.asarray(result.visits)[0]
        return Searched(int(result.action[0]), policy, float(result.value[0]), visits, nodes)

    def _player(self, simulations: int) -> Player:
        with self._lock:
            if simulations not in self._players:
                self._players[simulations] = self._make(simulations)
            return self._players[simulations]


def batch_of_one(state: EnvState) -> EnvState:
    """Adds a batch axis of size 1."""
    return jax.tree.map(lambda leaf: leaf[None], state)


def most_visited(nodes: SearchedNodes, action: int) -> tuple[int, ...]:
    """The principal variation of one search that begins with `action`; may extend beyond the end of the game."""
    parent, actions, visits = (np.asarray(field) for field in (nodes.parent, nodes.action, nodes.visits))
    line: list[int] = []
    below = (parent == 0) & (actions == action)
    while (visited := np.flatnonzero(below & (visits > 0))).size:
        node = visited[np.argmax(visits[visited])]
        line.append(int(actions[node]))
        below = parent == node
    return tuple(line) or (action,)
