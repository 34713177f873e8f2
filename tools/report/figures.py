"""What a report consists of: sections with figures, tables and games, and the curves made from metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from podzero.tools.report.history import Axes, Bins, FloatArray, History, Timeline, Values

DIGITS = 5
"""Significant digits of the numbers in the page."""


@dataclass(frozen=True)
class ReportCurve:
    """A curve of a figure, with an optional band around it."""

    label: str
    values: FloatArray
    """`[N]`, NaN where there is no value."""
    low: FloatArray | None = None
    """`[N]` lower edge of the band."""
    high: FloatArray | None = None
    """`[N]` upper edge of the band."""

    @property
    def known(self) -> FloatArray:
        """The values that are not NaN."""
        result: FloatArray = self.values[np.isfinite(self.values)]
        return result

    @property
    def least(self) -> float:
        """The least value, or the lowest point of the band if there is one."""
        return float(np.nanmin(self.values if self.low is None else np.fmin(self.values, self.low)))

    @property
    def greatest(self) -> float:
        """The greatest value, or the highest point of the band if there is one."""
        return float(np.nanmax(self.values if self.high is None else np.fmax(self.values, self.high)))


@dataclass(frozen=True)
class Figure:
    """Curves over hours of training, learner steps or games."""

    title: str
    unit: str
    caption: str
    """One sentence that says what is shown."""
    axes: Axes
    curves: Sequence[ReportCurve]
    stacked: bool = False
    """Whether the curves are shares that are stacked."""
    dots: bool = False
    """Whether each point is marked."""

    def to_tree(self) -> dict[str, Any]:
        """The figure as plain values for the page's script."""
        return {
            "unit": self.unit,
            "stacked": self.stacked,
            "dots": self.dots,
            "axes": {name: numbers(values) for name, values in self.axes._asdict().items()},
            "curves": [
                {
                    "label": curve.label,
                    "values": numbers(curve.values),
                    "low": None if curve.low is None else numbers(curve.low),
                    "high": None if curve.high is None else numbers(curve.high),
                }
                for curve in self.curves
            ],
        }


@dataclass(frozen=True)
class ReportTable:
    """Rows of text."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class GameReplay:
    """A game as a series of boards in SVG, to step through."""

    title: str
    extent: tuple[int, int]
    """Width and height of a board, in SVG units."""
    ground: str
    """The SVG elements of the empty board."""
    elements: Sequence[str]
    """The SVG elements of all pieces and marks in the game, without duplicates."""
    frames: Sequence[Sequence[int]]
    """`[plies + 1]`, the indices into `elements` for each position."""
    moves: Sequence[str]
    """`[plies]`, the names of the moves."""
    caption: str = ""

    @property
    def last(self) -> str:
        """The SVG elements of the last position."""
        return "".join(self.elements[number] for number in self.frames[-1])

    def to_tree(self) -> dict[str, Any]:
        """The game as plain values for the page's script."""
        return {"elements": list(self.elements), "frames": list(self.frames), "moves": list(self.moves)}


@dataclass(frozen=True)
class ReportSection:
    """A section of the report. Empty sections are left out."""

    title: str
    figures: Sequence[Figure] = ()
    tables: Sequence[ReportTable] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """Names and values."""
    text: str = ""
    """A long text, collapsed when the page opens."""
    replays: Sequence[GameReplay] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.figures or self.tables or self.facts or self.text or self.replays)


def numbers(values: FloatArray) -> list[float | None]:
    """Values for JSON: rounded to `DIGITS` digits, None for NaN and infinities."""
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]


# Curves and figures from the metrics of a run.

SMALLEST_SHARE = 0.002
"""A stage that takes a smaller share of the time, on average, gets no curve of its own."""
REST = "not measured"
"""The label of the time that belongs to no stage."""


class MetricCurves:
    """The metrics of a run as curves over its training time."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.timeline = Timeline(history)
        self._bins = Bins(self.timeline.end_hours)
        self._axes = self.timeline.at_hours(self._bins.middles)

    def gauge(self, kind: str, name: str, label: str) -> ReportCurve | None:
        """A quantity that the workers of a kind measure: its mean, and a band from the least to the greatest value."""
        return self.envelope(self.history.values(kind, name), label)

    def envelope(self, values: Values, label: str) -> ReportCurve | None:
        """The mean of the values in each bin, with a band from the least to the greatest; None without values."""
        if not len(values.values):
            return None
        mean, low, high = self._bins.envelope(self.timeline.hours(values.times), values.values)
        return ReportCurve(label, mean, low, high)

    def per_s(self, kind: str, name: str, label: str, scale: float = 1.0) -> ReportCurve | None:
        """The rate of a count, summed over all workers of a kind, times `scale`; None if nothing was counted."""
        workers = [counts for counts in self.history.each(kind, name) if counts.values.any()]
        if not workers:
            return None
        rates = [self._bins.per_s(self.timeline.hours(counts.times), counts.values) for counts in workers]
        return ReportCurve(label, scale * np.sum(rates, axis=0))

    def steps_per_s(self, label: str, scale: float = 1.0) -> ReportCurve | None:
        """The rate of learner steps, times `scale`."""
        steps = self.history.values("learner", "learner/step")
        if not steps.values.any():
            return None
        made = np.diff(np.maximum.accumulate(steps.values), prepend=0.0)
        return ReportCurve(label, scale * self._bins.per_s(self.timeline.hours(steps.times), made))

    def shares(self, kind: str) -> list[ReportCurve]:
        """The share of its time that a kind of worker spends in each stage, and the rest that no stage measures."""
        stages = sorted(name for name in self.history.names(kind) if name.startswith("time/"))
        tables = self.history.of_kind(kind)
        # One matrix `[N, stages]` per worker. A line that lacks a stage spent no time in it; a line that lacks all
        # stages does not report times.

        columns = [np.stack([table.column(stage) for stage in stages], axis=1) for table in tables if stages]
        reported = [np.isfinite(column).any(axis=1) for column in columns]
        means: dict[str, FloatArray] = {}
        if columns:
            times = np.concatenate([table.times[known] for table, known in zip(tables, reported, strict=True)])
            shares = np.concatenate([np.nan_to_num(c[known]) for c, known in zip(columns, reported, strict=True)])
            hours = self.timeline.hours(times)
            for column, stage in enumerate(stages):
                means[stage.removeprefix("time/")] = self._bins.envelope(hours, shares[:, column]).mean
        if not means:
            return []
        rest = np.maximum(1.0 - np.sum(list(means.values()), axis=0), 0.0)
        named = {stage: mean for stage, mean in means.items() if np.nanmean(mean) >= SMALLEST_SHARE}
        largest_first = sorted(named, key=lambda stage: -float(np.nanmean(named[stage])))
        return [ReportCurve(stage, named[stage]) for stage in largest_first] + [ReportCurve(REST, rest)]

    def figure(self, title: str, unit: str, caption: str, curves: Sequence[ReportCurve | None]) -> list[Figure]:
        """A figure of the curves that are not None, as a list of one figure; an empty list if there are none."""
        found = [curve for curve in curves if curve is not None and len(curve.known)]
        return [Figure(title, unit, caption, self._axes, found)] if found else []

    def stacked(self, title: str, caption: str, curves: Sequence[ReportCurve]) -> list[Figure]:
        """A figure of stacked shares, as a list of one figure; an empty list without data."""
        found = [curve for curve in curves if len(curve.known)]
        return [Figure(title, "share", caption, self._axes, found, stacked=True)] if found else []
