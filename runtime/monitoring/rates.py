"""The rate of a growing total over a sliding window."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0
"""Length of the window."""


class RateWindow:
    """The growth per second of a total over the last `WINDOW_S` seconds.

    The first point only marks the start, since the time that its growth took is unknown (programs were compiled).
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()

    @property
    def moved(self) -> bool:
        """Whether the total was ever above zero."""
        return bool(self._points) and self._points[-1][1] > 0

    def add(self, now: float, total: float) -> None:
        """Adds the total at the time `now`."""
        if len(self._points) > 1 and now - self._points[-2][0] < 1.0:
            self._points[-1] = (now, total)  # with many reporters, one point a second is enough
        else:
            self._points.append((now, total))

    def per_s(self, now: float) -> float:
        """Growth per second since the last point before the window, or since the first point; 0 after a silence."""
        while len(self._points) > 1 and self._points[1][0] <= now - WINDOW_S:
            self._points.popleft()
        if len(self._points) < 2:
            return 0.0
        since, base = self._points[0]
        return max(self._points[-1][1] - base, 0.0) / max(now - since, 1e-9)
