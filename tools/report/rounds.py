"""The evaluations of a run: what was measured of each snapshot. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from podzero.tools.report.curves import Metrics
from podzero.tools.report.figures import Curve, Figure
from podzero.tools.report.history import FloatArray

MOST_DOTS = 80
"""Evaluations of a figure above which their points are not drawn."""


class Rounds:
    """The evaluations of a run, by the learner step that was evaluated.

    Args:
      metrics: of the run.
      ladder: the rating ladder of the newest checkpoint (`Ladder.to_json`). Its ratings replace those that were
        reported when each snapshot was evaluated, because later matches add to what is known of all players; intervals
        remain those that were reported.
    """

    def __init__(self, metrics: Metrics, ladder: Mapping[str, Any]) -> None:
        self._rounds: dict[int, dict[str, float]] = {}
        for table in metrics.history.of_kind("evaluator"):
            columns = {name.removeprefix("evaluation/"): table.column(name) for name in table.names}
            for row, step in enumerate(columns.get("step", np.empty(0))):
                if np.isfinite(step):
                    known = {name: float(column[row]) for name, column in columns.items() if np.isfinite(column[row])}
                    self._rounds[int(step)] = known
        match ladder:
            case {"ratings": {**ratings}}:
                for step, found in self._rounds.items():
                    found.update(_rating(ratings.get(f"@{step}")))
        self.steps = sorted(self._rounds)
        self._axes = metrics.timeline.at_steps(np.array(self.steps, float))

    @property
    def names(self) -> set[str]:
        """The metrics that some evaluation has."""
        return {name for metrics in self._rounds.values() for name in metrics}

    def values(self, name: str) -> FloatArray:
        """`[R]` values of a metric, NaN in evaluations without it."""
        return np.array([self._rounds[step].get(name, np.nan) for step in self.steps])

    def curve(self, name: str, label: str, interval: Callable[[float, int], tuple[float, float]]) -> Curve | None:
        """A metric with its interval; `interval(value, step)` gives the two ends. None if no evaluation has it."""
        values = self.values(name)
        if not np.isfinite(values).any():
            return None
        ends = [
            interval(float(value), step) if np.isfinite(value) else (np.nan, np.nan)
            for value, step in zip(values, self.steps, strict=True)
        ]
        low, high = np.array(ends, float).T
        return Curve(label, values, low, high)

    def get(self, step: int, name: str) -> float | None:
        """A metric of an evaluation; None if it does not have it."""
        return self._rounds[step].get(name)

    def figure(self, title: str, unit: str, caption: str, curves: Sequence[Curve | None]) -> list[Figure]:
        """A figure of the curves that exist, as a list of one or none."""
        found = [curve for curve in curves if curve is not None]
        return [Figure(title, unit, caption, self._axes, found, dots=len(self.steps) <= MOST_DOTS)] if found else []


def _rating(held: object) -> dict[str, float]:
    """A player's rating in the ladder as a metric; none if it is damaged."""
    match held:
        case {"elo": int() | float() as elo}:
            return {"elo": float(elo)}
    return {}
