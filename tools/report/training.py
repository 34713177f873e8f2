"""The sections of a report on learning, replay, the actors' games, and the speed of each stage."""

from __future__ import annotations

import numpy as np

from podzero.config import Experiment
from podzero.tools.report.figures import Figure, MetricCurves, ReportCurve, ReportSection
from podzero.tools.report.history import Values

_LOSSES = (
    "policy_loss", "value_loss", "reward_loss", "outcome_loss", "moves_left_loss", "reply_loss", "teacher_policy_loss",
    "teacher_value_loss",
)  # fmt: skip


def learning(metrics: MetricCurves) -> ReportSection:
    """The section on losses, gradients and entropies."""

    def of_learner(name: str, label: str | None = None) -> ReportCurve | None:
        return metrics.gauge("learner", f"learner/{name}", label or name.removesuffix("_loss").replace("_", " "))

    figures = [
        *metrics.figure("Loss", "", "Total loss of the learner's batches.", [of_learner("loss", "total")]),
        *metrics.figure(
            "Terms of the loss",
            "",
            "Terms of the loss before their weights: the policy's cross-entropy in nats, the value's error.",
            [of_learner(name) for name in _LOSSES],
        ),
        *metrics.figure(
            "Entropy of the policy",
            "nats",
            "Entropy of the policies that the search gave as targets, and of the network's own policy where it is "
            "reported.",
            [_search_entropy(metrics), of_learner("policy_entropy", "network")],
        ),
        *metrics.figure(
            "Distance from the search",
            "nats",
            "KL divergence of the network's policy from the search's: zero is a perfect fit.",
            [of_learner("policy_kl", "KL divergence")],
        ),
        *metrics.figure(
            "Gradient norm", "", "Norm of the gradient before it is clipped.", [of_learner("gradient_norm")]
        ),
    ]
    return ReportSection("Learning", figures)


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
    figures = [
        *metrics.figure(
            "Replay ratio",
            "samples per insert",
            "How often each sample was trained on, on average over each replay shard; "
            f"replay.samples_per_insert is {experiment.replay.samples_per_insert:g}.",
            [metrics.gauge("replay", "replay/samples_per_insert", "replay ratio")],
        ),
        *metrics.figure(
            "Policy age",
            "learner steps",
            "Learner steps between the parameters that made the samples of a batch and the newest ones.",
            [metrics.gauge("learner", "learner/policy_age", "age")],
        ),
        *metrics.figure(
            "Samples in a replay shard",
            "samples",
            f"Samples that each replay shard holds; the capacity is {experiment.replay.capacity:,}, shared by "
            f"{experiment.replay.shards} shard(s).",
            [metrics.gauge("replay", "replay/size", "samples")],
        ),
    ]
    return ReportSection("Replay and policy age", figures)


SCORE = "selfplay/score_"
"""Prefix of the metrics of games against opponents."""


def games(metrics: MetricCurves) -> ReportSection:
    """The section on the actors' games: length, values and depth of the search."""
    figures: list[Figure] = [
        *metrics.figure(
            "Length of games",
            "plies",
            "Plies of the actors' finished games: mean, least and greatest value over time.",
            [metrics.gauge("actor", "selfplay/plies_per_game", "plies")],
        ),
        *metrics.figure(
            "Length of episodes",
            "environment steps",
            "Steps of the actors' finished episodes: mean, least and greatest value over time.",
            [metrics.gauge("actor", "acting/steps_per_episode", "steps")],
        ),
        *metrics.figure(
            "Certainty of the search",
            "absolute value",
            "Mean absolute value of the searched positions: 0 undecided, 1 decided.",
            [metrics.gauge("actor", "selfplay/abs_root_value", "absolute root value")],
        ),
        *metrics.figure(
            "Depth of the search",
            "plies",
            "Mean depth of the nodes that simulations add, for the game of the batch where it is largest.",
            [metrics.gauge("actor", "selfplay/depth", "depth")],
        ),
        *metrics.figure(
            "Points against opponents",
            "points per game",
            "Mean points of the search against each of actors.opponents: 1 won, 0.5 drew, 0 lost.",
            [
                metrics.gauge("actor", name, name.removeprefix(SCORE))
                for name in sorted(metrics.history.names("actor"))
                if name.startswith(SCORE)
            ],
        ),
    ]
    return ReportSection("Games of the actors", figures)


def throughput(metrics: MetricCurves, experiment: Experiment) -> ReportSection:
    """The section on the rate of each stage and its share of the time."""
    batch = experiment.learner.batch_size
    figures = [
        *metrics.figure(
            "Moves and samples",
            "per second",
            "Moves, or environment steps, of all actors; samples that they wrote and that the learner trained on.",
            [
                metrics.per_s("actor", "count/moves", "moves"),
                metrics.per_s("actor", "count/samples", "samples written"),
                metrics.steps_per_s("samples trained on", scale=batch),
            ],
        ),
        *metrics.figure(
            "Network evaluations",
            "per second",
            "Positions that the network evaluated for the searches of all actors.",
            [metrics.per_s("actor", "count/evaluations", "evaluations")],
        ),
        *metrics.figure(
            "Games",
            "per hour",
            "Games, or episodes, that the actors finished.",
            [metrics.per_s("actor", "count/games", "games", scale=3600.0)],
        ),
        *metrics.figure(
            "Learner steps",
            "per second",
            f"Steps of the learner, of {batch:,} samples.",
            [metrics.steps_per_s("steps")],
        ),
        *(
            figure
            for kind in metrics.history.kinds
            if kind in ("actor", "learner", "reanalyser")
            for figure in metrics.figure(
                f"Where the time goes: {kind}",
                "share",
                f"Share of wall time by stage, mean over all workers of the kind {kind}.",
                metrics.shares(kind),
                stacked=True,
            )
        ),
        *_devices(metrics),
        *_servers(metrics),
    ]
    return ReportSection("Throughput", figures)


def _devices(metrics: MetricCurves) -> list[Figure]:
    return [
        *metrics.figure(
            "Use of the learner's devices",
            "share",
            "Share of time in which the devices are busy, share of peak flops that training reaches, and scaling "
            "efficiency.",
            [
                metrics.gauge("learner", "learner/device_busy", "busy"),
                metrics.gauge("learner", "learner/share_of_peak", "share of peak"),
                metrics.gauge("learner", "learner/scaling_efficiency", "scaling efficiency"),
            ],
        ),
        *metrics.figure(
            "Memory of the learner's devices",
            "bytes",
            "Memory in use on the fullest device of each host.",
            [
                metrics.gauge("learner", "learner/hbm_bytes", "in use"),
                metrics.gauge("learner", "learner/hbm_limit_bytes", "limit"),
            ],
        ),
    ]


def _servers(metrics: MetricCurves) -> list[Figure]:
    return [
        *metrics.figure(
            "Inference servers",
            "share",
            "Share of time in which the devices work on a batch, and share of a batch that holds positions.",
            [metrics.gauge("inference", "server/busy", "busy"), metrics.gauge("inference", "server/fill", "fill")],
        ),
        *metrics.figure(
            "Latency of inference servers",
            "ms",
            "Time from the arrival of a request to its answer.",
            [
                metrics.gauge("inference", "server/latency_ms_median", "median"),
                metrics.gauge("inference", "server/latency_ms_p99", "slowest hundredth"),
            ],
        ),
    ]
