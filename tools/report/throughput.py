"""The section of a report on speed: what each stage gets done, and where the time goes. Pure."""

from __future__ import annotations

from podzero.config import Experiment
from podzero.tools.report.curves import Metrics
from podzero.tools.report.figures import Figure, Section

_STAGES = ("actor", "learner", "reanalyser")
"""Kinds of workers whose time is divided among stages."""


def throughput(metrics: Metrics, experiment: Experiment) -> Section:
    """Rates of the stages, and the share of time that each takes."""
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
        *_time(metrics),
        *_devices(metrics),
        *_servers(metrics),
    ]
    return Section("Throughput", figures)


def _time(metrics: Metrics) -> list[Figure]:
    kinds = [kind for kind in metrics.history.kinds if kind in _STAGES]
    return [
        figure
        for kind in kinds
        for figure in metrics.stacked(
            f"Where the time goes: {kind}",
            f"Share of the wall time of each {kind} by stage, mean over all of them.",
            metrics.shares(kind),
        )
    ]


def _devices(metrics: Metrics) -> list[Figure]:
    return [
        *metrics.figure(
            "Use of the learner's devices",
            "share",
            "Share of time in which the devices work, share of their peak that training uses, and scaling efficiency.",
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


def _servers(metrics: Metrics) -> list[Figure]:
    return [
        *metrics.figure(
            "Inference servers",
            "share",
            "Share of time in which the devices have a batch, and share of the places in batches that hold positions.",
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
