"""Turns the metrics of all workers into the status of the run. Pure: the time is an argument."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType
from typing import Any

from podzero.config import SCORES, Experiment
from podzero.core.clock import REPORT_EVERY_S, REST, share_of_rest, whole
from podzero.runtime.monitoring.goodput import PaidTime, learner_shares
from podzero.runtime.monitoring.ledger import Books
from podzero.runtime.monitoring.reports import merge_metrics, merge_workers, spread
from podzero.runtime.monitoring.status import Phase, RunStatus

_OF_LEDGER = ("actor", "reanalyser", "replay")
"""The kinds that write samples or hold them."""
SILENT_AFTER_S = 300.0
"""A worker that has not reported for this long is left out of the shares of time."""
WINDOW_S = 60.0
"""Window over which rates are averaged."""
STALE_S = 10.0
"""After this time without a report, and three times the usual one, a rate counts as zero."""
WAIT_SHARE = 0.15
"""A wait is a bottleneck from this share of wall time."""
DECIDE_EVERY_S = 60.0
"""The mean over this time decides how many actors are wanted, and a decision has this time to take effect."""
CHANGE = 0.1
"""Share of the actors that come or leave at once."""
SERVERS_BUSY = 0.8
"""Inference servers limit the actors if their devices are busy for this share of the time."""
RESUMED_COUNTERS = ("games", "moves", "samples", "restarts", "failed_episodes", "damaged_shards")
"""Counters that a resumed run continues from its checkpoint, as it does `elapsed_s`, `nodes_s` and its ledger."""
_RATES = ("moves", "games", "steps", "evaluations", "reanalysed", "served")
"""Counts whose rates the status shows as `..._per_s`."""
_OF_BEST = ("best_score", "best_step", "evaluations_since_best")
"""The counters of the best snapshot."""
_OF_LEARNER = (
    "policy_age", "taken_back", "loss", "policy_loss", "value_loss", "teacher_policy_loss", "teacher_value_loss",
)  # fmt: skip
_OF_EVALUATOR = ("mean_return", "std_return", "keeps_value")
"""Fields of the status with the name of the newest metric of the learner, and of the evaluator."""
_CAUSES: Mapping[Phase, str] = {"starting": "start", "stopping": "checkpoint", "judging": "idle", "ended": "idle"}
"""What a phase that the metrics cannot tell costs (`goodput.CAUSES`)."""


@dataclass
class Stopwatch:
    """Counts seconds while it runs, in addition to those of earlier starts of the run."""

    before: float
    started_at: float = math.inf
    stopped_at: float = math.inf

    def seconds(self, now: float) -> float:
        """The seconds until `now`."""
        return self.before + max(0.0, min(now, self.stopped_at) - self.started_at)


class Monitor:
    """Sums counters, averages rates, and names the bottleneck. Not thread-safe.

    All methods take `now` from one monotonic clock, in seconds. A run that resumes at learner step `step` gives what
    `counters` returned for its checkpoint, and what its time went into so far, which no checkpoint takes back.
    """

    def __init__(
        self,
        experiment: Experiment,
        now: float,
        counters: Mapping[str, float] | None = None,
        step: int = 0,
        paid: PaidTime | None = None,
    ) -> None:
        self._experiment = experiment
        self._paid = paid or PaidTime(now)
        restored = counters or {}
        self._training = Stopwatch(float(restored.get("elapsed_s", 0.0)))
        # Checkpoints of earlier versions have no `nodes_s`: training counted from the start of the workers.
        before = float(restored.get("nodes_s", self._training.before))
        self._nodes = Stopwatch(max(before, sum(self._paid.seconds(now).values())), started_at=now)
        self._games_before = float(restored.get("games", 0.0))
        self._totals: dict[str, float] = defaultdict(float)
        self._totals |= {name: float(restored.get(name, 0.0)) for name in RESUMED_COUNTERS}
        self._rates: dict[str, RateWindow] = defaultdict(RateWindow)
        fresh, reanalysed, _ = experiment.batch_parts
        self._trained = {"samples": fresh} | ({"states": 0, "reanalysed": reanalysed} if reanalysed else {})
        """How many samples of each replay table a batch has."""
        shards = experiment.replay_shards
        self._books = {table: Books(table, shards, now, restored) for table in self._trained if shards}
        self._best = {name: float(restored[name]) for name in _OF_BEST if name in restored}
        """`RunStatus.best`."""
        self.step = step
        """The learner step; whoever lets the learner start again from an earlier one sets it back."""
        self._gauges: dict[str, dict[str, float]] = defaultdict(dict)
        self._reported_at: dict[str, float] = {}
        self._learner_lost = False
        self._forced: Phase | None = None
        self._phase_ends = math.inf

    @property
    def _has_trained(self) -> bool:
        """Whether there was a learner step since the start."""
        return math.isfinite(self._training.started_at)

    def add(self, worker: str, metrics: Mapping[str, float], now: float) -> None:
        """Adds a report: `count/...` is summed, all other values replace the worker's earlier ones."""
        self._reported_at[worker] = now
        for books in self._books.values() if kind_of(worker) in _OF_LEDGER else ():
            books.add(worker, metrics, now)
        # While a run stops, a worker's last report covers too short a time for its shares to mean anything.
        if self._forced is not None:
            metrics = {name: value for name, value in metrics.items() if not name.startswith("time/")}
        gauges = {}
        for name, value in metrics.items():
            stage, _, quantity = name.partition("/")
            if stage != "count":
                gauges[name] = value
            elif math.isfinite(value):
                self._totals[quantity] += value
                self._rates[quantity].add(now, self._totals[quantity])
        gauges |= self._lag(metrics, now)
        self._gauges[worker] = merge_metrics(self._gauges[worker], gauges)
        if worker == "learner" and self._forced is None:
            self._account(metrics, now)
        if "evaluation/step" in metrics:
            self._judge(metrics)
        step = metrics.get("learner/step")
        if step is not None:
            if step > self.step and not self._has_trained:
                self._training.started_at = now
            self.step = int(step)
            self._rates["steps"].add(now, step)

    def _judge(self, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of an evaluation; those without a score are left out."""
        score = next((metrics[name] for name in map("evaluation/{}".format, SCORES) if name in metrics), math.nan)
        if score > self._best.get("best_score", -math.inf):
            self._best = {"best_score": score, "best_step": metrics["evaluation/step"], "evaluations_since_best": 0.0}
        elif math.isfinite(score):
            self._best["evaluations_since_best"] = self._best.get("evaluations_since_best", 0.0) + 1.0

    def _lag(self, metrics: Mapping[str, float], now: float) -> dict[str, float]:
        """How many publications the parameters are behind that an actor's report names; empty if it names none."""
        version, learner = metrics.get("selfplay/version", metrics.get("acting/version")), self._gauges["learner"]
        if version is None or not (steps := learner.get("learner/publish_steps")):
            return {}
        # What the learner has published since its last report is estimated: a report is up to two seconds old.
        heard_at = self._reported_at["learner"]
        since = min(now - heard_at, REPORT_EVERY_S) * self._rates["steps"].per_s(heard_at)
        newest = learner.get("learner/published", version) + since
        return {"actor/lag": max(0.0, (newest - version) // steps)}

    def _account(self, metrics: Mapping[str, float], now: float) -> None:
        """Divides the time since the learner's last report by what this one says."""
        self._paid.move("start", "restore", metrics.get("count/restore_s", 0.0))
        # While a learner is silent, its process reports a wait of one of its threads, which is not what the loop does.
        if "learner/step" in metrics and (stages := _with_prefix(metrics, "time/")):
            kinds = self._shares(now, ())
            writers = [kinds[kind].get("write", 0.0) for kind in ("actor", "reanalyser") if kind in kinds]
            # A reader of recorded games waits for no actors.
            blocked = min(writers, default=0.0 if self._experiment.has_self_play else 1.0)
            self._paid.divide(learner_shares(stages, metrics.get("learner/device_busy", 0.0), blocked), now)

    def metrics(self, now: float) -> dict[str, float]:
        """The driver's own metrics: paid seconds by cause, and how far the actors' parameters are behind."""
        lags = {f"actors/lag_{name}": lag for name, lag in spread(self._values("actor", "actor/lag")).items()}
        return lags | {f"goodput/{cause}_s": seconds for cause, seconds in self._paid.seconds(now).items()}

    def ended(self, worker: str, now: float) -> None:
        """Records that a worker has ended before the end of the run."""
        for books in self._books.values() if kind_of(worker) in _OF_LEDGER else ():
            books.ended(worker, now)
        if kind_of(worker) == "actor":  # what it reported last is no longer so
            self._gauges.pop(worker, None)

    def enter(self, phase: Phase, now: float, limit_s: float = math.inf) -> None:
        """Sets a phase, at most `limit_s` long, that the metrics cannot tell. It ends training for good."""
        self._forced, self._phase_ends = phase, now + limit_s
        self._paid.enter(_CAUSES.get(phase, "other"), now)
        self._training.stopped_at = min(self._training.stopped_at, now)
        if phase == "ended":  # a recovery, which may wait for nodes, counts
            self._nodes.stopped_at = min(self._nodes.stopped_at, now)
            for books in self._books.values():
                books.end(now)

    def lose_learner(self, now: float) -> None:
        """Ends training until the learner, which is lost, makes a step again; all counters go on."""
        self._training, self._nodes = Stopwatch(self.elapsed_s(now)), Stopwatch(self.nodes_s(now), started_at=now)
        self._games_before = self._totals["games"]
        self._learner_lost = True
        self._paid.enter("start", now)
        if self._experiment.actors.beside_learner:
            for worker in [worker for worker in self._reported_at if kind_of(worker) == "actor"]:
                self.ended(worker, now)
        self._rates.pop("steps", None)
        self._gauges = defaultdict(dict, {who: kept for who, kept in self._gauges.items() if kind_of(who) != "learner"})

    def counters(self, now: float) -> dict[str, float]:
        """The counters to store in a checkpoint."""
        counters = {"elapsed_s": self.elapsed_s(now), "nodes_s": self.nodes_s(now)}
        counters["training_s"] = self._paid.seconds(now)["training"]
        for books in self._books.values():
            counters |= books.counters()
        return {name: self._totals[name] for name in RESUMED_COUNTERS} | self._best | counters

    def elapsed_s(self, now: float) -> float:
        """Seconds of training: from the first learner step of each start on."""
        return self._training.seconds(now)

    def nodes_s(self, now: float) -> float:
        """Seconds that the run has taken, with its starts, its waits for nodes and the last judgement."""
        return self._nodes.seconds(now)

    def share_passed(self, now: float) -> float:
        """How much of this start's budget is used, in [0, 1]: the largest share of its minutes, games or hours."""
        stop, elapsed = self._experiment.stop, self.elapsed_s(now) / 60
        return max(
            share_of_rest(stop.minutes, self._training.before / 60, elapsed),
            share_of_rest(stop.games, self._games_before, self._totals["games"]),
            share_of_rest(self._experiment.most_hours, self._nodes.before / 3600, self.nodes_s(now) / 3600),
        )

    def status(self, now: float, silent: Mapping[str, float] = MappingProxyType({})) -> RunStatus:
        """The status of the run at `now`; `silent` are the workers that fell silent, by name for how many seconds."""
        experiment, learner = self._experiment, self._gauges["learner"]
        evaluator, driver = self._gauges["evaluator"], self._gauges["driver"]
        counts = (self._values("replay", f"replay/{count}") for count in ("size", "inserted", "sampled"))
        size, inserted, sampled = map(sum, counts)
        known: dict[str, Any] = {name: learner.get(f"learner/{name}") for name in _OF_LEARNER}
        known |= {name: evaluator.get(f"evaluation/{name}") for name in _OF_EVALUATOR}
        known |= {name: int(self._totals[name]) for name in RESUMED_COUNTERS}
        known |= {f"{name}_per_s": self._rates[name].per_s(now) for name in _RATES}
        known |= self._of_chips(known["steps_per_s"], known["moves_per_s"])
        paid_s = self._paid.seconds(now)
        hours = self.nodes_s(now) / 3600.0
        cost = experiment.cluster.cost(hours)
        status = RunStatus(
            name=experiment.name,
            phase=self._phase(size),
            elapsed_s=self.elapsed_s(now),
            time_left_s=self._time_left_s(now),
            step=self.step,
            episodic=experiment.learns_model,
            server_fill=self._mean_over("inference", "server/fill"),
            server_busy=self._mean_over("inference", "server/busy"),
            server_latency_ms=self._max_over("inference", "server/latency_ms_median"),
            server_latency_p99_ms=self._max_over("inference", "server/latency_ms_p99"),
            replay_size=int(size),
            replay_capacity=experiment.replay.capacity if experiment.has_self_play else 0,
            samples_per_insert=_per(sampled, inserted),
            policy_age_spread=_with_prefix(learner, "learner/policy_age_"),
            publication_lag=spread(self._values("actor", "actor/lag")),
            rating=evaluator.get("evaluation/elo"),
            rating_error=evaluator.get("evaluation/elo_error"),
            rated_step=_whole(evaluator.get("evaluation/step")),
            best=dict(self._best),
            acting_return=self._mean_over("actor", "acting/mean_return"),
            scores=_with_prefix(evaluator, "evaluation/score_"),
            checkpoint_step=_whole(driver.get("checkpoint/step")),
            checkpoint_age_s=driver.get("checkpoint/age_s"),
            failed_saves=int(driver.get("checkpoint/failed_saves", 0)),
            saving_s=driver.get("checkpoint/saving_s", 0.0),
            # Reports arrive unevenly, so that a window may hold the work of more than its length.
            device_busy=min(self._rates["device_s"].per_s(now), 1.0) if "learner/device_busy" in learner else None,
            hours=hours,
            cost=cost,
            cost_per_million_samples=None if cost is None else _per(1e6 * cost, self._totals["samples"]),
            silent=dict(silent),
            paid_s=paid_s,
            goodput=_per(paid_s["training"], sum(paid_s.values())),
            ledger={table: each.ledger(self.step * self._trained[table], now) for table, each in self._books.items()},
            shares=self._shares(now, silent),
            **known,
        )
        limit = bottleneck(status, experiment.replay.min_size, experiment.has_self_play)
        # Workers that start again do nothing yet.
        return status.without_rates() if self._forced == "starting" else replace(status, bottleneck=limit)

    def _of_chips(self, steps_per_s: float, moves_per_s: float) -> dict[str, Any]:
        """The fields of the status on chips and their memory."""
        learner = self._gauges["learner"]
        chips, hosts = learner.get("learner/chips"), learner.get("learner/hosts")
        samples_per_s = steps_per_s * self._experiment.learner.batch_size
        flops_per_s = samples_per_s * learner.get("learner/flops_per_sample", 0.0)
        memory = ("hbm_bytes", "hbm_peak_bytes", "hbm_limit_bytes")
        return {
            "chips": _whole(chips),
            "hosts": _whole(hosts),
            "step_s": _per(1.0, steps_per_s),
            "samples_per_s": samples_per_s,
            "samples_per_s_per_chip": _per(samples_per_s, chips),
            "samples_per_s_per_host": _per(samples_per_s, hosts),
            "moves_per_s_per_chip": _per(moves_per_s, chips),
            "moves_per_s_per_host": _per(moves_per_s, hosts),
            "share_of_peak": _per(flops_per_s, learner.get("learner/peak_flops")),
            **{name: self._max_over("learner", f"learner/{name}") for name in memory},
        }

    def _phase(self, replay_size: float) -> Phase:
        if self._forced is not None:
            return self._forced
        if self._has_trained:
            return "training"
        if self._learner_lost:
            return "starting"
        return "collecting" if self._rates["moves"].moved or replay_size > 0 else "starting"

    def _time_left_s(self, now: float) -> float | None:
        if self._forced is not None:
            return max(self._phase_ends - now, 0.0) if math.isfinite(self._phase_ends) else None
        stop = self._experiment.stop
        limits = [] if stop.minutes is None else [60.0 * stop.minutes - self.elapsed_s(now)]
        if (hours := self._experiment.most_hours) is not None:
            limits.append(3600.0 * hours - self.nodes_s(now))
        counted = ((stop.steps, self.step, "steps"), (stop.games, self._totals["games"], "games"))
        for limit, done, rate in counted:
            per_s = self._rates[rate].per_s(now)
            if self._has_trained and limit is not None and (per_s > 0 or done >= limit):
                limits.append((limit - done) / per_s if done < limit else 0.0)
        return max(min(limits), 0.0) if limits else None

    def _mean_over(self, kind: str, name: str) -> float | None:
        values = self._values(kind, name)
        return sum(values) / len(values) if values else None

    def _max_over(self, kind: str, name: str) -> float | None:
        return max(self._values(kind, name), default=None)

    def _values(self, kind: str, name: str) -> list[float]:
        """A gauge of the workers of a kind that report it."""
        return [metrics[name] for who, metrics in self._gauges.items() if kind_of(who) == kind and name in metrics]

    def _shares(self, now: float, silent: Collection[str]) -> dict[str, dict[str, float]]:
        """Share of wall time by kind of worker and stage, averaged over the workers that reported lately."""
        recent: dict[str, list[dict[str, float]]] = defaultdict(list)
        for worker, reported_at in self._reported_at.items():
            stages = {name: share for name, share in self._gauges[worker].items() if name.startswith("time/")}
            if stages and now - reported_at <= SILENT_AFTER_S and worker not in silent:
                recent[kind_of(worker)].append(stages)
        if "play_s" in self._rates:
            train, play = (self._rates[name].per_s(now) for name in ("device_s", "play_s"))
            recent["device"].append(whole({"time/train": train, "time/play": play}, "time/idle"))
        return {kind: _with_prefix(merge_workers(workers), "time/") for kind, workers in sorted(recent.items())}


def kind_of(worker: str) -> str:
    """The kind of a worker, for example `actor` of `actor-3`."""
    return worker.rpartition("-")[0] if worker.rpartition("-")[2].isdigit() else worker


def _with_prefix(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


class RateWindow:
    """The growth per second of a total, averaged over the last `WINDOW_S` seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()

    @property
    def moved(self) -> bool:
        """Whether the total was ever above zero."""
        return bool(self._points) and self._points[-1][1] > 0

    def add(self, now: float, total: float) -> None:
        """Records the total at time `now`."""
        # One point a second bounds the memory when many workers report.
        if len(self._points) > 1 and now - self._points[-2][0] < 1.0:
            self._points[-1] = (now, total)
        else:
            self._points.append((now, total))
        self._forget(now)

    def per_s(self, now: float) -> float:
        """The rate; 0 if the total did not grow within the window, or nothing has been added for unusually long."""
        self._forget(now)
        if len(self._points) < 2:
            return 0.0
        usual_s = (self._points[-1][0] - self._points[0][0]) / (len(self._points) - 1)
        if now - self._points[-1][0] > max(STALE_S, 3 * usual_s):
            return 0.0
        # The first point of all only marks the start: how long its growth took is unknown (programs were compiled).
        since, base = self._points[0]
        return max(self._points[-1][1] - base, 0.0) / max(now - since, 1e-9)

    def _forget(self, now: float) -> None:
        while len(self._points) > 1 and self._points[1][0] <= now - WINDOW_S:
            self._points.popleft()


def bottleneck(status: RunStatus, min_size: int, has_self_play: bool = True) -> str:
    """Says in words which side waits for which; "" while that is unknown. Training begins with `min_size` samples."""
    if status.phase == "collecting":
        waits = f"the learner waits for the first {min_size:,} samples ({status.replay_size / min_size:.0%} there)"
        return waits if status.replay_size < min_size else "the learner prepares its first step (compiling)"
    if status.phase != "training":
        return ""
    shares = status.shares
    writers = {"actors": shares.get("actor", {})} if has_self_play else {"recorded games": {}}
    if "reanalyser" in shares:
        writers["reanalysers"] = shares["reanalyser"]
    learner, busy = shares.get("learner", {}), status.server_busy or 0.0
    # Actors and reanalysers both write to replay; the kind that it blocks less is the slower one.
    kind, writer = min(writers.items(), key=lambda item: item[1].get("write", 0.0))
    starved, blocked = learner.get("wait_replay", 0.0), writer.get("write", 0.0)
    if starved >= max(WAIT_SHARE, blocked):
        stage, share = _largest(writer, without=("write",))
        why = f"; they spend {share:.0%} of their time on {stage}" if stage else ""
        limited = kind == "actors" and busy >= SERVERS_BUSY
        servers = f"; the inference servers' devices are busy {busy:.0%} of the time" if limited else ""
        return f"the learner waits for the {kind} ({starved:.0%} of its time{why}){servers}"
    if blocked >= WAIT_SHARE:
        return f"the {kind} wait for the learner ({blocked:.0%} of their time)"
    stage, share = _largest(learner, without=("step", "wait_replay"))
    if share >= WAIT_SHARE:
        return f"the learner spends {share:.0%} of its time on {stage}"
    return "none: actors and learner keep each other busy" if writer and learner else ""


def _largest(stages: Mapping[str, float], without: Collection[str]) -> tuple[str, float]:
    """The stage with the largest share, in words, and that share; `("", 0)` without stages."""
    candidates = [(share, stage) for stage, share in stages.items() if stage not in without]
    share, stage = max(candidates, default=(0.0, ""))
    return "other work" if stage == REST else stage.replace("_", " "), share


def _per(amount: float, divisor: float | None) -> float | None:
    return amount / divisor if divisor else None


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


class Demand:
    """The number of actors that a run wants, between `least` and `most`."""

    def __init__(self, least: int, most: int) -> None:
        self.wanted, self._least, self._most = most, least, most
        self._waits: list[tuple[float, float]] = []
        self._due = 0.0

    def look(self, status: RunStatus, running: int, now: float) -> bool:
        """Takes the shares of time of the status at `now`; returns whether another number is wanted from now on.

        Before the learner trains, and while it restarts, they tell nothing.
        """
        learner, actor, before = status.shares.get("learner"), status.shares.get("actor"), self.wanted
        if status.phase != "training" or learner is None or actor is None:
            self._waits = []
            return False
        self._due = self._due if self._waits else now + DECIDE_EVERY_S
        self._waits.append((learner.get("wait_replay", 0.0), actor.get("write", 0.0)))
        if now >= self._due:
            wanted = wanted_actors(before, running, *map(fmean, zip(*self._waits, strict=True)))
            self.wanted, self._waits = max(self._least, min(wanted, self._most)), []
        return self.wanted != before


def wanted_actors(wanted: int, running: int, starved: float, blocked: float) -> int:
    """How many actors are wanted after `wanted`, of which some are `running`.

    `starved` is the share of time in which the learner waits for replay, `blocked` that in which the actors do. Where
    both wait, replay itself is slow, and actors change nothing.
    """
    step = max(1, math.ceil(CHANGE * running))
    if starved > WAIT_SHARE >= blocked:
        return max(wanted, running + step)
    if blocked > WAIT_SHARE >= starved:
        # Those that stay can still do what all do now: else the learner would wait, and call them back.
        return min(wanted, max(math.ceil(running * (1.0 - blocked)), running - step))
    return wanted
