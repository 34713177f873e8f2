"""The sections of a report on learning, the data it learns from, and the actors' games. Pure."""

from __future__ import annotations

import numpy as np

from podzero.config import Experiment
from podzero.tools.report.curves import Metrics
from podzero.tools.report.figures import Curve, Figure, Section
from podzero.tools.report.history import Values

_LOSSES = ("policy_loss", "value_loss", "reward_loss", "outcome_loss", "moves_left_loss", "reply_loss")


def learning(metrics: Metrics) -> Section:
    """Losses, gradients and entropies."""

    def of_learner(name: str, label: str | None = None) -> Curve | None:
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
    return Section("Learning", figures)


def _search_entropy(metrics: Metrics) -> Curve | None:
    """Cross-entropy minus KL divergence, both of the policy with the search's.

    H(pi) = -sum pi log p - KL(pi || p)
    """
    cross_entropy = metrics.history.values("learner", "learner/policy_loss")
    divergence = metrics.history.values("learner", "learner/policy_kl")
    if not np.array_equal(cross_entropy.times, divergence.times):
        return None  # damaged lines
    entropy = cross_entropy.values - divergence.values
    return metrics.envelope(Values(cross_entropy.times, cross_entropy.steps, entropy), "search")


def data(metrics: Metrics, experiment: Experiment) -> Section:
    """Replay and the age of what is learned from."""
    figures = [
        *metrics.figure(
            "Replay ratio",
            "samples per insert",
            "How often a sample was learned from on average, by replay shards; "
            f"replay.samples_per_insert is {experiment.replay.samples_per_insert:g}.",
            [metrics.gauge("replay", "replay/samples_per_insert", "replay ratio")],
        ),
        *metrics.figure(
            "Policy age",
            "learner steps",
            "Steps between the newest parameters and those that made the samples of a batch.",
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
    return Section("Replay and policy age", figures)


def games(metrics: Metrics) -> Section:
    """What the actors' games are like."""
    by_kind: list[Figure] = [
        *metrics.figure(
            "Length of games",
            "plies",
            "Plies of the actors' finished games: mean, least and greatest report of each span.",
            [metrics.gauge("actor", "selfplay/plies_per_game", "plies")],
        ),
        *metrics.figure(
            "Length of episodes",
            "environment steps",
            "Steps of the actors' finished episodes: mean, least and greatest report of each span.",
            [metrics.gauge("actor", "acting/steps_per_episode", "steps")],
        ),
        *metrics.figure(
            "Resigned games",
            "share",
            "Share of the finished games that a player resigned.",
            [metrics.gauge("actor", "selfplay/resigned", "resigned")],
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
            "Mean depth of the nodes that simulations add, in the game of the batch where it is largest.",
            [metrics.gauge("actor", "selfplay/depth", "depth")],
        ),
    ]
    return Section("Games of the actors", by_kind)
