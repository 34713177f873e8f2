"""Searches of single positions, and the parts of their result that people look at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.evaluation.players import Player, SearchPlayer
from podzero.player_names import BuiltinPlayer, EnginePlayer, TrainedPlayer
from podzero.types import EnvState, SearchedNodes, SearchResult

SIMULATIONS = (1, 8, 32, 128, 512, 2048)
"""The numbers of simulations that are offered, because each is compiled."""


WITHOUT_SEARCH = 1
"""What counts as the simulations of a player that does not search."""


def usual_simulations(player: BuiltinPlayer | EnginePlayer | TrainedPlayer) -> int:
    """The simulations of a player if nobody says a number: as in training, or those in its name."""
    if isinstance(player, TrainedPlayer):
        return player.workdir.experiment().search.simulations
    if isinstance(player, BuiltinPlayer) and player.kind == "mcts":
        return player.simulations
    return WITHOUT_SEARCH


def with_simulations(who: str, simulations: int) -> str:
    """`who` with another number of simulations, if its name holds one (`mcts:N`)."""
    return f"mcts:{simulations}" if who.startswith("mcts:") else who


class Searched(NamedTuple):
    """A player's answer for one position."""

    action: int
    policy: np.ndarray[Any, Any] | None = None
    """`[A]` float32, the improved policy; None of a player that does not search."""
    value: float | None = None
    """For the player to move, in [-1, 1]."""
    visits: np.ndarray[Any, Any] | None = None
    """`[A]` int32."""
    nodes: SearchedNodes | None = None
    """Of this one search: `[N]` in each field."""

    def probabilities(self, actions: Iterable[int]) -> dict[int, float]:
        """The policy of some actions; empty of a player that does not search."""
        return {} if self.policy is None else {action: float(self.policy[action]) for action in actions}


class PositionSearch:
    """A player that is asked for one position at a time, by several threads.

    Args:
      make: makes the player with a number of simulations; called once for each number.
    """

    def __init__(self, make: Callable[[int], Player]) -> None:
        self._make = make
        self._players: dict[int, Player] = {}
        self._lock = threading.Lock()
        self._count = 0

    def name(self, simulations: int) -> str:
        """The player's full name, as RUN@STEP."""
        return self._player(simulations).name

    def __call__(self, state: EnvState, simulations: int) -> Searched:
        """Searches a position in which the game is not over. Compiles when a number of simulations is new."""
        player = self._player(simulations)
        with self._lock:
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
    """The state with a batch axis."""
    return jax.tree.map(lambda leaf: leaf[None], state)


def most_visited(nodes: SearchedNodes, action: int) -> tuple[int, ...]:
    """The principal variation of one search that begins with `action`: its most visited child, and so on.

    A search may go on below the end of a game, and so may the line.
    """
    parent, actions, visits = (np.asarray(field) for field in (nodes.parent, nodes.action, nodes.visits))
    line: list[int] = []
    below = (parent == 0) & (actions == action)
    while (visited := np.flatnonzero(below & (visits > 0))).size:
        node = visited[np.argmax(visits[visited])]
        line.append(int(actions[node]))
        below = parent == node
    return tuple(line) or (action,)


class Branch(NamedTuple):
    """A node of a searched tree, with its children."""

    path: tuple[int, ...]
    """The actions that lead to it from the root."""
    visits: int
    value: float
    """For the player who moves to it, in [-1, 1]."""
    prior: float
    children: tuple[Branch, ...]


def branches(nodes: SearchedNodes, exists: Callable[[tuple[int, ...]], bool], most: int = 200) -> tuple[Branch, ...]:
    """The children of the root, most visited first, and their own, from the `most` visited nodes of the tree.

    Args:
      nodes: of one search.
      exists: whether the game was not over before the last of some actions. A search may go on below the end of a
        game, where nothing changes.
      most: how many nodes are kept.
    """
    parent, visits = np.asarray(nodes.parent), np.asarray(nodes.visits)
    added = [int(node) for node in np.argsort(-visits, kind="stable") if parent[node] >= 0 and visits[node] > 0]
    children: dict[int, list[int]] = {}
    for node in added[:most]:
        children.setdefault(int(parent[node]), []).append(node)

    def grow(node: int, path: tuple[int, ...]) -> tuple[Branch, ...]:
        found = []
        for child in children.get(node, ()):
            below = (*path, int(nodes.action[child]))
            if exists(below):
                value, prior = float(nodes.value[child]), float(nodes.prior[child])
                found.append(Branch(below, int(visits[child]), value, prior, grow(child, below)))
        return tuple(found)

    return grow(0, ())
