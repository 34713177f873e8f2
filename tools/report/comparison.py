"""Runs side by side: settings that differ, and what each had reached and measured after equal time of training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from podzero.files.workdir import side_by_side
from podzero.runtime.monitoring.status import duration
from podzero.tools.commands.printing import ReportTable, readable
from podzero.tools.report.figures import Axes, Figure, MetricCurves, ReportCurve, ReportSection
from podzero.tools.report.record import Record
from podzero.tools.report.sections import learning, measured, strength, throughput

ABSENT = "\N{EN DASH}"
"""Shown where a run has no such setting or value."""
RECENT = 0.1
"""Losses are means over this last share of the time."""


def setting_text(value: Any) -> str:
    """A setting's value as text."""
    return value if isinstance(value, str) else json.dumps(value)


class Measured(NamedTuple):
    """A value of a run, with its 95% interval if it has one."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        known = self.low is not None and self.high is not None
        return readable(self.value) + (f" ({readable(self.low)} to {readable(self.high)})" if known else "")


class Comparison(NamedTuple):
    """Runs side by side."""

    runs: list[str]
    hours: float
    """The time of training at which they are compared: that of the shortest run that has trained."""
    settings: dict[str, list[Any]]
    """The settings in which the runs differ, with the value of each run; `ABSENT` where it has no such setting."""
    values: dict[str, list[Measured | None]]
    """By quantity that of each run; None where a run has not measured it."""

    def to_tree(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        values = [{"what": what, "values": [one and one._asdict() for one in row]} for what, row in self.values.items()]
        return self._asdict() | {"values": values}

    def tables(self) -> list[ReportTable]:
        """Two tables with a column for each run."""
        header = ("", *self.runs)
        settings = [(name, *map(setting_text, values)) for name, values in self.settings.items()]
        values = [(what, *(str(value or ABSENT) for value in row)) for what, row in self.values.items()]
        return [
            *([ReportTable("Settings that differ.", header, settings)] if settings else []),
            ReportTable(
                f"After {duration(3600 * self.hours)} of training, the time of the shortest run: newest evaluations "
                f"with 95% intervals, losses over the last {RECENT:.0%} of that time, rates over all of it.",
                header,
                values,
            ),
        ]


def compare(records: Mapping[str, Record]) -> Comparison:
    """Puts at least two runs side by side, at the time of training of the shortest one that has trained."""
    metrics = {name: MetricCurves(record.history) for name, record in records.items()}
    hours = min(filter(None, (one.timeline.end_hours for one in metrics.values())), default=0.0)
    columns = [_values(record, metrics[name], hours) for name, record in records.items()]
    named = list(dict.fromkeys(what for column in columns for what in column))
    experiments = [record.experiment for record in records.values()]
    return Comparison(
        list(records),
        hours,
        side_by_side(experiments, exclude={"name"}, absent=ABSENT),
        {what: [column.get(what) for column in columns] for what in named},
    )


def _values(record: Record, metrics: MetricCurves, hours: float) -> dict[str, Measured]:
    """What a run had reached and measured after so many hours, by name."""
    at = metrics.timeline.at_hours(np.array([hours]))
    samples = record.history.values("actor", "count/samples")
    written = samples.values[metrics.timeline.hours(samples.times) <= hours].sum()
    reached = {"learner steps": at.steps[0], "games": at.games[0], "samples written": written}
    return {
        **{name: Measured(float(value)) for name, value in reached.items()},
        **_of(strength(metrics, record.experiment, record.ladder), hours, None),
        **_of(learning(metrics), hours, RECENT),
        **_of(throughput(metrics, record.experiment), hours, 1.0),
    }


def _of(section: ReportSection, hours: float, over: float | None) -> dict[str, Measured]:
    """Each curve of a section after so many hours, by name; shares of the time are left out.

    A value is the mean `over` this last share of the time, or, for None, the newest one with its band.
    """
    found = {}
    for figure in section.figures:
        for curve in () if figure.stacked else figure.curves:
            # The bins of another run end elsewhere, so rounding decides whether the last one counts.
            known = np.flatnonzero(np.isfinite(curve.values) & (figure.axes.hours <= hours * (1 + 1e-9)))
            if not len(known):
                continue
            name = f"{figure.title}: {curve.label}" + (f" ({figure.unit})" if figure.unit else "")
            if over is None:
                last = [float(edge[known[-1]]) for edge in (curve.values, curve.low, curve.high) if edge is not None]
                found[name] = Measured(*last[: 3 if np.isfinite(last).all() else 1])
            else:
                shares = figure.axes.hours[known] / max(hours, 1e-9)
                late = known[shares >= min(1 - over, shares[-1])]
                found[name] = Measured(float(curve.values[late].mean()))
    return found


def overlaid(records: Mapping[str, Record]) -> list[ReportSection]:
    """The sections of several runs with the curves of all runs in the same figures; shares of the time are left out."""
    sections: dict[str, dict[str, list[tuple[str, Figure]]]] = {}
    for name, record in records.items():
        for section in measured(record):
            figures = sections.setdefault(section.title, {})
            for figure in section.figures:
                if not figure.stacked:
                    figures.setdefault(figure.title, []).append((name, figure))
    return [
        ReportSection(title, [_over_one_another(figures) for figures in named.values()])
        for title, named in sections.items()
    ]


def _over_one_another(figures: Sequence[tuple[str, Figure]]) -> Figure:
    """One figure with the curves of several runs. Its points are those of all runs; each curve has those of its own."""
    first = figures[0][1]
    axes = Axes(*(np.concatenate(axis) for axis in zip(*(figure.axes for _, figure in figures), strict=True)))
    curves, before = [], 0
    for name, figure in figures:
        after = len(axes.hours) - before - len(figure.axes.hours)
        padded = partial(np.pad, pad_width=(before, after), constant_values=np.nan)
        before += len(figure.axes.hours)
        for curve in figure.curves:
            label = name if len(figure.curves) == 1 else f"{name}: {curve.label}"
            edges = [None if edge is None else padded(edge) for edge in (curve.low, curve.high)]
            curves.append(ReportCurve(label, padded(curve.values), *edges))
    return Figure(first.title, first.unit, first.caption, axes, curves, dots=all(figure.dots for _, figure in figures))
