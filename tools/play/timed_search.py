"""Search within limits of simulations and time, and the clocks of UCI and GTP."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from podzero.evaluation.players import Player
from podzero.tools.play.game import PlayableGame
from podzero.tools.play.search_steps import Root, SearchedLines, Steps, steps_of

_POLL_S = 0.01
"""Interval in seconds at which a search checks whether it is given up."""


class TimedSearch:
    """A player that searches in steps; `prepare` must be called first.

    Args:
      make: makes the player for a number of simulations per move.
      usual: the simulations without a time limit.
      most: the most simulations.
    """

    def __init__(self, make: Callable[[int], Player], usual: int, most: int) -> None:
        self._make, self._usual, self._most = make, usual, most
        self._started = usual, most
        self._steps: Steps | None = None
        # One thread: a step that was given up delays the next search instead of competing with it.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")

    @property
    def most(self) -> int:
        """The most simulations."""
        return self._most

    @property
    def usual(self) -> int:
        """The simulations without a time limit."""
        return min(self._usual, self._most)

    def limit(self, most: int) -> None:
        """Makes `most` the usual and the most simulations, or 0 those of the start; `prepare` must be called again."""
        limits = (most, most) if most else self._started
        if limits != (self._usual, self._most):
            self._usual, self._most = limits
            self._steps = None

    @property
    def can_forbid(self) -> bool:
        """Whether the search leaves out actions that are forbidden."""
        assert self._steps is not None
        return self._steps.can_forbid

    def prepare(self, root: Root) -> None:
        """Compiles and times the search of `root`, unless that has been done."""
        if self._steps is None:
            steps = steps_of(self._make, self._usual, self._most)
            self._worker.submit(steps.prepare, root).result()
            self._steps = steps

    def results(
        self,
        root: Root,
        simulations: int,
        seconds: float | None = None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> Iterator[SearchedLines]:
        """Searches a position; each result is better than the one before.

        Args:
          root: the position.
          simulations: the most simulations; at most `most` are made.
          seconds: a limit of seconds, infinity for results without one; None if only the last result is used.
          given_up: ends the search when true, but not before the first result.
        """
        assert self._steps is not None
        # Taken here, so that the time counts which a step that was given up still takes.
        end = None if seconds is None else time.monotonic() + seconds
        left = None if end is None else lambda: end - time.monotonic()
        for number, step in enumerate(self._steps.search(root, simulations, left)):
            running = self._worker.submit(step)
            while not wait([running], timeout=_POLL_S).done:
                if number and given_up():
                    # This stops it only before it has started; a running program continues in the background.
                    running.cancel()
                    return
            yield running.result()
            if given_up():
                return


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
_WORDS = (*_NUMBERS, *_IGNORED, "infinite", "ponder", "searchmoves")


def parse_go(words: Sequence[str]) -> tuple[GoLimits, list[str]]:
    """Parses the arguments of `go` into limits and unknown words."""
    found: dict[str, int | bool | tuple[str, ...]] = {}
    unknown, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if word in (*_NUMBERS, *_IGNORED) and rest and re.fullmatch(r"-?\d{1,18}", rest[0]):
            number = max(int(rest.pop(0)), 0)
            if word in _NUMBERS:
                found[word] = number
        elif word in ("infinite", "ponder"):
            found["infinite"] = True
        elif word == "searchmoves":
            moves = list(takewhile(lambda word: word not in _WORDS, rest))
            found["searchmoves"], rest = tuple(moves), rest[len(moves) :]
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
