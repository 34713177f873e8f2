"""The parts of a report (sections, figures, tables, games), and curves made from metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from podzero.core.clock import REST
from podzero.tools.commands.printing import ReportTable
from podzero.tools.report.record import FloatArray, History, Values

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
        return self.values[np.isfinite(self.values)]

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
        axes = {name: numbers(values) for name, values in self.axes._asdict().items()}
        curves = [curve.to_tree() for curve in self.curves]
        return {"unit": self.unit, "stacked": self.stacked, "dots": self.dots, "axes": axes, "curves": curves}


@dataclass(frozen=True)
class SampleGame:
    """A game as boards in SVG that the reader steps through."""

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

    def __bool__(self) -> bool:
        """Whether there is something to show."""
        return any((self.figures, self.tables, self.facts, self.text, self.replays))


def numbers(values: FloatArray) -> list[float | None]:
    """Converts values to JSON: rounded to `DIGITS` digits, None for NaN and infinities."""
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]


# The progress of a run at each moment: hours of training, learner steps, games.

SHORTEST_PAUSE_S = 300.0
"""Seconds without a line from any worker that count as a pause of the run."""
SPARSENESS = 1 / 1000
"""The same limit as a share of the time so far: long runs write lines less often (`monitoring.metrics.RESOLUTION`)."""


class Axes(NamedTuple):
    """Coordinates of points on each of a figure's three horizontal axes, `[N]` each."""

    hours: FloatArray
    """Hours of training, without pauses."""
    steps: FloatArray
    games: FloatArray
    """Games or episodes finished by the actors."""


class Timeline:
    """Converts moments of a run to hours of training, learner steps and games."""

    def __init__(self, history: History) -> None:
        workers = history.workers
        # Evaluator and driver report after training too, while the last snapshot is judged.
        tables = [workers[name] for name in workers.keys() - {"evaluator", "driver"}] or list(workers.values())
        # A run without lines has one moment, at which nothing has happened.
        moments = np.unique(np.concatenate([table.times for table in tables])) if tables else np.zeros(1)
        self._times = moments
        gaps = np.diff(moments, prepend=moments[:1])
        pause = np.maximum(SHORTEST_PAUSE_S, SPARSENESS * (moments - moments[:1]))
        self._hours = np.cumsum(np.where(gaps > pause, 0.0, gaps)) / 3600.0
        self.end_hours = float(self._hours[-1])
        """Hours of training so far."""
        steps = np.zeros(len(moments))
        for table in tables:
            np.maximum.at(steps, np.searchsorted(moments, table.times), table.steps)
        # Workers write the newest step that they know, so a later line may have an earlier step.
        self._steps = np.maximum.accumulate(steps)
        games = history.values("actor", "count/games")
        totals = np.concatenate([[0.0], np.cumsum(games.values)])
        self._games = totals[np.searchsorted(games.times, moments, side="right")]

    def moments(self, step: int) -> tuple[float, float]:
        """The times of the first line and of the first one at `step` or later, in seconds since the epoch.

        Where no line has that step, the second is the time of the last line. Both are 0 without lines.
        """
        first = min(int(np.searchsorted(self._steps, step)), len(self._times) - 1)
        return float(self._times[0]), float(self._times[first])

    def hours(self, times: FloatArray) -> FloatArray:
        """Hours of training at `times` (`[N]`, seconds since the epoch)."""
        return np.interp(times, self._times, self._hours)

    def at_hours(self, hours: FloatArray) -> Axes:
        """The coordinates, on all three axes, of the moments after these hours of training, `[N]`."""
        return Axes(hours, *(np.interp(hours, self._hours, axis) for axis in (self._steps, self._games)))

    def at_steps(self, steps: FloatArray) -> Axes:
        """The coordinates of the moments at which the learner reached `steps`, `[N]`."""
        first = np.searchsorted(self._steps, steps).clip(max=len(self._steps) - 1)
        return Axes(self._hours[first], steps, self._games[first])


# Bins of training time bound the number of points of a curve. A bin's mean is drawn as a line, its minimum and maximum
# as a band, so that no spike is lost.

MAX_BINS = 400
"""Most points of a curve."""
SHORTEST_BIN_S = 15.0
"""Shortest bin in seconds; workers write a line every two seconds, so it holds several."""


class Bins:
    """Equal intervals of a run's training time."""

    def __init__(self, end_hours: float) -> None:
        count = int(np.clip(end_hours * 3600.0 / SHORTEST_BIN_S, 1, MAX_BINS))
        self._edges = np.linspace(0.0, max(end_hours, 1e-9), count + 1)
        self.middles: FloatArray = (self._edges[1:] + self._edges[:-1]) / 2
        """`[B]`, the middle of each bin in hours of training."""

    def envelope(self, hours: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean, minimum and maximum of each bin, `[B]` each, of `values` `[N]`, measured at `hours` `[N]` of training.

        NaN for empty bins.
        """
        count = len(self._edges) - 1
        index = np.clip(np.searchsorted(self._edges, hours, side="right") - 1, 0, count - 1)
        low, high = np.full((2, count), np.nan)
        np.fmin.at(low, index, values)
        np.fmax.at(high, index, values)
        with np.errstate(invalid="ignore"):  # 0 / 0 in empty bins
            mean = np.bincount(index, values, count) / np.bincount(index, minlength=count)
        return mean, low, high

    def per_s(self, hours: FloatArray, counts: FloatArray) -> FloatArray:
        """The events per second in each bin, `[B]`, of one worker's `counts` of events since the count before.

        `hours` of training are those at the end of each count, ascending; both `[N]`, with N at least 1.
        """
        # A count is spread over the time since the previous one; the first falls on its own time.
        totals = np.interp(self._edges, np.append(hours[:1], hours), np.append(0.0, np.cumsum(counts)))
        result: FloatArray = np.diff(totals) / (3600.0 * np.diff(self._edges))
        return result


# Curves and figures from the metrics of a run.

SMALLEST_SHARE = 0.002
"""Stages with a smaller mean share of the time get no curve."""


class MetricCurves:
    """Makes curves over the training time from the metrics of a run."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.timeline = Timeline(history)
        self._bins = Bins(self.timeline.end_hours)
        self._axes = self.timeline.at_hours(self._bins.middles)

    def gauge(self, kind: str, name: str, label: str) -> ReportCurve | None:
        """The mean of a metric over the workers of a kind, with a band from minimum to maximum; None without values."""
        values = [self.history.values(kind, each) for each in (name, f"{name}_min", f"{name}_max")]
        curve = self.envelope(values[0], label)
        if curve is None or not len(values[1].values):
            return curve
        times, _, found = (np.concatenate(parts) for parts in zip(*values, strict=True))
        _, low, high = self._bins.envelope(self.timeline.hours(times), found)
        return replace(curve, low=low, high=high)

    def envelope(self, values: Values, label: str) -> ReportCurve | None:
        """The mean of the values per bin, with a band from minimum to maximum; None without values."""
        if not len(values.values):
            return None
        return ReportCurve(label, *self._bins.envelope(self.timeline.hours(values.times), values.values))

    def per_s(self, name: str, label: str, scale: float = 1.0) -> ReportCurve | None:
        """The rate of a count of the actors, summed over them, times `scale`; None if nothing was counted."""
        workers = [counts for counts in self.history.each("actor", f"count/{name}") if counts.values.any()]
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
            stage.removeprefix("time/"): self._bins.envelope(hours, column)[0]
            for stage, column in zip(stages, np.nan_to_num(shares[reported]).T, strict=True)
        }
        means.pop(REST, None)  # earlier versions did not report it
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
