"""How long an engine may search: the limits of UCI's `go`, and the clock of GTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
