"""The sections of a report on what a run measured: strength, learning, replay, throughput, games of the actors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from podzero.config import Experiment
from podzero.evaluation.statistics import student, wilson
from podzero.runtime.monitoring.reports import SPREAD
from podzero.tools.commands.printing import ReportTable
from podzero.tools.report.figures import Figure, MetricCurves, ReportCurve, ReportSection
from podzero.tools.report.record import FloatArray, Record, Values


def measured(record: Record) -> list[ReportSection]:
    """The sections of a run's curves."""
    metrics, experiment = MetricCurves(record.history), record.experiment
    return [
        strength(metrics, experiment, record.ladder),
        learning(metrics),
        data(metrics, experiment),
        throughput(metrics, experiment),
        games(metrics),
    ]


Interval = Callable[[float, Mapping[str, float]], tuple[float, float]]
"""The ends of the band around a value, from it and all metrics of its evaluation."""
MOST_DOTS = 80
"""Figures with more evaluations do not mark each point."""


class Evaluations:
    """The evaluator's metrics of each snapshot, by the snapshot's learner step.

    `ladder` is the rating ladder of the newest checkpoint (`Ladder.to_json`).
    """

    def __init__(self, metrics: MetricCurves, ladder: Mapping[str, Any]) -> None:
        self.by_step: dict[int, dict[str, float]] = {}
        """The metrics of each evaluation by that step."""
        for table in metrics.history.of_kind("evaluator"):
            columns = {name.removeprefix("evaluation/"): table.column(name) for name in table.columns}
            for row, step in enumerate(columns.get("step", np.empty(0))):
                if np.isfinite(step):
                    known = {name: float(column[row]) for name, column in columns.items() if np.isfinite(column[row])}
                    self.by_step[int(step)] = known
        # The ladder's ratings replace those written with each evaluation, since later matches tell more about all
        # players; the intervals stay as written.
        match ladder:
            case {"ratings": {**ratings}}:
                for step, found in self.by_step.items():
                    match ratings.get(f"@{step}"):
                        case {"elo": int() | float() as elo}:
                            found["elo"] = float(elo)
        self.steps = sorted(self.by_step)
        self.names = {name for found in self.by_step.values() for name in found}
        """The metrics that at least one evaluation has."""
        self._axes = metrics.timeline.at_steps(np.array(self.steps, float))

    def values(self, name: str) -> FloatArray:
        """`[R]`, a metric of each evaluation; NaN if it has none."""
        return np.array([self.by_step[step].get(name, np.nan) for step in self.steps])

    def curve(self, name: str, label: str, interval: Interval) -> ReportCurve | None:
        """A curve of a metric, with `interval` as its band. None if no evaluation has the metric."""
        if name not in self.names:
            return None
        found = [self.by_step[step] for step in self.steps]
        ends = [interval(one[name], one) if name in one else (np.nan, np.nan) for one in found]
        low, high = np.array(ends, float).T
        return ReportCurve(label, self.values(name), low, high)

    def share(self, name: str, label: str, counted: str, trials: int) -> ReportCurve | None:
        """A curve of shares of as many trials as the metric `counted` says, or else of `trials`; see `curve`."""

        def interval(share: float, found: Mapping[str, float]) -> tuple[float, float]:
            # Damaged files may hold shares below 0 or above 1.
            made = round(found.get(counted) or trials)
            return wilson(min(max(share, 0.0), 1.0) * made, made)

        return self.curve(name, label, interval)

    def figure(self, title: str, unit: str, caption: str, curves: Sequence[ReportCurve | None]) -> list[Figure]:
        """A list of one figure with the curves that are not None; empty if there are none."""
        found = [curve for curve in curves if curve is not None]
        return [Figure(title, unit, caption, self._axes, found, dots=len(self.steps) <= MOST_DOTS)] if found else []


_BAND = re.compile(r"keeps_value(_(\d+)_(\d+))")
_NEWEST_MATCHES = 50
"""Most matches in the table."""


def strength(metrics: MetricCurves, experiment: Experiment, ladder: Mapping[str, Any]) -> ReportSection:
    """The section on playing strength, with 95% intervals; `ladder` as in `Evaluations`."""
    rounds = Evaluations(metrics, ladder)
    labels = {f"acting/info_{name}": name for name in getattr(experiment.env, "metrics", ())}
    own = Gauges("Metrics of the environment", "", "actor", labels, _OWN_METRICS)
    figures = [
        *_ratings(rounds),
        *_judgement(rounds, experiment.evaluation.positions),
        *_scores(rounds, experiment.evaluation.games),
        *_returns(rounds),
        *_figures(metrics, (_RETURNS, own)),
    ]
    return ReportSection("Strength", figures, _matches(ladder))


def _ratings(rounds: Evaluations) -> list[Figure]:
    def interval(elo: float, found: Mapping[str, float]) -> tuple[float, float]:
        error = found.get("elo_error") or math.nan
        return elo - error, elo + error

    return rounds.figure(
        "Rating",
        "Elo",
        "Elo rating of each evaluated snapshot by the matches of this run; random play has 0. The 95% intervals are "
        "those of the difference from the snapshot before.",
        [rounds.curve("elo", "rating", interval)],
    )


def _judgement(rounds: Evaluations, positions: int) -> list[Figure]:
    whole = rounds.share("keeps_value", "all plies", "positions", positions)
    bands = sorted((int(found[2]), int(found[3]), found[1]) for one in rounds.names if (found := _BAND.fullmatch(one)))
    by_ply = [
        rounds.share(f"keeps_value{band}", f"plies {first} to {last}", f"positions{band}", 0)
        for first, last, band in bands
    ]
    return rounds.figure(
        "Moves that keep the value",
        "share",
        "Share of random positions, by ply, in which the chosen move keeps the game's value by a perfect solver, "
        "with 95% intervals.",
        [whole, *by_ply],
    )


def _scores(rounds: Evaluations, games: int) -> list[Figure]:
    """The scores against each opponent; `games` is the number of games per match if an evaluation lacks it."""
    # Matches have an even number of games: each opening is played from both sides.
    games += games % 2
    opponents = [name.removeprefix("score_") for name in sorted(rounds.names) if name.startswith("score_")]
    curves = [rounds.share(f"score_{name}", name, f"games_{name}", games) for name in opponents]
    return rounds.figure(
        "Scores against opponents",
        "share",
        "Mean score of each evaluation's games (win 1, draw 1/2, loss 0) by opponent, with 95% intervals.",
        curves,
    )


def _returns(rounds: Evaluations) -> list[Figure]:
    def interval(mean: float, found: Mapping[str, float]) -> tuple[float, float]:
        deviation, episodes = found.get("std_return"), int(found.get("episodes", 0))
        return (math.nan, math.nan) if deviation is None or episodes < 2 else student(mean, deviation, episodes)

    return rounds.figure(
        "Returns in evaluation",
        "return",
        "Mean return of each evaluation's episodes, with search and without noise, with 95% intervals.",
        [rounds.curve("mean_return", "mean return", interval)],
    )


def _matches(ladder: Mapping[str, Any]) -> list[ReportTable]:
    """The newest matches, without those that are damaged."""
    results, rows = ladder.get("results"), []
    for result in results if isinstance(results, list) else ():
        match result:
            case {
                "first": str(first),
                "second": str(second),
                "wins": int(wins),
                "draws": int(draws),
                "losses": int(losses),
            }:
                score = (wins + draws / 2) / max(wins + draws + losses, 1)
                steps = [int(name[1:]) for name in (first, second) if name[:1] == "@" and name[1:].isdecimal()]
                cells = [first, second, f"{wins:,}", f"{draws:,}", f"{losses:,}", f"{score:.1%}"]
                rows.append((max(steps, default=-1), cells))
    rows.sort(key=lambda row: row[0], reverse=True)
    caption = "Matches behind the ratings, the newest snapshot first; @N is the snapshot of step N."
    header = ("player", "opponent", "wins", "draws", "losses", "score")
    return [ReportTable(caption, header, [cells for _, cells in rows[:_NEWEST_MATCHES]])] if rows else []


class Gauges(NamedTuple):
    """A figure of what one kind of worker reports: means over the workers, with bands from minimum to maximum."""

    title: str
    unit: str
    kind: str
    labels: Mapping[str, str]
    """The curves' labels by metric."""
    caption: str


_TERMS = ("policy", "value", "reward", "outcome", "moves left", "reply", "teacher policy", "teacher value")
"""Terms of the loss; their metrics have underscores instead of spaces."""
# fmt: off
_LEARNING = (
    Gauges("Loss", "", "learner", {"learner/loss": "total"}, "Total loss of the learner's batches."),
    Gauges("Terms of the loss", "", "learner", {f"learner/{term.replace(' ', '_')}_loss": term for term in _TERMS},
           "Terms of the loss before their weights: the policy's cross-entropy in nats, the value's error."),
    Gauges("Distance from the search", "nats", "learner", {"learner/policy_kl": "KL divergence"},
           "KL divergence of the network's policy from the search's: zero is a perfect fit."),
    Gauges("Gradient norm", "", "learner", {"learner/gradient_norm": "gradient norm"},
           "Norm of the gradient before it is clipped."),
)
_RETURNS = Gauges(
    "Returns of the actors", "return", "actor", {"acting/mean_return": "actors"},
    "Return of the actors' own episodes, with exploration: mean, least and greatest value over time.",
)
_OWN_METRICS = "Numbers of `info` at the end of the actors' episodes (env.metrics): mean, least and greatest over time."
_DATA = (
    Gauges("Replay ratio", "samples per insert", "replay", {"replay/samples_per_insert": "replay ratio"},
           "How often each sample was trained on, on average over each replay shard; replay.samples_per_insert is "
           "{0.samples_per_insert:g}."),
    Gauges("Policy age", "learner steps", "learner", {"learner/policy_age": "age"},
           "Learner steps between the parameters that made the samples of a batch and the newest ones."),
    Gauges("Samples in a replay shard", "samples", "replay", {"replay/size": "samples"},
           "Samples that each replay shard holds; the capacity is {0.capacity:,}, shared by {0.shards} shard(s)."),
)
_GAMES = (
    Gauges("Length of games", "plies", "actor", {"selfplay/plies_per_game": "plies"},
           "Plies of the actors' finished games: mean, least and greatest value over time."),
    Gauges("Length of episodes", "environment steps", "actor", {"acting/steps_per_episode": "steps"},
           "Steps of the actors' finished episodes: mean, least and greatest value over time."),
    Gauges("Certainty of the search", "absolute value", "actor", {"selfplay/abs_root_value": "absolute root value"},
           "Mean absolute value of the searched positions: 0 undecided, 1 decided."),
    Gauges("Resignations", "share of games", "actor",
           {"selfplay/resignations": "resigned", "selfplay/false_resignations": "false, of those played on"},
           "Share of games that a player resigned; and, of games played on in which one would have resigned, the share "
           "that it did not lose."),
    Gauges("Depth of the search", "plies", "actor", {"selfplay/depth": "depth"},
           "Mean depth of the nodes that simulations add, for the game of the batch where it is largest."),
)
_DEVICES = (
    Gauges("Use of the learner's devices", "share", "learner",
           {"learner/device_busy": "busy", "learner/share_of_peak": "share of peak"},
           "Share of time in which the devices are busy, and share of peak flops that training reaches."),
    Gauges("Memory of the learner's devices", "bytes", "learner",
           {"learner/hbm_bytes": "in use", "learner/hbm_limit_bytes": "limit"},
           "Memory in use on the fullest device of each host."),
    Gauges("Inference servers", "share", "inference", {"server/busy": "busy", "server/fill": "fill"},
           "Share of time in which the devices work on a batch, and share of a batch that holds positions."),
    Gauges("Latency of inference servers", "ms", "inference",
           {"server/latency_ms_median": "median", "server/latency_ms_p99": "slowest hundredth"},
           "Time from the arrival of a request to its answer."),
)
# fmt: on


def _figures(metrics: MetricCurves, shown: Iterable[Gauges]) -> list[Figure]:
    figures: list[Figure] = []
    for title, unit, kind, labels, caption in shown:
        curves = [metrics.gauge(kind, name, label) for name, label in labels.items()]
        figures += metrics.figure(title, unit, caption, curves)
    return figures


def learning(metrics: MetricCurves) -> ReportSection:
    """The section on losses, gradients and entropies."""
    entropies = [_search_entropy(metrics), metrics.gauge("learner", "learner/policy_entropy", "network")]
    caption = "Entropy of the policies that the search gave as targets, and of the network's own where it is reported."
    entropy = metrics.figure("Entropy of the policy", "nats", caption, entropies)
    return ReportSection("Learning", [*_figures(metrics, _LEARNING), *entropy])


def _search_entropy(metrics: MetricCurves) -> ReportCurve | None:
    """The entropy of the search's policy pi, H(pi) = -sum pi log p - KL(pi || p) with the network's policy p."""
    cross_entropy = metrics.history.values("learner", "learner/policy_loss")
    divergence = metrics.history.values("learner", "learner/policy_kl")
    # The times differ if lines are damaged.
    if not np.array_equal(cross_entropy.times, divergence.times):
        return None
    entropy = cross_entropy.values - divergence.values
    return metrics.envelope(Values(cross_entropy.times, cross_entropy.steps, entropy), "search")


def data(metrics: MetricCurves, experiment: Experiment) -> ReportSection:
    """The section on replay and on the age of the policy that made the samples."""
    shown = (one._replace(caption=one.caption.format(experiment.replay)) for one in _DATA)
    return ReportSection("Replay and policy age", _figures(metrics, shown))


SCORE = "selfplay/score_"
"""Prefix of the metrics of games against opponents."""


def games(metrics: MetricCurves) -> ReportSection:
    """The section on the actors' games: length, values and depth of the search."""
    scores = [name for name in sorted(metrics.history.names("actor")) if name.startswith(SCORE)]
    labels = {name: name.removeprefix(SCORE) for name in scores if name.rpartition("_")[2] not in SPREAD}
    caption = "Mean points of the search against each of actors.opponents: 1 won, 0.5 drew, 0 lost."
    points = Gauges("Points against opponents", "points per game", "actor", labels, caption)
    return ReportSection("Games of the actors", _figures(metrics, (*_GAMES, points)))


def throughput(metrics: MetricCurves, experiment: Experiment) -> ReportSection:
    """The section on the rate of each stage and its share of the time."""
    batch = experiment.learner.batch_size
    moves, samples = metrics.per_s("moves", "moves"), metrics.per_s("samples", "samples written")
    evaluations = metrics.per_s("evaluations", "evaluations")
    finished = metrics.per_s("games", "games", scale=3600.0)
    trained, steps = metrics.steps_per_s("samples trained on", scale=batch), metrics.steps_per_s("steps")
    caption = "Moves, or environment steps, of all actors; samples that they wrote and that the learner trained on."
    figures = metrics.figure("Moves and samples", "per second", caption, [moves, samples, trained])
    caption = "Positions that the network evaluated for the searches of all actors."
    figures += metrics.figure("Network evaluations", "per second", caption, [evaluations])
    figures += metrics.figure("Games", "per hour", "Games, or episodes, that the actors finished.", [finished])
    figures += metrics.figure("Learner steps", "per second", f"Steps of the learner, of {batch:,} samples.", [steps])
    for kind in ("actor", "learner", "reanalyser"):
        title, caption = f"Where the time goes: {kind}", f"Share of wall time by stage, mean over the {kind} processes."
        figures += metrics.figure(title, "share", caption, metrics.shares(kind), stacked=True)
    return ReportSection("Throughput", [*figures, *_figures(metrics, _DEVICES)])
