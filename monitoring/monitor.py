"""Turns the figures that the roles report into one picture of the run. Pure: the clock is an argument."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from podzero.config import Experiment
from podzero.monitoring.status import Phase, RunStatus
from podzero.monitoring.utilization import with_utilization

WINDOW_S = 60.0
"""Rates are averaged over this long."""
SILENT_AFTER_S = 300.0
"""A role that has not reported for this long no longer counts in shares of time."""
WAIT_SHARE = 0.15
"""Share of wall time from which a wait is worth naming."""
KEPT_COUNTERS = ("games", "moves", "samples")
"""Counters that live through a resumption, beside `elapsed_s`."""


class Monitor:
    """Sums counters, averages rates, and says what holds the run back.

    Args:
      experiment: what is being run: name, limits, capacity.
      now: the present on a monotonic clock, in seconds; every other `now` is on the same clock.
      counters: what `counters` gave when the resumed checkpoint was written; empty for a new run.
      step: the learner step from which the run goes on.
    """

    def __init__(
        self, experiment: Experiment, now: float, counters: Mapping[str, float] | None = None, step: int = 0
    ) -> None:
        self._experiment = experiment
        self._started = now
        restored = counters or {}
        self._elapsed_before = float(restored.get("elapsed_s", 0.0))
        self._totals: dict[str, float] = defaultdict(float)
        self._totals |= {name: float(restored.get(name, 0.0)) for name in KEPT_COUNTERS}
        self._rates: dict[str, RateWindow] = defaultdict(RateWindow)
        self._step = step
        self._gauges: dict[str, dict[str, float]] = defaultdict(dict)
        self._heard: dict[str, float] = {}
        self._forced: Phase | None = None

    def add(self, worker: str, metrics: Mapping[str, float], now: float) -> None:
        """Takes one report: `count/*` is added up, everything else replaces what the role said before.

        Shares of time belong together: a stage that is not named any more took none.
        """
        self._heard[worker] = now
        if self._forced is not None:  # the last report of a role covers moments, not the run
            metrics = {name: value for name, value in metrics.items() if not _is_momentary(name)}
        if any(name.startswith("time/") for name in metrics):
            kept = {name: value for name, value in self._gauges[worker].items() if not name.startswith("time/")}
            self._gauges[worker] = kept
        for name, value in metrics.items():
            stage, _, quantity = name.partition("/")
            if stage == "count":
                if math.isfinite(value):
                    self._totals[quantity] += value
                    self._rates[quantity].add(now, self._totals[quantity])
            else:
                self._gauges[worker][name] = value
        reported = metrics.get("learner/step")
        if reported is not None:
            self._step = int(reported)
            self._rates["steps"].add(now, reported)

    def enter(self, phase: Phase) -> None:
        """Says what the figures cannot show, as `stopping`."""
        self._forced = phase

    def counters(self, now: float) -> dict[str, float]:
        """What a checkpoint must hold so that a resumed run counts on from here."""
        return {name: self._totals[name] for name in KEPT_COUNTERS} | {"elapsed_s": self.elapsed_s(now)}

    def elapsed_s(self, now: float) -> float:
        """Seconds of training over all resumptions."""
        return self._elapsed_before + now - self._started

    def status(self, now: float) -> RunStatus:
        """The run as it is at `now`."""
        learner = self._gauges["learner"]
        evaluator = self._gauges["evaluator"]
        shares = self._shares(now)
        size = self._over("replay", "replay/size")
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
            device_busy=min(self._rates["device_s"].per_s(now), 1.0) if "learner/device_busy" in learner else None,
            shares=shares,
            bottleneck=bottleneck(phase, shares, size, self._experiment.replay.min_size),
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

    def _over(self, kind: str, name: str) -> float:
        """Sum of a gauge over all roles of a kind."""
        return sum(metrics.get(name, 0.0) for worker, metrics in self._gauges.items() if kind_of(worker) == kind)

    def _mean_over(self, kind: str, name: str) -> float | None:
        """Mean of a gauge over the roles of a kind that have said it."""
        said = [f[name] for worker, f in self._gauges.items() if kind_of(worker) == kind and name in f]
        return sum(said) / len(said) if said else None

    def _samples_per_insert(self) -> float | None:
        """Mean over the shards, each weighted by what was inserted there."""
        shards = [
            (metrics["replay/samples_per_insert"], metrics.get("replay/inserted", 0.0))
            for metrics in self._gauges.values()
            if "replay/samples_per_insert" in metrics
        ]
        weight = sum(inserted for _, inserted in shards)
        return sum(ratio * inserted for ratio, inserted in shards) / weight if weight > 0 else None

    def _shares(self, now: float) -> dict[str, dict[str, float]]:
        """Share of wall time by kind of role and stage: the mean over the roles that still speak."""
        speaking: dict[str, list[dict[str, float]]] = defaultdict(list)
        for worker, heard in self._heard.items():
            stages = _with_prefix(self._gauges[worker], "time/")
            if stages and now - heard <= SILENT_AFTER_S:
                speaking[kind_of(worker)].append(stages)
        return {kind: _mean(workers) for kind, workers in sorted(speaking.items())}


class RateWindow:
    """The rate of a growing total over the last `WINDOW_S` seconds.

    The first report only sets the start: how long it took to make is not known (programs were compiled meanwhile).
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()

    @property
    def moved(self) -> bool:
        """Whether anything was ever counted."""
        return bool(self._points) and self._points[-1][1] > 0

    def add(self, now: float, total: float) -> None:
        """Notes that the total stands at `total`."""
        if len(self._points) > 1 and now - self._points[-2][0] < 1.0:
            self._points[-1] = (now, total)  # many reporters: one point a second is enough
        else:
            self._points.append((now, total))

    def per_s(self, now: float) -> float:
        """Growth per second since the last point before the window, or the first one; 0 once nothing comes any more."""
        while len(self._points) > 1 and self._points[1][0] <= now - WINDOW_S:
            self._points.popleft()
        if len(self._points) < 2:
            return 0.0
        since, base = self._points[0]
        return max(self._points[-1][1] - base, 0.0) / max(now - since, 1e-9)


def kind_of(worker: str) -> str:
    """The kind of a role: `actor-3` is an `actor`."""
    return worker.rpartition("-")[0] if worker.rpartition("-")[2].isdigit() else worker


def bottleneck(phase: Phase, shares: Mapping[str, Mapping[str, float]], replay_size: float, min_size: int) -> str:
    """Who waits for whom, read off the clocks; empty while there is nothing to read."""
    if phase == "collecting":
        if replay_size < min_size:
            return f"the learner waits for the first {min_size:,} samples ({replay_size / min_size:.0%} there)"
        return "the learner prepares its first step (compiling)"
    if phase != "training":
        return ""
    writers = {"actors": shares.get("actor", {})}
    if "reanalyser" in shares:
        writers["reanalysers"] = shares["reanalyser"]
    return _waiting(writers, shares.get("learner", {}))


def _waiting(writers: Mapping[str, Mapping[str, float]], learner: Mapping[str, float]) -> str:
    """The bottleneck of training: replay makes one side wait, or the learner does something else than step.

    Of actors and reanalysers, both of which the learner needs, those count whom replay holds back less.
    """
    who, writer = min(writers.items(), key=lambda kind: kind[1].get("write", 0.0))
    starved, held_back = learner.get("wait_replay", 0.0), writer.get("write", 0.0)
    if starved >= max(WAIT_SHARE, held_back):
        stage, share = _largest(writer, without=("write",))
        why = f"; {share:.0%} of their time goes into {stage}" if stage else ""
        return f"the learner waits for the {who} ({starved:.0%} of its time{why})"
    if held_back >= WAIT_SHARE:
        return f"the {who} wait for the learner (replay is ahead; {held_back:.0%} of their time)"
    stage, share = _largest(learner, without=("step", "wait_replay"))
    if share >= WAIT_SHARE:
        return f"the learner spends {share:.0%} of its time on {stage.replace('_', ' ')}"
    return "none: actors and learner keep each other busy" if writer and learner else ""


def _largest(stages: Mapping[str, float], without: Iterable[str]) -> tuple[str, float]:
    skipped = set(without)
    named = [(share, stage) for stage, share in stages.items() if stage not in skipped]
    share, stage = max(named, default=(0.0, ""))
    return stage, share


def _is_momentary(name: str) -> bool:
    """Whether a figure is of the time since the report before and of no use when that was cut short."""
    return name.startswith("time/") or name == "learner/scaling_efficiency"


def _with_prefix(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


def _mean(workers: list[dict[str, float]]) -> dict[str, float]:
    stages = sorted({stage for worker in workers for stage in worker})
    return {stage: sum(worker.get(stage, 0.0) for worker in workers) / len(workers) for stage in stages}
