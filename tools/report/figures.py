"""The parts of a report (sections, figures, tables, games), and curves made from metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from podzero.tools.commands.printing import ReportTable
from podzero.tools.report.history import Axes, Bins, FloatArray, History, Timeline, Values

DIGITS = 5
"""Significant digits of numbers in the page."""


@dataclass(frozen=True)
class ReportCurve:
    """A curve of a figure, with an optional band around it."""

    label: str
    values: FloatArray
    """`[N]`, NaN where there is no value."""
    low: FloatArray | None = None
    """`[N]`, the lower edge of the band."""
    high: FloatArray | None = None
    """`[N]`, the upper edge of the band."""

    @property
    def known(self) -> FloatArray:
        """The values that are not NaN."""
        result: FloatArray = self.values[np.isfinite(self.values)]
        return result

    @property
    def cells(self) -> list[str]:
        """Its first, last, least and greatest value; the band counts among the last two."""
        low, high = self.values if self.low is None else self.low, self.values if self.high is None else self.high
        least, greatest = np.nanmin(np.fmin(self.values, low)), np.nanmax(np.fmax(self.values, high))
        return [f"{value:,.4g}" for value in (self.known[0], self.known[-1], least, greatest)]

    def to_tree(self) -> dict[str, Any]:
        """The curve as JSON values for the page's script."""
        arrays = {"values": self.values, "low": self.low, "high": self.high}
        return {"label": self.label} | {name: None if a is None else numbers(a) for name, a in arrays.items()}


@dataclass(frozen=True)
class Figure:
    """Curves over hours of training, learner steps or games."""

    title: str
    unit: str
    caption: str
    """A sentence that explains the curves."""
    axes: Axes
    curves: Sequence[ReportCurve]
    stacked: bool = False
    """Whether the curves are shares that are stacked."""
    dots: bool = False
    """Whether points are marked."""

    def to_tree(self) -> dict[str, Any]:
        """The figure as JSON values for the page's script."""
        return {
            "unit": self.unit,
            "stacked": self.stacked,
            "dots": self.dots,
            "axes": {name: numbers(values) for name, values in self.axes._asdict().items()},
            "curves": [curve.to_tree() for curve in self.curves],
        }


@dataclass(frozen=True)
class SampleGame:
    """A game as SVG boards that the reader steps through."""

    title: str
    extent: tuple[int, int]
    """Width and height of a board, in SVG units."""
    ground: str
    """SVG elements of the empty board."""
    elements: Sequence[str]
    """SVG elements of all pieces and marks in the game, without duplicates."""
    frames: Sequence[Sequence[int]]
    """`[plies + 1]`, the indices in `elements` of each position's pieces and marks."""
    moves: Sequence[str]
    """`[plies]`, the names of the moves."""
    caption: str = ""

    @property
    def last(self) -> str:
        """SVG elements of the last position."""
        return "".join(self.elements[number] for number in self.frames[-1])

    def to_tree(self) -> dict[str, Any]:
        """The game as JSON values for the page's script."""
        return {"elements": list(self.elements), "frames": list(self.frames), "moves": list(self.moves)}


@dataclass(frozen=True)
class ReportSection:
    """A section of a report; the page leaves out empty ones."""

    title: str
    figures: Sequence[Figure] = ()
    tables: Sequence[ReportTable] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """Names and values."""
    text: str = ""
    """A long text, initially collapsed."""
    replays: Sequence[SampleGame] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.figures or self.tables or self.facts or self.text or self.replays)


def numbers(values: FloatArray) -> list[float | None]:
    """Converts values to JSON: rounded to `DIGITS` digits, None for NaN and infinities."""
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]


# Curves and figures from the metrics of a run.

SMALLEST_SHARE = 0.002
"""Stages with a smaller mean share of the time get no curve."""
REST = "not measured"
"""Label of the time that belongs to no stage; also in page.js."""


class MetricCurves:
    """Makes curves over the training time from the metrics of a run."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.timeline = Timeline(history)
        self._bins = Bins(self.timeline.end_hours)
        self._axes = self.timeline.at_hours(self._bins.middles)

    def gauge(self, kind: str, name: str, label: str) -> ReportCurve | None:
        """The mean of a metric over the workers of a kind, with a band from minimum to maximum; None without values."""
        return self.envelope(self.history.values(kind, name), label)

    def envelope(self, values: Values, label: str) -> ReportCurve | None:
        """The mean of the values per bin, with a band from minimum to maximum; None without values."""
        if not len(values.values):
            return None
        mean, low, high = self._bins.envelope(self.timeline.hours(values.times), values.values)
        return ReportCurve(label, mean, low, high)

    def per_s(self, kind: str, name: str, label: str, scale: float = 1.0) -> ReportCurve | None:
        """The rate of a count, summed over the workers of a kind, times `scale`; None if nothing was counted."""
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
        # After a resumption the step starts again from the checkpoint: steps trained twice count once.
        made = np.diff(np.maximum.accumulate(steps.values), prepend=0.0)
        return ReportCurve(label, scale * self._bins.per_s(self.timeline.hours(steps.times), made))

    def shares(self, kind: str) -> list[ReportCurve]:
        """The mean share of time that a kind of worker spends in each stage, and the rest that no stage measures."""
        stages = sorted(name for name in self.history.names(kind) if name.startswith("time/"))
        if not stages:
            return []
        tables = self.history.of_kind(kind)
        # `[N, stages]`. A line without a stage spent no time in it; a line without any stage does not report times.
        shares = np.stack([np.concatenate([table.column(stage) for table in tables]) for stage in stages], axis=1)
        reported = np.isfinite(shares).any(axis=1)
        hours = self.timeline.hours(np.concatenate([table.times for table in tables])[reported])
        means = {
            stage.removeprefix("time/"): self._bins.envelope(hours, column).mean
            for stage, column in zip(stages, np.nan_to_num(shares[reported]).T, strict=True)
        }
        rest = np.maximum(1.0 - np.sum(list(means.values()), axis=0), 0.0)
        named = {stage: mean for stage, mean in means.items() if np.nanmean(mean) >= SMALLEST_SHARE}
        largest_first = sorted(named, key=lambda stage: float(np.nanmean(named[stage])), reverse=True)
        return [*(ReportCurve(stage, named[stage]) for stage in largest_first), ReportCurve(REST, rest)]

    def figure(
        self, title: str, unit: str, caption: str, curves: Sequence[ReportCurve | None], stacked: bool = False
    ) -> list[Figure]:
        """A list of one figure with the curves that have values; empty if there are none."""
        found = [curve for curve in curves if curve is not None and len(curve.known)]
        return [Figure(title, unit, caption, self._axes, found, stacked)] if found else []
