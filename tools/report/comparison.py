"""Runs side by side: settings that differ, and what each had reached and measured after equal time of training.

Runs that differ only in their seed are one choice: its curves are means over the seeds, and choices are compared with
the first one by pairs of equal seeds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from string import ascii_uppercase
from typing import Any, NamedTuple

import numpy as np

from podzero.config import Experiment
from podzero.evaluation.statistics import Difference, interquartile_mean
from podzero.files.workdir import side_by_side
from podzero.runtime.monitoring.status import duration
from podzero.tools.commands.printing import ReportTable, readable
from podzero.tools.report.figures import Axes, Figure, MetricCurves, ReportCurve, ReportSection
from podzero.tools.report.record import FloatArray, Record
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
    choices: dict[str, dict[str, int]]
    """The runs by choice, each with its seed. Empty if no two runs differ only in their seed."""

    def to_tree(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        values = [{"what": what, "values": [one and one._asdict() for one in row]} for what, row in self.values.items()]
        return self._asdict() | {"values": values, "over_seeds": self.over_seeds()}

    def over_seeds(self) -> list[dict[str, Any]]:
        """For each quantity and choice: `what`, `choice`, the number of `seeds`, the `mean` over them, the
        interquartile mean `iqm` with its 95% interval `low` to `high`, and the `difference` from the first choice.
        """
        rows: list[dict[str, Any]] = []
        for what, row in self.values.items():
            known = {run: one.value for run, one in zip(self.runs, row, strict=True) if one is not None}
            choices = self.choices.items()
            by_seed = {name: {seed: known[run] for run, seed in runs.items() if run in known} for name, runs in choices}
            for choice, values in by_seed.items():
                if values:
                    found: dict[str, Any] = {"seeds": len(values), "mean": fmean(values.values())}
                    middle = map(float, interquartile_mean(np.array([*values.values()])))
                    found |= dict(zip(("iqm", "low", "high"), middle, strict=True))
                    found["difference"] = paired_by_seed(values, by_seed[next(iter(by_seed))])
                    rows.append({"what": what, "choice": choice, **found})
        return rows

    def tables(self) -> list[ReportTable]:
        """Two tables with a column for each run, and one over the seeds of each choice."""
        header = ("", *self.runs)
        settings = [(name, *map(setting_text, values)) for name, values in self.settings.items()]
        values = [(what, *(str(value or ABSENT) for value in row)) for what, row in self.values.items()]
        # Letters, since the names are too long for a column.
        letters = dict(zip(self.choices, ascii_uppercase, strict=False))
        named = "".join(f"\n{letter}: {choice}" for choice, letter in letters.items())
        seeds = [
            (
                *(one["what"], letters.get(one["choice"], one["choice"]), str(one["seeds"]), readable(one["mean"])),
                str(Measured(one["iqm"], *((one["low"], one["high"]) if one["seeds"] > 1 else ()))),
                str(Difference(**one["difference"])) if one["difference"] else ABSENT,
            )
            for one in self.over_seeds()
        ]
        return [
            *([ReportTable("Settings that differ.", header, settings)] if settings else []),
            ReportTable(
                f"After {duration(3600 * self.hours)} of training, the time of the shortest run: newest evaluations "
                f"with 95% intervals, losses over the last {RECENT:.0%} of that time, rates over all of it.",
                header,
                values,
            ),
            *([ReportTable(_OVER_SEEDS + named, _SEEDS_HEADER, seeds)] if seeds else []),
        ]


def paired_by_seed[Seed](values: Mapping[Seed, float], first: Mapping[Seed, float]) -> dict[str, Any] | None:
    """The `Difference` of a choice's values by seed from those of the `first` one, as JSON values; None for itself."""
    pairs = () if values is first else [value - first[seed] for seed, value in values.items() if seed in first]
    difference = Difference.of(pairs)
    return difference and difference._asdict()


_SEEDS_HEADER = ("", "choice", "seeds", "mean", "interquartile mean", "difference")
_OVER_SEEDS = (
    "Over the seeds of each choice: mean, interquartile mean with its 95% bootstrap interval, and mean difference from "
    "the first choice, paired by seed, with Student's 95% interval."
)


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
        choices_of({name: record.experiment for name, record in records.items()}),
    )


def choices_of(experiments: Mapping[str, Experiment]) -> dict[str, dict[str, int]]:
    """The runs by choice, each with its seed, from their experiments by name; see `Comparison.choices`.

    A choice is named by its settings that differ from other choices, without their sections where that is enough, or by
    its experiment if there are none.
    """
    groups: dict[str, dict[str, int]] = {}
    for run, experiment in experiments.items():
        groups.setdefault(experiment.model_dump_json(exclude={"name", "seed"}), {})[run] = experiment.seed
    if len(groups) == len(experiments):
        return {}
    heads = [experiments[next(iter(runs))] for runs in groups.values()]
    differing = side_by_side(heads, exclude={"name", "seed"}, absent=ABSENT)
    ends = Counter(key.rpartition(".")[2] for key in differing)
    shown = {(end if ends[end := key.rpartition(".")[2]] == 1 else key): found for key, found in differing.items()}
    names = [
        ", ".join(f"{key}={setting_text(values[number])}" for key, values in shown.items()) or head.name
        for number, head in enumerate(heads)
    ]
    return dict(zip(names, groups.values(), strict=True))


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
    """The sections of several runs with the curves of all choices, or runs, in the same figures.

    Shares of the time are left out.
    """
    experiments = {name: record.experiment for name, record in records.items()}
    choices = choices_of(experiments) or {name: {name: experiment.seed} for name, experiment in experiments.items()}
    shown = {name: measured(record) for name, record in records.items()}
    sections: dict[str, dict[str, list[tuple[str, Figure]]]] = {}
    for choice, runs in choices.items():
        found: dict[tuple[str, str], list[Figure]] = {}
        for run in runs:
            for section in shown[run]:
                for figure in section.figures:
                    if not figure.stacked:
                        found.setdefault((section.title, figure.title), []).append(figure)
        for (section_title, title), figures in found.items():
            one = figures[0] if len(figures) == 1 else mean_over_seeds(figures)
            if one.curves:
                sections.setdefault(section_title, {}).setdefault(title, []).append((choice, one))
    return [
        ReportSection(title, [_over_one_another(figures) for figures in named.values()])
        for title, named in sections.items()
    ]


def mean_over_seeds(figures: Sequence[Figure]) -> Figure:
    """A figure of several runs that differ in their seed: means over the runs, with a band from least to greatest.

    The first evaluations of all runs make one point, their second ones the next. Other points are spread evenly over
    the time for which all runs have values, and interpolate these linearly.
    """
    first, counts = figures[0], [len(figure.axes.hours) for figure in figures]
    evaluations = all(figure.dots for figure in figures)
    ends = [figure.axes.hours[[0, -1]] for figure in figures]
    hours = np.linspace(max(begin for begin, _ in ends), min(end for _, end in ends), max(counts))

    def at(figure: Figure, values: FloatArray) -> FloatArray:
        if evaluations:
            return values[: min(counts)]
        known = np.isfinite(values)
        return np.interp(hours, figure.axes.hours[known], values[known], left=np.nan, right=np.nan)

    axes = [[at(figure, axis) for axis in figure.axes] for figure in figures]
    by_label = [{curve.label: at(figure, curve.values) for curve in figure.curves} for figure in figures]
    curves = []
    for label in by_label[0]:
        values = np.stack([found.get(label, np.full(len(axes[0][0]), np.nan)) for found in by_label])
        if np.isfinite(values).all(axis=0).any():
            curves.append(ReportCurve(label, values.mean(axis=0), values.min(axis=0), values.max(axis=0)))
    caption = f"{first.caption} Here: mean over {len(figures)} seeds, band from the least to the greatest."
    return Figure(first.title, first.unit, caption, Axes(*np.mean(axes, axis=0)), curves, dots=evaluations)


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
