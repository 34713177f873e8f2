"""Makes curves and figures from the metrics of a run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from podzero.tools.report.bins import Bins
from podzero.tools.report.figures import Curve, Figure
from podzero.tools.report.history import FloatArray, History, Values
from podzero.tools.report.timeline import Timeline

SMALLEST_SHARE = 0.002
"""Mean share of time below which a stage has no curve of its own."""
REST = "not measured"
"""The label of the time of no stage."""


class Metrics:
    """The metrics of a run, as curves over spans of its training time."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.timeline = Timeline(history)
        self._bins = Bins(self.timeline.end_hours)
        self._axes = self.timeline.at_hours(self._bins.middles)

    def gauge(self, kind: str, name: str, label: str) -> Curve | None:
        """A measured quantity of all workers of a kind: its mean, and a band from the least to the greatest value."""
        return self.envelope(self.history.values(kind, name), label)

    def envelope(self, values: Values, label: str) -> Curve | None:
        """The mean of values by spans, with a band from the least to the greatest; None without values."""
        if not len(values.values):
            return None
        mean, low, high = self._bins.envelope(self.timeline.hours(values.times), values.values)
        return Curve(label, mean, low, high)

    def per_s(self, kind: str, name: str, label: str, scale: float = 1.0) -> Curve | None:
        """The rate of a count over all workers of a kind, times `scale`; None if nothing was counted."""
        workers = [counts for counts in self.history.each(kind, name) if counts.values.any()]
        if not workers:
            return None
        rates = [self._bins.per_s(self.timeline.hours(counts.times), counts.values) for counts in workers]
        return Curve(label, scale * np.sum(rates, axis=0))

    def steps_per_s(self, label: str, scale: float = 1.0) -> Curve | None:
        """The rate of learner steps, times `scale`."""
        steps = self.history.values("learner", "learner/step")
        if not steps.values.any():
            return None
        made = np.diff(np.maximum.accumulate(steps.values), prepend=0.0)
        return Curve(label, scale * self._bins.per_s(self.timeline.hours(steps.times), made))

    def shares(self, kind: str) -> list[Curve]:
        """The share of time of each stage of the workers of a kind, and of what no stage measures."""
        stages = sorted(name for name in self.history.names(kind) if name.startswith("time/"))
        tables = self.history.of_kind(kind)
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
        return [Curve(stage, named[stage]) for stage in largest_first] + [Curve(REST, rest)]

    def figure(self, title: str, unit: str, caption: str, curves: Sequence[Curve | None]) -> list[Figure]:
        """A figure of the curves that exist, as a list of one or none."""
        found = [curve for curve in curves if curve is not None and len(curve.known)]
        return [Figure(title, unit, caption, self._axes, found)] if found else []

    def stacked(self, title: str, caption: str, curves: Sequence[Curve]) -> list[Figure]:
        """A figure of shares above one another, as a list of one or none."""
        found = [curve for curve in curves if len(curve.known)]
        return [Figure(title, "share", caption, self._axes, found, stacked=True)] if found else []
