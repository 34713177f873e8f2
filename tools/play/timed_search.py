"""Search within a limit of time: a few numbers of simulations, each compiled and timed before the clock runs, and the
limits and clocks of UCI and GTP that choose among them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from podzero.evaluation.players import Player, SearchPlayer
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.searching import batch_of_one, most_visited
from podzero.types import EnvState, SearchResult

STEP = 4
"""Each number of simulations is this multiple of the one before."""
COUNT = 4
"""How many there are."""
MARGIN = 1.2
"""A search is expected to take the time measured before, times this factor."""
_POLL_S = 0.01
"""Seconds between two questions whether a search shall be given up."""


class Line(NamedTuple):
    """A move that a search considered."""

    action: int
    value: float
    """In [-1, 1], for the player to move."""
    probability: float
    """The search's policy for the action."""
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
          usual: the number of simulations when there is no time limit.
          most: the most simulations.
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


OVERHEAD_S = 0.05
"""Seconds of each move that are left for communication."""
_MOVES_LEFT = 30
"""Moves that the remaining time has to last for, if nobody says."""
_GREATEST_SHARE = 0.5
"""The greatest share of the remaining time for one move."""


def share_of_clock(remaining_s: float, increment_s: float = 0.0, moves: int = _MOVES_LEFT) -> float:
    """Seconds for the next move, of a clock that has to last for `moves` more."""
    usable = max(remaining_s - OVERHEAD_S, 0.0)
    return min(usable / max(moves, 1) + 0.75 * increment_s, max(_GREATEST_SHARE, 1 / max(moves, 1)) * usable)


@dataclass(frozen=True)
class GoLimits:
    """The arguments of UCI's `go`; times in milliseconds."""

    wtime: int | None = None
    btime: int | None = None
    winc: int = 0
    binc: int = 0
    movestogo: int = _MOVES_LEFT
    movetime: int | None = None
    nodes: int | None = None
    infinite: bool = False
    searchmoves: tuple[str, ...] = ()

    def seconds(self, white: bool) -> float | None:
        """Seconds for this move; None without a limit of time."""
        if self.movetime is not None:
            return max(self.movetime / 1000 - OVERHEAD_S, 0.0)
        remaining, increment = (self.wtime, self.winc) if white else (self.btime, self.binc)
        return None if remaining is None else share_of_clock(remaining / 1000, increment / 1000, self.movestogo)


_NUMBERS = ("wtime", "btime", "winc", "binc", "movestogo", "movetime", "nodes")
_IGNORED = ("depth", "mate")
"""Limits that have no meaning in this search; they are followed by a number."""


def parse_go(words: Sequence[str]) -> tuple[GoLimits, list[str]]:
    """The limits, and the words that were not understood."""
    found: dict[str, int | bool | tuple[str, ...]] = {}
    unknown, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if word in _NUMBERS and rest and rest[0].lstrip("-").isdecimal():
            found[word] = max(int(rest.pop(0)), 0)
        elif word in _IGNORED and rest and rest[0].isdecimal():
            rest.pop(0)
        elif word in ("infinite", "ponder"):
            found["infinite"] = True
        elif word == "searchmoves":
            found["searchmoves"], rest = tuple(rest), []
        else:
            unknown.append(word)
    return GoLimits(**found), unknown  # type: ignore[arg-type]


class GtpClock:
    """The time of one colour, by `time_settings` and `time_left`."""

    def __init__(self) -> None:
        self._limited = False
        self._main = self._period = self._left = 0.0
        self._stones = self._stones_left = 0

    def settings(self, main_s: float, period_s: float, stones: int) -> None:
        """Starts with `main_s`, then `stones` moves in each period; a period without stones means no limit."""
        self._limited = not (period_s > 0 and stones == 0)
        self._main, self._period, self._stones = main_s, period_s, stones
        self.left(main_s, 0) if main_s > 0 or stones == 0 else self.left(period_s, stones)

    def left(self, seconds: float, stones: int) -> None:
        """What is left: of the main time if `stones` is 0, else of a period for so many moves."""
        self._left, self._stones_left = seconds, stones

    def seconds(self) -> float | None:
        """Seconds for the next move; None without a limit."""
        if not self._limited:
            return None
        if self._stones_left:
            return share_of_clock(self._left, moves=self._stones_left)
        after = self._period / self._stones if self._stones else 0.0  # the main time may be used up
        return max(share_of_clock(self._left), 0.9 * after - OVERHEAD_S)

    def spend(self, seconds: float) -> None:
        """Counts a move down, until the controller says what is left."""
        if self._stones_left > 1:
            self.left(max(self._left - seconds, 0.0), self._stones_left - 1)
        elif self._stones_left == 1 or (seconds >= self._left and self._stones):
            self.left(self._period, self._stones)
        else:
            self.left(max(self._left - seconds, 0.0), 0)


class EngineParts(NamedTuple):
    """What an engine needs to play: a game, and a player of it."""

    game: PlayableGame
    search: TimedSearch
