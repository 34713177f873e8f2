"""Searches of one position in steps, each with a better result: of a tree that grows, or of growing sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from podzero.core.types import SearchResult
from podzero.evaluation.growing import PlayerTree
from podzero.evaluation.players import Player, SearchPlayer
from podzero.search import LimitedState
from podzero.tools.play.game import ShownPosition
from podzero.tools.play.searching import batch_of_one, most_visited


class Line(NamedTuple):
    """A move that a search considered, with its principal variation."""

    action: int
    value: float
    """The value for the player to move, in [-1, 1]."""
    probability: float
    """The improved policy's probability of the action."""
    visits: int
    moves: tuple[int, ...]
    """The principal variation, from the action on; may extend beyond the end of the game."""


class SearchedLines:
    """The result of a search so far.

    Args:
      found: the result without a batch axis, or the action of a player that does not search.
      legal: `[A]` bool, the actions that have lines.
      simulations: the number of simulations.
      kept: how many of them earlier searches have made.
      seconds: the time of the others.
    """

    def __init__(
        self, found: SearchResult | int, legal: np.ndarray[Any, Any], simulations: int, kept: int, seconds: float
    ) -> None:
        self._found, self._legal = found, legal
        self.simulations, self.kept, self.seconds = simulations, kept, seconds

    @cached_property
    def lines(self) -> list[Line]:
        """The selected move, then the others by visits, descending."""
        found = self._found
        return [Line(found, 0.0, 1.0, 1, (found,))] if isinstance(found, int) else list(_lines(found, self._legal))


def _lines(result: SearchResult, legal: np.ndarray[Any, Any]) -> Iterator[Line]:
    """A line for each legal action of one search."""
    policy, visits = np.asarray(result.policy), np.asarray(result.visits)
    # The last key is the first criterion.
    order = np.lexsort((-policy, -visits, np.arange(len(policy)) != int(result.action)))
    nodes, qvalues = result.nodes, result.qvalues
    assert qvalues is not None
    for one in map(int, order[legal[order]]):
        # Unvisited actions have no Q-value and take the root's value.
        mean = qvalues[one] if visits[one] else result.value
        moves = (one,) if nodes is None or not visits[one] else most_visited(nodes, one)
        yield Line(one, float(np.clip(mean, -1, 1)), float(policy[one]), int(visits[one]), moves)


class Root(NamedTuple):
    """A non-terminal position to search."""

    limited: LimitedState
    lines: np.ndarray[Any, Any]
    """`[A]` bool, the legal actions that are not forbidden: those to return lines for."""

    @classmethod
    def of(cls, position: ShownPosition, forbidden: np.ndarray[Any, Any] | None = None) -> Root:
        """A position, without actions that are `forbidden`, `[A]` bool."""
        legal = np.asarray(position.view.legal)
        left_out = np.zeros_like(legal) if forbidden is None else forbidden
        return cls(LimitedState(position.state, left_out), legal & ~left_out)


Step = Callable[[], SearchedLines]
"""Searches on, and returns the result so far."""


class Steps(Protocol):
    """A player's searches in steps. Steps are run one at a time; one may still run when the next search begins."""

    can_forbid: bool
    """Whether actions can be forbidden; a player that does not search ignores it."""

    def prepare(self, root: Root) -> None:
        """Compiles and times the search of `root`."""
        ...

    def search(self, root: Root, simulations: int, left: Callable[[], float] | None) -> Iterator[Step]:
        """The steps of one search, at least one; the next may be taken when the one before has run.

        Args:
          root: the position.
          simulations: the most simulations.
          left: the seconds left, in which all steps but the first must fit; None without a limit.
        """
        ...


MARGIN = 1.2
"""A step is assumed to take this multiple of the time measured before."""
_STEP_S = 0.1
"""About how many seconds a step of a tree takes."""
_TIMED = 4
"""Simulations by which the first speed is measured."""
_MEMORY = 0.8
"""Weight of earlier steps in the speed, relative to that of the newest one."""


def steps_of(make: Callable[[int], Player], usual: int, most: int) -> Steps:
    """The steps of a player: of its tree where it can grow, otherwise of growing sizes.

    Args:
      make: makes the player for a number of simulations per move.
      usual: the simulations without a time limit.
      most: the most simulations.
    """
    player = make(most)
    tree = player.tree if isinstance(player, SearchPlayer) else None
    return SizedSteps(make, usual, most) if tree is None else TreeSteps(tree, most)


class TreeSteps:
    """Steps of a tree that grows, and is kept between searches where the next position is in it.

    Args:
      tree: the tree.
      room: the simulations that it has room for.
    """

    can_forbid = True

    def __init__(self, tree: PlayerTree, room: int) -> None:
        self._tree, self._room = tree, room
        self._key = jax.random.key(0)
        # Of the last steps, their weights decreasing.
        self._simulations, self._seconds = 1.0, _STEP_S
        # Of the search that goes on.
        self._kept, self._spent = 0, 0.0

    def prepare(self, root: Root) -> None:
        """See `Steps`."""
        self._turn_to(root)
        self._grow(root, 1)
        self._turn_to(root)
        if count := min(_TIMED, self._room - 1):
            self._simulations = self._seconds = 0.0
            self._grow(root, count)

    def search(self, root: Root, simulations: int, left: Callable[[], float] | None) -> Iterator[Step]:
        """See `Steps`. The simulations that were kept count towards the most simulations."""
        most = max(min(simulations, self._room), 1)
        yield partial(self._first, root, most, left)
        while self._tree.simulations < most and (count := self._fitting(left)):
            yield partial(self._grow, root, min(count, most - self._tree.simulations))

    def _first(self, root: Root, most: int, left: Callable[[], float] | None) -> SearchedLines:
        self._turn_to(root)
        return self._grow(root, max(min(max(self._fitting(left), 1), most - self._kept), 0))

    def _fitting(self, left: Callable[[], float] | None) -> int:
        """How many simulations fit into a step."""
        seconds = _STEP_S if left is None else min(_STEP_S, left() / MARGIN)
        return max(int(seconds * self._simulations / self._seconds), 0)

    def _turn_to(self, root: Root) -> None:
        start = time.perf_counter()
        self._key, key = jax.random.split(self._key)
        self._tree.turn_to(key, batch_of_one(root.limited))
        self._kept, self._spent = self._tree.simulations, time.perf_counter() - start

    def _grow(self, root: Root, simulations: int) -> SearchedLines:
        start = time.perf_counter()
        self._key, key = jax.random.split(self._key)
        found = _without_batch(self._tree.grow(key, simulations))
        seconds = time.perf_counter() - start
        if simulations:
            self._simulations = _MEMORY * self._simulations + simulations
            self._seconds = _MEMORY * self._seconds + seconds
        self._spent += seconds
        return SearchedLines(found, root.lines, self._tree.simulations, self._kept, self._spent)


STEP = 4
"""Ratio between successive sizes (numbers of simulations)."""
COUNT = 4
"""Number of sizes, without the usual one."""


class SizedSteps:
    """Searches from scratch with a few sizes (numbers of simulations), each compiled; see `steps_of`."""

    def __init__(self, make: Callable[[int], Player], usual: int, most: int) -> None:
        self._sizes = sorted({max(most // STEP**step, 1) for step in range(COUNT)} | {min(usual, most)})
        self._players = {size: make(size) for size in self._sizes}
        self.can_forbid = all(isinstance(player, SearchPlayer) for player in self._players.values())
        self._seconds: dict[int, float] = {}
        self._key = jax.random.key(0)

    def prepare(self, root: Root) -> None:
        """See `Steps`."""
        for size in self._sizes:
            # The first search compiles, the second is timed.
            self._run(root, size)
            self._seconds[size] = self._run(root, size).seconds

    def search(self, root: Root, simulations: int, left: Callable[[], float] | None) -> Iterator[Step]:
        """See `Steps`. Without a limit of time, the largest size is searched alone."""
        sizes = [size for size in self._sizes if size <= simulations] or self._sizes[:1]
        for size in sizes if left else sizes[-1:]:
            if left and size != sizes[0] and MARGIN * self._seconds[size] > left():
                return
            yield partial(self._timed, root, size)

    def _timed(self, root: Root, size: int) -> SearchedLines:
        searched = self._run(root, size)
        self._seconds[size] = (self._seconds[size] + searched.seconds) / 2
        return searched

    def _run(self, root: Root, size: int) -> SearchedLines:
        start = time.perf_counter()
        self._key, key = jax.random.split(self._key)
        roots, player = batch_of_one(root.limited), self._players[size]
        found: SearchResult | int
        if isinstance(player, SearchPlayer):
            found = _without_batch(player.search(key, roots))
        else:
            found = int(np.asarray(player.choose(key, roots.state))[0])
        return SearchedLines(found, root.lines, size, 0, time.perf_counter() - start)


def _without_batch(result: SearchResult) -> SearchResult:
    """The result of one search, on the host."""
    alone: SearchResult = jax.tree.map(lambda leaf: np.asarray(leaf)[0], result)
    return alone
