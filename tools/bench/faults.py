"""Kills and stops processes of a real run, and measures by the run's own signals when it has recovered."""

from __future__ import annotations

import logging
import math
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import psutil

from podzero.config import Experiment
from podzero.core.errors import TRY_AGAIN
from podzero.runtime.failures import LIMITS
from podzero.tools.bench.child_run import ChildRun, Signals, lives
from podzero.tools.bench.measuring import BenchError

log = logging.getLogger(__name__)

RECOVERY_S = 900.0
"""What has not recovered by then has not survived: more than the longest pause before a restart, and a compilation."""
WHOLE = ("driver", "raylet", "head")
"""Kinds without which a run on one machine ends: the same command resumes it."""
WORKERS = ("actor", "replay", "server", "learner", "evaluator")
"""Kinds that the driver replaces."""
WORKER_OF = {"server": "replay"}
"""Whose work shows that a kind has recovered, where it is not its own."""
_STARTS, _PAUSE_S = 30, 20.0
"""Most attempts to start a run, and the pause before the next one: on a busy machine Ray may not start in its 30 s."""
_EXIT_S = 180.0
"""Longest wait until a driver has ended that lost its Ray cluster."""


@dataclass(eq=False)
class Fault:
    """A kill or a stop of one process.

    Attributes:
      at_s: when it is due, in seconds since the run trained first.
      kind: of `child_run.TITLES`, or `driver`.
      stop_s: seconds between SIGSTOP and SIGCONT; 0 for SIGKILL.
      done_t: the Unix time of the signal; that of SIGCONT once it was sent.
      step: the learner step at that time.
      worker: the worker by whose work it counts as recovered, as far as it is known.
      recovered_s: seconds from the signal, SIGCONT for a stop, to the first report of work since.
      ended: whether a stopped process was replaced although it came back, or a driver did not end by itself.
      exit_code: that of the driver, if it ended.
      exit_s: seconds until then.
      process: the process that got the signal.
      driver: the id of the driver at that time: what is stopped when its driver ends need not come back.
    """

    at_s: float
    kind: str
    stop_s: float = 0.0
    done_t: float = math.nan
    step: int = 0
    worker: str = ""
    recovered_s: float | None = None
    ended: bool = False
    exit_code: int | None = None
    exit_s: float | None = None
    process: Any = field(default=None, repr=False)
    driver: int = 0

    @property
    def survived(self) -> bool:
        """Whether the run has recovered, and what came back was left alone."""
        return self.recovered_s is not None and not self.ended

    def to_json(self, began_t: float) -> dict[str, Any]:
        """The fields, with times in seconds since `began_t`."""
        seconds = {"done_s": self.done_t - began_t, "recovered_s": self.recovered_s, "exit_s": self.exit_s}
        known = {name: round(value, 2) for name, value in seconds.items() if value is not None and math.isfinite(value)}
        found = {"at_s": round(self.at_s, 1), "kind": self.kind, "signal": "STOP" if self.stop_s else "KILL"}
        found |= {"stop_s": self.stop_s, "ended": self.ended} if self.stop_s else {}
        found |= {"exit_code": self.exit_code} if self.exit_s is not None else {}
        return found | {"step": self.step, "worker": self.worker, "survived": self.survived} | known


def schedule(
    kills: Mapping[str, int], stops: Mapping[str, tuple[int, float]], seconds: float, seed: int
) -> list[Fault]:
    """Kills and stops at random times, in their order.

    The time of the k-th of n faults of a kind is uniform in the k-th of n equal parts of `seconds`. `stops` are the
    number of stops and the longest time of one, by kind; the shortest is a third of that.
    """
    rng = random.Random(seed)
    kinds = [(kind, count, 0.0) for kind, count in kills.items()]
    kinds += [(kind, count, longest_s) for kind, (count, longest_s) in stops.items()]
    faults = [
        Fault(seconds / count * (number + rng.random()), kind, round(longest_s * rng.uniform(1 / 3, 1), 1))
        for kind, count, longest_s in kinds
        for number in range(count)
    ]
    return sorted(faults, key=lambda fault: fault.at_s)


class Disturber:
    """Does faults when they are due, and resumes the run when it has ended. `advance` is called again and again.

    Faults of different kinds overlap, but not with those of `WHOLE`, and never two of one kind. A learner is not killed
    more often than `failures.LIMITS` lets a run survive.

    Attributes:
      exits: the exit codes of drivers that ended without being killed, each with the fault before it, if any.
    """

    def __init__(self, run: ChildRun, experiment: Experiment, faults: Iterable[Fault], seed: int) -> None:
        self.undone = list(faults)
        """Faults that are not due yet, or were not possible so far."""
        self.waiting: list[Fault] = []
        """Faults from which the run has not recovered yet."""
        self.done: list[Fault] = []
        self.exits: list[dict[str, Any]] = []
        self.began_t = math.nan
        """The Unix time at which the run trained first."""
        self.start_t = time.time()
        """The Unix time of the first start that led to training."""
        self._starts = 0
        self.signals = Signals(experiment, run.workdir)
        self._run = run
        self._rng = random.Random(seed)
        self._stopped: list[Fault] = []
        self._learner_kills: list[float] = []
        """When the learner was killed under the present driver."""

    @property
    def over(self) -> bool:
        """Whether all faults are done, and the run has recovered from them or will not."""
        return not self.undone and not self.waiting

    def advance(self) -> None:
        """Does what is due."""
        self.signals.read()
        if math.isnan(self.began_t):
            if self._run.exit_code is not None:
                self._start_again()
            elif self.signals.worked["learner"]:
                self.began_t = time.time()
            return
        if self._run.exit_code is not None:
            self._resume()
        for fault in list(self.waiting):
            self._look(fault)
        for fault in [fault for fault in self.undone if self._possible(fault)]:
            if self._possible(fault):  # the one before may have been of the same kind
                self._do(fault)

    def _start_again(self) -> None:
        """Gives the command again for which nothing has trained yet, if its exit code says so."""
        self._starts += 1
        if self._run.exit_code != TRY_AGAIN or self._starts >= _STARTS:
            raise BenchError(f"the run ended before it trained: see {self._run.console}")
        log.info("the run did not start (exit code %d); next attempt in %g s", TRY_AGAIN, _PAUSE_S)
        time.sleep(_PAUSE_S)
        self.start_t = time.time()
        self._run.start()

    def close(self) -> None:
        """Lets stopped processes go on."""
        for fault in self._stopped:
            self._continue(fault)

    def _possible(self, fault: Fault) -> bool:
        if time.time() - self.began_t < fault.at_s or self._run.exit_code is not None:
            return False
        kinds = {WORKER_OF.get(other.kind, other.kind) for other in self.waiting}
        if WORKER_OF.get(fault.kind, fault.kind) in kinds or kinds.intersection(WHOLE):
            return False
        now = time.time()
        recent = [t for t in self._learner_kills if now - t < 60 * LIMITS.window_minutes + 60]
        if fault.kind == "learner" and not fault.stop_s and len(recent) >= LIMITS.learner_failures:
            return False
        status = self._run.status()
        # A learner that is killed before its first step fails twice at one step, which ends the run.
        return status is not None and status.phase in ("collecting", "training") and status.step > 0

    def _do(self, fault: Fault) -> None:
        found = sorted(self._run.processes().get(fault.kind, ()), key=lambda process: process.pid)
        if not found:
            return
        victim, status = self._rng.choice(found), self._run.status()
        try:
            victim.send_signal(signal.SIGSTOP if fault.stop_s else signal.SIGKILL)
        except psutil.NoSuchProcess:
            return
        fault.driver = self._run.driver.pid
        fault.process, fault.done_t, fault.step = victim, time.time(), status.step if status else 0
        if fault.stop_s:
            self._stopped.append(fault)
        elif fault.kind == "learner":
            self._learner_kills.append(fault.done_t)
        what = f"stopped for {fault.stop_s:g} s" if fault.stop_s else "killed"
        log.info("%s (%d) %s at step %d", fault.kind, victim.pid, what, fault.step)
        self.undone.remove(fault)
        self.waiting.append(fault)

    def _look(self, fault: Fault) -> None:
        """Lets a stopped process go on, and finds out whether the run has recovered."""
        now = time.time()
        if fault in self._stopped:
            if now - fault.done_t < fault.stop_s:
                return
            self._continue(fault)
            fault.done_t = now
            self._stopped.remove(fault)
        lost = fault.kind in ("raylet", "head") and not fault.stop_s and self._run.exit_code is None
        if lost and fault.exit_s is None and now - fault.done_t > _EXIT_S:
            log.warning("the driver has not ended %.0f s after its %s", _EXIT_S, fault.kind)
            self._run.driver.kill()
            fault.ended = True
        if (recovered := self._recovered(fault)) is not None:
            fault.recovered_s = recovered - fault.done_t
            fault.ended |= bool(fault.stop_s) and not lives(fault.process) and self._run.driver.pid == fault.driver
            log.info("%s: recovered after %.1f s", fault.kind, fault.recovered_s)
        elif now - fault.done_t < RECOVERY_S:
            return
        else:
            log.warning("%s: not recovered after %.0f s", fault.kind, RECOVERY_S)
        self.waiting.remove(fault)
        self.done.append(fault)

    def _continue(self, fault: Fault) -> None:
        with suppress(psutil.NoSuchProcess):
            fault.process.send_signal(signal.SIGCONT)

    def _recovered(self, fault: Fault) -> float | None:
        """The Unix time of the first report of work since the fault; None without one."""
        signals, since = self.signals, fault.done_t
        kind = WORKER_OF.get(fault.kind, fault.kind)
        if fault.stop_s:
            return _first(self._all_worked(kind) if signals.worked[kind] else signals.worked["learner"], since)
        match fault.kind:
            case "store":
                newer = [t for t, version in signals.versions if version > fault.step]
                return _first(newer, since) if self._new(fault) else None
            case "directory":
                new = self._new(fault)
                return _first(signals.worked["learner"], max(since, new.create_time())) if new else None
        fault.worker = fault.worker or self._first_built("learner" if kind in WHOLE else kind, since)
        built = signals.built.get(fault.worker, 0.0)
        return _first(self._all_worked(fault.worker.partition("-")[0]), built) if built > since else None

    def _all_worked(self, kind: str) -> list[float]:
        """The times at which all workers of a kind reported work; of more than two, at least two did."""
        names = [name for name in self.signals.built if name.partition("-")[0] == kind]
        return self.signals.together[kind] if len(names) > 1 else self.signals.worked[kind]

    def _first_built(self, kind: str, since: float) -> str:
        """The worker of a kind that was built first since a time, empty if none was."""
        found = {t: name for name, t in self.signals.built.items() if name.partition("-")[0] == kind and t > since}
        return found[min(found)] if found else ""

    def _new(self, fault: Fault) -> psutil.Process | None:
        """The process in place of the one that was killed."""
        found = (process for process in self._run.processes().get(fault.kind, ()) if process != fault.process)
        return next(found, None)

    def _resume(self) -> None:
        """Gives the same command again at once, while some of the driver's processes may still end."""
        code, now = self._run.exit_code, time.time()
        cause = next((fault for fault in self.waiting if fault.kind in WHOLE), None)
        if cause is not None and cause.exit_code is None:
            cause.exit_code, cause.exit_s = code, now - cause.done_t
        if cause is None or cause.kind != "driver":
            after = (cause or self.waiting[-1]).kind if cause or self.waiting else None
            self.exits.append({"t_s": round(now - self.began_t, 1), "exit_code": code, "after": after})
        log.info("the driver has ended with %s; resuming", code)
        self._learner_kills.clear()
        self._run.start()


def _first(times: Iterable[float], since: float) -> float | None:
    return min((t for t in times if t > since), default=None)


def summary(faults: Sequence[Fault]) -> dict[str, dict[str, Any]]:
    """Count, survived, and recovery in seconds: median, 95th percentile (nearest rank) and longest, by kind."""
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        by_kind[fault.kind].append(fault)
    found: dict[str, dict[str, Any]] = {}
    for kind, ones in by_kind.items():
        times = sorted(fault.recovered_s for fault in ones if fault.recovered_s is not None)
        found[kind] = {"count": len(ones), "survived": sum(fault.survived for fault in ones)}
        if times:
            rank = math.ceil(0.95 * len(times)) - 1
            found[kind] |= {"median_s": round(median(times), 1), "p95_s": round(times[rank], 1)}
            found[kind] |= {"longest_s": round(times[-1], 1)}
    return found
