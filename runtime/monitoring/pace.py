"""How regularly a worker does something, by which the driver judges whether it hangs. Pure: the time is an argument."""

from __future__ import annotations

from collections import deque
from statistics import median

FACTOR = 20.0
"""A silence of so many times the median interval is too long, within the limits of `Pace` and `LONGEST_S`."""
LONGEST_S = 3600.0
NAMED_S = 30.0
"""A silence is named after a tenth of what it may last, and not before this time."""
LONGEST_LOOK_S = 5.0
"""Of the time between two looks no more counts: beyond that, it was the driver that stood still."""


class Pace:
    """The intervals between the times at which something happens, and the silence since the last one."""

    def __init__(self, now: float, first_s: float, least_s: float) -> None:
        """A silence may last `first_s` while there is no interval yet, and at least `least_s` later."""
        self.begun = False
        """Whether it has ever happened."""
        self.silent_s = 0.0
        """The length of the silence."""
        self._first_s, self._least_s, self._looked = first_s, least_s, now
        self._intervals = deque[float](maxlen=32)

    def look(self, now: float) -> None:
        """Adds the time since the last look to the silence."""
        self.silent_s += min(now - self._looked, LONGEST_LOOK_S)
        self._looked = now

    def happened(self) -> None:
        """Ends a silence. Its length is an interval unless it was the first: programs were compiled."""
        if self.begun:
            self._intervals.append(self.silent_s)
        self.begun, self.silent_s = True, 0.0

    def excuse(self) -> None:
        """Ends the silence of a worker that waits for another."""
        self.silent_s = 0.0

    @property
    def limit_s(self) -> float:
        """How long a silence may last."""
        if not self._intervals:
            return self._first_s
        return max(self._least_s, min(FACTOR * median(self._intervals), LONGEST_S))

    @property
    def named(self) -> bool:
        """Whether the silence is long enough to be named."""
        return self.silent_s > NAMED_S and self.silent_s > self.limit_s / 10
