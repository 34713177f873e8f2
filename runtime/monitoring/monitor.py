"""Aggregates the metrics of all workers into the status of the run. Pure: the clock is an argument."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from podzero.clock import share_of_rest
from podzero.config import Experiment
from podzero.runtime.monitoring.bottleneck import bottleneck
from podzero.runtime.monitoring.rates import RateWindow
from podzero.runtime.monitoring.reports import merge_metrics
from podzero.runtime.monitoring.status import Phase, RunStatus
from podzero.runtime.monitoring.utilization import with_utilization

SILENT_AFTER_S = 300.0
"""Time without a report after which a worker no longer counts in the shares of time."""
RESUMED_COUNTERS = ("games", "moves", "samples", "restarts", "failed_episodes", "damaged_shards", "missing_samples")
"""Counters that continue after a resumption, like `elapsed_s`."""


class Monitor:
    """Sums counters, averages rates, and names the bottleneck. Not thread-safe.

    Args:
      experiment: the experiment that runs.
      now: the present time of a monotonic clock, in seconds; every other `now` is of the same clock.
      counters: the result of `counters` when the checkpoint was written; empty for a new run.
      step: the learner step from which the run starts or resumes.
    """

    def __init__(
        self, experiment: Experiment, now: float, counters: Mapping[str, float] | None = None, step: int = 0
    ) -> None:
        self._experiment = experiment
        self._started = now
        restored = counters or {}
        self._elapsed_before = float(restored.get("elapsed_s", 0.0))
        self._games_before = float(restored.get("games", 0.0))
        self._totals: dict[str, float] = defaultdict(float)
        self._totals |= {name: float(restored.get(name, 0.0)) for name in RESUMED_COUNTERS}
        self._rates: dict[str, RateWindow] = defaultdict(RateWindow)
        self._step = step
        self._gauges: dict[str, dict[str, float]] = defaultdict(dict)
        self._reported_at: dict[str, float] = {}
        self._forced: Phase | None = None
        self._paused_at = math.inf

    @property
    def step(self) -> int:
        """The learner step."""
        return self._step

    def add(self, worker: str, metrics: Mapping[str, float], now: float) -> None:
        """Adds a report: `count/...` is summed up, everything else replaces the worker's earlier values."""
        self._reported_at[worker] = now
        if self._forced is not None:  # the last report of a worker covers too short a time to replace these
            metrics = {name: value for name, value in metrics.items() if not _covers_interval(name)}
        gauges = {}
        for name, value in metrics.items():
            stage, _, quantity = name.partition("/")
            if stage != "count":
                gauges[name] = value
            elif math.isfinite(value):
                self._totals[quantity] += value
                self._rates[quantity].add(now, self._totals[quantity])
        self._gauges[worker] = merge_metrics(self._gauges[worker], gauges)
        step = metrics.get("learner/step")
        if step is not None:
            self._step = int(step)
            self._rates["steps"].add(now, step)

    def enter(self, phase: Phase) -> None:
        """Sets a phase that metrics do not show, for example `stopping`."""
        self._forced = phase

    def pause(self, now: float) -> None:
        """Stops the time of training for good, when the workers are gone and others shall be started."""
        self._paused_at = now

    def counters(self, now: float) -> dict[str, float]:
        """The counters that a checkpoint holds, for the run that resumes from it."""
        return {name: self._totals[name] for name in RESUMED_COUNTERS} | {"elapsed_s": self.elapsed_s(now)}

    def elapsed_s(self, now: float) -> float:
        """Seconds of training, over all resumptions."""
        return self._elapsed_before + min(now, self._paused_at) - self._started

    def share_passed(self, now: float) -> float:
        """The larger share, in [0, 1], of the minutes and of the games left when the run began or resumed that has
        passed.
        """
        stop, elapsed = self._experiment.stop, self.elapsed_s(now) / 60
        return max(
            share_of_rest(stop.minutes, self._elapsed_before / 60, elapsed),
            share_of_rest(stop.games, self._games_before, self._totals["games"]),
        )

    def status(self, now: float) -> RunStatus:
        """The status of the run."""
        learner = self._gauges["learner"]
        evaluator, driver = self._gauges["evaluator"], self._gauges["driver"]
        shares, server_busy = self._shares(now), self._mean_over("inference", "server/busy")
        size = self._sum_over("replay", "replay/size")
        phase = self._phase(size)
        status = RunStatus(
            name=self._experiment.name,
            phase=phase,
            elapsed_s=self.elapsed_s(now),
            time_left_s=self._time_left_s(now),
            step=self._step,
            games=int(self._totals["games"]),
            moves=int(self._totals["moves"]),
            samples=int(self._totals["samples"]),
            moves_per_s=self._rates["moves"].per_s(now),
            games_per_s=self._rates["games"].per_s(now),
            steps_per_s=self._rates["steps"].per_s(now),
            evaluations_per_s=self._rates["evaluations"].per_s(now),
            reanalysed_per_s=self._rates["reanalysed"].per_s(now),
            served_per_s=self._rates["served"].per_s(now),
            server_fill=self._mean_over("inference", "server/fill"),
            server_busy=server_busy,
            server_latency_ms=self._max_over("inference", "server/latency_ms_median"),
            server_latency_p99_ms=self._max_over("inference", "server/latency_ms_p99"),
            replay_size=int(size),
            replay_capacity=self._experiment.replay.capacity,
            samples_per_insert=self._samples_per_insert(),
            policy_age=learner.get("learner/policy_age"),
            loss=learner.get("learner/loss"),
            policy_loss=learner.get("learner/policy_loss"),
            value_loss=learner.get("learner/value_loss"),
            rating=evaluator.get("evaluation/elo"),
            rating_error=evaluator.get("evaluation/elo_error"),
            rated_step=int(evaluator["evaluation/step"]) if "evaluation/step" in evaluator else None,
            mean_return=evaluator.get("evaluation/mean_return"),
            std_return=evaluator.get("evaluation/std_return"),
            acting_return=self._mean_over("actor", "acting/mean_return"),
            failed_episodes=int(self._totals["failed_episodes"]),
            keeps_value=evaluator.get("evaluation/keeps_value"),
            scores=_with_prefix(evaluator, "evaluation/score_"),
            restarts=int(self._totals["restarts"]),
            checkpoint_step=int(driver["checkpoint/step"]) if "checkpoint/step" in driver else None,
            checkpoint_age_s=driver.get("checkpoint/age_s"),
            failed_saves=int(driver.get("checkpoint/failed_saves", 0)),
            damaged_shards=int(self._totals["damaged_shards"]),
            missing_samples=int(self._totals["missing_samples"]),
            device_busy=min(self._rates["device_s"].per_s(now), 1.0) if "learner/device_busy" in learner else None,
            shares=shares,
            bottleneck=bottleneck(phase, shares, size, self._experiment.replay.min_size, server_busy),
        )
        hosts = [metrics for worker, metrics in self._gauges.items() if kind_of(worker) == "learner"]
        price = self._experiment.cluster.price_per_hour
        return with_utilization(status, learner, hosts, self._experiment.learner.batch_size, price)

    def _phase(self, replay_size: float) -> Phase:
        if self._forced is not None:
            return self._forced
        if self._rates["steps"].moved:
            return "training"
        return "collecting" if self._rates["moves"].moved or replay_size > 0 else "starting"

    def _time_left_s(self, now: float) -> float | None:
        stop = self._experiment.stop
        limits: list[float] = []
        if stop.minutes is not None:
            limits.append(60.0 * stop.minutes - self.elapsed_s(now))
        counted = ((stop.steps, self._step, "steps"), (stop.games, self._totals["games"], "games"))
        for limit, done, rate in counted:
            per_s = self._rates[rate].per_s(now)
            if limit is not None and (per_s > 0 or done >= limit):
                limits.append((limit - done) / per_s if done < limit else 0.0)
        return max(min(limits), 0.0) if limits else None

    def _sum_over(self, kind: str, name: str) -> float:
        """Sum of a gauge over all workers of a kind."""
        return sum(metrics.get(name, 0.0) for worker, metrics in self._gauges.items() if kind_of(worker) == kind)

    def _mean_over(self, kind: str, name: str) -> float | None:
        """Mean of a gauge over the workers of a kind that report it."""
        values = self._values(kind, name)
        return sum(values) / len(values) if values else None

    def _max_over(self, kind: str, name: str) -> float | None:
        """Largest value of a gauge over the workers of a kind that report it."""
        return max(self._values(kind, name), default=None)

    def _values(self, kind: str, name: str) -> list[float]:
        return [
            metrics[name] for worker, metrics in self._gauges.items() if kind_of(worker) == kind and name in metrics
        ]

    def _samples_per_insert(self) -> float | None:
        """Mean over the shards, weighted by their inserted samples."""
        shards = [
            (metrics["replay/samples_per_insert"], metrics.get("replay/inserted", 0.0))
            for metrics in self._gauges.values()
            if "replay/samples_per_insert" in metrics
        ]
        weight = sum(inserted for _, inserted in shards)
        return sum(ratio * inserted for ratio, inserted in shards) / weight if weight > 0 else None

    def _shares(self, now: float) -> dict[str, dict[str, float]]:
        """Share of wall time by kind of worker and stage: the mean over the workers that reported lately."""
        recent: dict[str, list[dict[str, float]]] = defaultdict(list)
        for worker, reported_at in self._reported_at.items():
            stages = _with_prefix(self._gauges[worker], "time/")
            if stages and now - reported_at <= SILENT_AFTER_S:
                recent[kind_of(worker)].append(stages)
        return {kind: _mean(workers) for kind, workers in sorted(recent.items())}


def kind_of(worker: str) -> str:
    """The kind of a worker: `actor-3` is an `actor`."""
    return worker.rpartition("-")[0] if worker.rpartition("-")[2].isdigit() else worker


def _covers_interval(name: str) -> bool:
    """Whether a metric is an average over the time since the worker's previous report."""
    return name.startswith("time/") or name == "learner/scaling_efficiency"


def _with_prefix(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


def _mean(workers: list[dict[str, float]]) -> dict[str, float]:
    stages = sorted({stage for worker in workers for stage in worker})
    return {stage: sum(worker.get(stage, 0.0) for worker in workers) / len(workers) for stage in stages}
