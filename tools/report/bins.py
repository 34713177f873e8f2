"""Summaries of many values by equal spans of training time, so that a curve has a bounded number of points. Pure.

The mean of a span is drawn as a line, its least and greatest values as a band: no spike is lost.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from podzero.tools.report.history import FloatArray

MAX_BINS = 400
"""The most points of a curve."""
SHORTEST_BIN_S = 15.0
"""Shortest span: workers report every two seconds."""


class Envelope(NamedTuple):
    """Values by spans, `[B]` each; NaN where a span has none."""

    mean: FloatArray
    low: FloatArray
    high: FloatArray


class Bins:
    """Equal spans of the training time of a run."""

    def __init__(self, end_hours: float) -> None:
        count = int(np.clip(end_hours * 3600.0 / SHORTEST_BIN_S, 1, MAX_BINS))
        self._edges = np.linspace(0.0, max(end_hours, 1e-9), count + 1)

    @property
    def middles(self) -> FloatArray:
        """`[B]` hours of training."""
        result: FloatArray = (self._edges[1:] + self._edges[:-1]) / 2
        return result

    def envelope(self, hours: FloatArray, values: FloatArray) -> Envelope:
        """Summarizes `values` at `hours`, `[N]` each."""
        index, count = self._index(hours), len(self._edges) - 1
        numbers = np.bincount(index, minlength=count)
        low, high = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(low, index, values)
        np.maximum.at(high, index, values)
        seen = numbers > 0
        mean = np.bincount(index, values, count) / np.maximum(numbers, 1)
        return Envelope(*(np.where(seen, summary, np.nan) for summary in (mean, low, high)))

    def per_s(self, hours: FloatArray, counts: FloatArray) -> FloatArray:
        """`[B]` events per second that one worker counted: those of each report are spread over the time since the one
        before, those of the first fall at its time.

        Args:
          hours: `[N]` when each count ended, ascending; at least one.
          counts: `[N]` events since the one before.
        """
        totals = np.interp(self._edges, np.append(hours[:1], hours), np.append(0.0, np.cumsum(counts)))
        result: FloatArray = np.diff(totals) / (3600.0 * np.diff(self._edges))
        return result

    def _index(self, hours: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        """The span of each of `hours`."""
        found = np.searchsorted(self._edges, hours, side="right") - 1
        result: np.ndarray[tuple[int], np.dtype[np.intp]] = np.clip(found, 0, len(self._edges) - 2)
        return result
