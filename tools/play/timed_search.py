"""Search within a time limit: a few numbers of simulations, timed beforehand, and the clocks of UCI and GTP."""

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
"""Ratio between successive sizes (numbers of simulations)."""
COUNT = 4
"""Number of sizes, without the usual one."""
MARGIN = 1.2
"""A search is assumed to take this multiple of the time measured before."""
_POLL_S = 0.01
"""Interval in seconds at which a search checks whether it is given up."""


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


class SearchedLines(NamedTuple):
    """The result of a search."""

    lines: list[Line]
    """The selected move, then the others by visits, descending."""
    simulations: int
    seconds: float


class TimedSearch:
    """A player that searches with a choice of sizes (numbers of simulations); `prepare` must be called first.

    Args:
      make: makes the player for a number of simulations per move.
      usual: the size without a time limit.
      most: the largest size.
    """

    def __init__(self, make: Callable[[int], Player], usual: int, most: int) -> None:
        self._make, self._usual, self._most = make, usual, most
        self._players: dict[int, Player] = {}
        self._seconds: dict[int, float] = {}
        self._key = jax.random.key(0)
        # One thread: a search that was given up delays the next one instead of competing with it.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")

    @property
    def most(self) -> int:
        """The largest size."""
        return self._most

    @property
    def sizes(self) -> list[int]:
        """All sizes, ascending."""
        return sorted({max(self._most // STEP**step, 1) for step in range(COUNT)} | {min(self._usual, self._most)})

    def limit(self, most: int) -> None:
        """Makes `most` the usual and the largest size; the new sizes must be prepared."""
        self._usual, self._most = most, most

    def prepare(self, state: EnvState) -> None:
        """Compiles and times the search of `state` for each size that has not been prepared yet."""
        self._worker.submit(self._prepare, state).result()

    def settle(self) -> float:
        """Waits until a search that was given up has ended; returns the seconds waited."""
        start = time.perf_counter()
        self._worker.submit(lambda: None).result()
        return time.perf_counter() - start

    def _prepare(self, state: EnvState) -> None:
        for size in self.sizes:
            if size not in self._players:
                self._players[size] = self._make(size)
                # The first search compiles, the second is timed.
                self._search(size, state)
                self._seconds[size] = self._search(size, state).seconds

    # For each kind of limit, the sizes to search with, one after another. An endless search takes all `sizes`.

    def usual(self) -> list[int]:
        """Sizes without a limit."""
        return [min(self._usual, self._most)]

    def within_simulations(self, simulations: int) -> list[int]:
        """Sizes for a limit of simulations."""
        return [max((size for size in self.sizes if size <= simulations), default=self.sizes[0])]

    def within_seconds(self, seconds: float) -> list[int]:
        """Sizes for a limit of seconds: those that fit one after another, at least the smallest."""
        chosen: list[int] = []
        spent = 0.0
        for size in self.sizes:
            spent += MARGIN * self._seconds[size]
            if chosen and spent > seconds:
                break
            chosen.append(size)
        return chosen

    def run(self, size: int, state: EnvState, legal: np.ndarray[Any, Any]) -> SearchedLines:
        """Searches a non-terminal state with one of `sizes`.

        Args:
          size: number of simulations.
          state: the state, without a batch axis.
          legal: `[A]` bool, the actions to return lines for.
        """
        searched = self.run_unless(lambda: False, size, state, legal)
        assert searched is not None
        return searched

    def run_unless(
        self, given_up: Callable[[], bool], size: int, state: EnvState, legal: np.ndarray[Any, Any]
    ) -> SearchedLines | None:
        """As `run`, but returns None as soon as `given_up()` is true."""
        search = self._worker.submit(self._measured, size, state)
        while not wait([search], timeout=_POLL_S).done:
            if given_up():
                # This stops it only before it has started; a running program continues in the background (`settle`).
                search.cancel()
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
    """A line for each action of one search."""
    policy, visits = np.asarray(result.policy), np.asarray(result.visits)
    # The last key is the first criterion.
    order = np.lexsort((-policy, -visits, np.arange(len(policy)) != int(result.action)))
    nodes, qvalues = result.nodes, result.qvalues
    assert qvalues is not None
    for one in map(int, order):
        # Unvisited actions have no Q-value and take the root's value.
        mean = qvalues[one] if visits[one] else result.value
        moves = (one,) if nodes is None or not visits[one] else most_visited(nodes, one)
        yield Line(one, float(np.clip(mean, -1, 1)), float(policy[one]), int(visits[one]), moves)


OVERHEAD_S = 0.05
"""Seconds per move reserved for communication."""
_MOVES_LEFT = 30
"""Moves that the remaining time has to last for, by default."""
_GREATEST_SHARE = 0.5
"""Largest share of the remaining time for one move."""


def share_of_clock(remaining_s: float, increment_s: float = 0.0, moves: int = _MOVES_LEFT) -> float:
    """Seconds for the next move, on a clock that has to last for `moves` moves."""
    usable = max(remaining_s - OVERHEAD_S, 0.0)
    # A quarter of the increment and half of the clock (unless this is its last move) stay for searches that take
    # longer than expected.
    return min(usable / max(moves, 1) + 0.75 * increment_s, max(_GREATEST_SHARE, 1 / max(moves, 1)) * usable)


@dataclass(frozen=True)
class GoLimits:
    """The arguments of UCI's command `go`, with times in milliseconds."""

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
        """Seconds for this move; None without a time limit."""
        if self.movetime is not None:
            return max(self.movetime / 1000 - OVERHEAD_S, 0.0)
        remaining, increment = (self.wtime, self.winc) if white else (self.btime, self.binc)
        return None if remaining is None else share_of_clock(remaining / 1000, increment / 1000, self.movestogo)


_NUMBERS = ("wtime", "btime", "winc", "binc", "movestogo", "movetime", "nodes")
_IGNORED = ("depth", "mate")
"""Limits that this search cannot obey; a number follows each."""


def parse_go(words: Sequence[str]) -> tuple[GoLimits, list[str]]:
    """Parses the arguments of `go` into limits and unknown words."""
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
    """One colour's clock, set by GTP's `time_settings` and `time_left`."""

    def __init__(self) -> None:
        self._limited = False
        self._main = self._period = self._left = 0.0
        self._stones = self._stones_left = 0

    def settings(self, main_s: float, period_s: float, stones: int) -> None:
        """Sets the main time in seconds, then `stones` moves per period; a period of 0 stones means no limit."""
        self._limited = not (period_s > 0 and stones == 0)
        self._main, self._period, self._stones = main_s, period_s, stones
        self.left(main_s, 0) if main_s > 0 or stones == 0 else self.left(period_s, stones)

    def left(self, seconds: float, stones: int) -> None:
        """Sets the seconds left: of the main time if `stones` is 0, else for the next `stones` moves of a period."""
        self._left, self._stones_left = seconds, stones

    def seconds(self) -> float | None:
        """Seconds for the next move; None without a limit."""
        if not self._limited:
            return None
        if self._stones_left:
            return share_of_clock(self._left, moves=self._stones_left)
        # A move may use its share of a period, less a reserve, even when little main time is left.
        after = self._period / self._stones if self._stones else 0.0
        return max(share_of_clock(self._left), 0.9 * after - OVERHEAD_S)

    def spend(self, seconds: float) -> None:
        """Subtracts the time of a move; the controller's next `time_left` corrects it."""
        if self._stones_left > 1:
            self.left(max(self._left - seconds, 0.0), self._stones_left - 1)
        elif self._stones_left == 1 or (seconds >= self._left and self._stones):
            self.left(self._period, self._stones)
        else:
            self.left(max(self._left - seconds, 0.0), 0)


class EngineParts(NamedTuple):
    """The game and the player of an engine."""

    game: PlayableGame
    search: TimedSearch
