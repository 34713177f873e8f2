"""What the runs of a sweep reached: means over seeds, the spread between them, and differences paired by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from podzero.evaluation.statistics import student
from podzero.tools.commands.printing import ReportTable
from podzero.tools.report.figures import MetricCurves
from podzero.tools.report.record import RunReader
from podzero.tools.report.sections import Evaluations
from podzero.tools.sweep.folder import METRICS, SweepFolder, SweepRun, shown

_ABSENT = "\N{EN DASH}"


class RunResult(NamedTuple):
    """What a run of a sweep reached."""

    name: str
    combination: Mapping[str, str]
    """Its values of the swept settings, without the seed."""
    seed: str
    """Empty if seeds are not swept."""
    state: str
    """As in `folder.State`, or why the run was given up."""
    minutes: float
    """Minutes of training."""
    steps: int
    """Learner steps."""
    values: Mapping[str, float]
    """The newest evaluation, by the names of `folder.METRICS`."""
    measured_at: Mapping[str, int]
    """The learner step of each of these values."""


class Difference(NamedTuple):
    """A mean difference of pairs of runs with the same seed, and its 95% interval (Student)."""

    mean: float
    low: float
    """Minus infinity for a single pair."""
    high: float
    """Infinity for a single pair."""
    pairs: int


class Combination(NamedTuple):
    """The runs that differ only in their seed."""

    settings: Mapping[str, str]
    runs: int
    """The runs of the sweep."""
    values: Sequence[float]
    """The metric of those that have finished and have it."""
    difference: Difference | None
    """From the first combination; None for the first itself, and without pairs."""

    @property
    def mean(self) -> float:
        """The mean of `values`; NaN without any."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def spread(self) -> float:
        """The sample standard deviation between seeds; NaN for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan


class SweepResults(NamedTuple):
    """The results of a sweep."""

    metric: str
    """One of `folder.METRICS`."""
    combinations: Sequence[Combination]
    runs: Sequence[RunResult]

    def to_tree(self) -> dict[str, Any]:
        """The results as JSON values; null for what is not known."""
        return {
            "metric": self.metric,
            "combinations": [
                {
                    "settings": dict(one.settings),
                    "runs": one.runs,
                    "values": list(one.values),
                    "mean": _finite(one.mean),
                    "spread": _finite(one.spread),
                    "difference": one.difference and {k: _finite(v) for k, v in one.difference._asdict().items()},
                }
                for one in self.combinations
            ],
            "runs": [run._asdict() for run in self.runs],
        }

    def tables(self) -> list[ReportTable]:
        """A table of the combinations and one of the runs."""
        rows = [
            (
                shown(one.settings) or "as they stand",
                f"{len(one.values)} of {one.runs}",
                _number(one.mean),
                _number(one.spread),
                _said(one.difference),
            )
            for one in self.combinations
        ]
        runs = [
            (
                run.name,
                run.state,
                f"{run.minutes:.1f}",
                f"{run.steps:,}",
                _number(run.values.get(self.metric, math.nan)),
                f"{run.measured_at[self.metric]:,}" if self.metric in run.measured_at else _ABSENT,
            )
            for run in self.runs
        ]
        word = METRICS[self.metric]
        caption = (
            f"The {word} in the newest evaluation of each finished run: how many runs have one, mean and standard "
            "deviation over seeds, mean difference from the first row, paired by seed, with its 95% interval."
        )
        steps = sorted({run.measured_at[self.metric] for run in self.runs if _compared(run, self.metric)})
        if len(steps) > 1:
            caption += f" They are of steps from {steps[0]:,} to {steps[-1]:,}; --steps N compares equal steps."
        return [
            ReportTable(caption, ("settings", "measured", "mean", "spread", "difference"), rows),
            ReportTable("All runs.", ("run", "state", "minutes", "steps", word, "at step"), runs),
        ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else _ABSENT


def _said(difference: Difference | None) -> str:
    if difference is None:
        return _ABSENT
    mean, low, high, pairs = difference
    interval = f"{low:+.3g} to {high:+.3g}" if math.isfinite(low) else "no interval"
    return f"{mean:+.4g} ({interval}; {pairs} pair{'s' if pairs > 1 else ''})"


def summarize(runs: Sequence[RunResult], metric: str | None = None) -> SweepResults:
    """Compares the combinations of the runs with that of the first run.

    `metric` is one of `folder.METRICS`; by default the first that a run has.
    """
    metric = metric or next((name for name in METRICS if any(name in run.values for run in runs)), "rating")
    groups: dict[tuple[str, ...], list[RunResult]] = {}
    for run in runs:
        groups.setdefault(tuple(run.combination.values()), []).append(run)
    combinations: list[Combination] = []
    first: dict[str, float] = {}
    for group in groups.values():
        by_seed = {run.seed: run.values[metric] for run in group if _compared(run, metric)}
        difference = _paired(first, by_seed) if combinations else None
        first = first if combinations else by_seed
        combinations.append(Combination(group[0].combination, len(group), list(by_seed.values()), difference))
    return SweepResults(metric, combinations, runs)


def _compared(run: RunResult, metric: str) -> bool:
    return run.state == "finished" and metric in run.values


def _paired(first: Mapping[str, float], other: Mapping[str, float]) -> Difference | None:
    differences = [value - first[seed] for seed, value in other.items() if seed in first]
    if not differences:
        return None
    mean = statistics.fmean(differences)
    deviation = statistics.stdev(differences) if len(differences) > 1 else math.nan
    return Difference(mean, *student(mean, deviation, len(differences)), len(differences))


def read_result(folder: SweepFolder, run: SweepRun, error: str | None = None) -> RunResult:
    """Reads what a run has reached; `error` is the last one of a run that was given up."""
    workdir, (state, status) = folder.workdir(run), folder.progress(run)
    newest: dict[str, float] = {}
    measured_at: dict[str, int] = {}
    if workdir.is_run:
        record = RunReader(workdir).read()
        evaluations = Evaluations(MetricCurves(record.history), record.ladder)
        for name in METRICS:
            values = evaluations.values("elo" if name == "rating" else name)
            if (known := np.flatnonzero(np.isfinite(values))).size:
                newest[name], measured_at[name] = float(values[known[-1]]), evaluations.steps[known[-1]]
    return RunResult(
        run.name,
        run.combination,
        run.seed,
        state if error is None else f"given up: {error}",
        status.elapsed_s / 60 if status else 0.0,
        status.step if status else 0,
        newest,
        measured_at,
    )
