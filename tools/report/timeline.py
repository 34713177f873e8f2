"""What a run had done at each moment: hours of training, learner steps, games. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from podzero.tools.report.history import FloatArray, History, Values

SHORTEST_PAUSE_S = 300.0
"""Time without a report of any worker from which a run counts as not running."""
SPARSENESS = 1 / 1000
"""The same as a share of the time since the first report: the lines of long runs are far apart
(`monitoring.metrics.RESOLUTION`)."""


class Axes(NamedTuple):
    """Positions of points on each of the three axes of a figure, `[N]` each."""

    hours: FloatArray
    """Hours of training, pauses left out."""
    steps: FloatArray
    games: FloatArray
    """Games, or episodes, that the actors had finished."""


class Timeline:
    """Translates moments of a run into hours of training, steps and games."""

    def __init__(self, history: History) -> None:
        tables = history.workers.values()
        moments = np.unique(np.concatenate([np.empty(0), *(table.times for table in tables)]))
        self._times = moments
        self._hours = _without_pauses(moments) / 3600.0
        steps = np.zeros(len(moments))
        for table in tables:
            np.maximum.at(steps, np.searchsorted(moments, table.times), table.steps)
        self._steps = np.maximum.accumulate(steps) if len(steps) else steps
        self._games = self._total(history.values("actor", "count/games"), moments)

    @property
    def end_hours(self) -> float:
        """Hours of training so far."""
        return float(self._hours[-1]) if len(self._hours) else 0.0

    def hours(self, times: FloatArray) -> FloatArray:
        """Hours of training at `times` (`[N]`, seconds since the epoch)."""
        return _interpolate(times, self._times, self._hours)

    def at_hours(self, hours: FloatArray) -> Axes:
        """The positions of moments given by hours of training, `[N]`."""
        return Axes(
            hours,
            _interpolate(hours, self._hours, self._steps),
            _interpolate(hours, self._hours, self._games),
        )

    def at_steps(self, steps: FloatArray) -> Axes:
        """The positions of the moments at which the learner reached `steps`, `[N]`."""
        first = np.searchsorted(self._steps, steps).clip(0, max(len(self._steps) - 1, 0))
        return Axes(self._hours[first], steps, self._games[first])

    @staticmethod
    def _total(counts: Values, moments: FloatArray) -> FloatArray:
        totals = np.concatenate([[0.0], np.cumsum(counts.values)])
        result: FloatArray = totals[np.searchsorted(counts.times, moments, side="right")]
        return result


def _without_pauses(moments: FloatArray) -> FloatArray:
    """Seconds from the first of `moments` (`[N]`, ascending) to each, without the pauses between them."""
    gaps = np.diff(moments, prepend=moments[:1])
    longest = np.maximum(SHORTEST_PAUSE_S, SPARSENESS * (moments - moments[:1]))
    result: FloatArray = np.cumsum(np.where(gaps > longest, 0.0, gaps))
    return result


def _interpolate(at: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    result: FloatArray = np.interp(at, x, y) if len(x) else np.zeros(len(at))
    return result
