"""Searching within limits: one of a few numbers of simulations, all compiled before the clock runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.evaluation.players import Player, SearchPlayer
from podzero.tools.play.searching import batch_of_one, most_visited
from podzero.types import EnvState, SearchResult

STEP = 4
"""Each number of simulations is this multiple of the one before."""
COUNT = 4
"""How many there are."""
MARGIN = 1.2
"""How much longer than measured a search is expected to take."""
_POLL_S = 0.01
"""Seconds between two questions whether a search shall be given up."""


class Line(NamedTuple):
    """A move that a search considered."""

    action: int
    value: float
    """In [-1, 1], for the player to move."""
    probability: float
    """Of the search's policy."""
    visits: int
    moves: tuple[int, ...]
    """The action and those that the search expects to follow; it may go on below the end of a game."""


class SearchedLines(NamedTuple):
    """The result of a search."""

    lines: list[Line]
    """The chosen move, then the others in the order of their visits."""
    simulations: int
    seconds: float


class TimedSearch:
    """A player that searches for as long as it is given."""

    def __init__(self, make: Callable[[int], Player], usual: int, most: int) -> None:
        """Prepares nothing yet.

        Args:
          make: the player with a number of simulations per move.
          usual: simulations without any limit of time.
          most: simulations at most.
        """
        self._make, self._usual, self._most = make, usual, most
        self._players: dict[int, Player] = {}
        self._seconds: dict[int, float] = {}
        self._key = jax.random.key(0)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")

    @property
    def most(self) -> int:
        """Simulations at most."""
        return self._most

    @property
    def sizes(self) -> list[int]:
        """The numbers of simulations, ascending."""
        return sorted({max(self._most // STEP**step, 1) for step in range(COUNT)} | {min(self._usual, self._most)})

    def limit(self, most: int) -> None:
        """Changes the numbers of simulations, which must be prepared again."""
        self._usual, self._most = most, most

    def prepare(self, state: EnvState) -> None:
        """Compiles the searches, and measures each; searches that are prepared already stay as they are."""
        self._worker.submit(self._prepare, state).result()

    def settle(self) -> float:
        """Waits for the end of a search that was given up; returns the seconds that it took."""
        start = time.perf_counter()
        self._worker.submit(lambda: None).result()
        return time.perf_counter() - start

    def _prepare(self, state: EnvState) -> None:
        for size in self.sizes:
            if size not in self._players:
                self._players[size] = self._make(size)
                self._search(size, state)  # compiles
                self._seconds[size] = self._search(size, state).seconds

    def usual(self) -> list[int]:
        """The sizes to search with one after another without a limit."""
        return [min(self._usual, self._most)]

    def endless(self) -> list[int]:
        """The same where somebody will say when to stop."""
        return self.sizes

    def within_simulations(self, simulations: int) -> list[int]:
        """The same for a limit of simulations."""
        return [max((size for size in self.sizes if size <= simulations), default=self.sizes[0])]

    def within_seconds(self, seconds: float) -> list[int]:
        """The same for a limit of time: growing sizes, until the next would take too long; at least the smallest."""
        chosen: list[int] = []
        spent = 0.0
        for size in self.sizes:
            spent += MARGIN * self._seconds[size]
            if chosen and spent > seconds:
                break
            chosen.append(size)
        return chosen

    def run(self, size: int, state: EnvState, legal: np.ndarray[Any, Any]) -> SearchedLines:
        """Searches a state, which is not over, with one of `sizes`; the lines are moves that are `legal`, `[A]`."""
        searched = self.run_unless(lambda: False, size, state, legal)
        assert searched is not None
        return searched

    def run_unless(
        self, given_up: Callable[[], bool], size: int, state: EnvState, legal: np.ndarray[Any, Any]
    ) -> SearchedLines | None:
        """As `run`, but None as soon as the search is `given_up`.

        A search cannot be broken off: it ends in the background, and the next one waits for it (`settle`).
        """
        search = self._worker.submit(self._measured, size, state)
        while not wait([search], timeout=_POLL_S).done:
            if given_up():
                search.cancel()  # if it has not begun
                return None
        searched = search.result()
        return searched._replace(lines=[line for line in searched.lines if legal[line.action]])

    def _measured(self, size: int, state: EnvState) -> SearchedLines:
        searched = self._search(size, state)
        self._seconds[size] = (self._seconds[size] + searched.seconds) / 2
        return searched

    def _search(self, size: int, state: EnvState) -> SearchedLines:
        start = time.perf_counter()
        self._key, key = jax.random.split(self._key)
        roots = batch_of_one(state)
        player = self._players[size]
        if isinstance(player, SearchPlayer):
            lines = list(_lines(jax.tree.map(lambda leaf: np.asarray(leaf)[0], player.search(key, roots))))
        else:
            action = int(np.asarray(player.choose(key, roots))[0])
            lines = [Line(action, 0.0, 1.0, 1, (action,))]
        return SearchedLines(lines, size, time.perf_counter() - start)


def _lines(result: SearchResult) -> Iterator[Line]:
    """All actions, of the result of one search; an action without visits has the value of the root."""
    policy, visits = np.asarray(result.policy), np.asarray(result.visits)
    order = np.lexsort((-policy, -visits, np.arange(len(policy)) != int(result.action)))
    nodes, qvalues = result.nodes, result.qvalues
    assert qvalues is not None
    for one in map(int, order):
        mean = qvalues[one] if visits[one] else result.value
        moves = (one,) if nodes is None or not visits[one] else most_visited(nodes, one)
        yield Line(one, float(np.clip(mean, -1, 1)), float(policy[one]), int(visits[one]), moves)
