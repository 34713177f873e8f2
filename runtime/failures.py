"""What follows a failure: when and where a worker, the learner or the whole start is retried, or the run ends."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from podzero.core.errors import TRY_AGAIN, ConfigError, PodzeroError
from podzero.files.workdir import WorkdirError
from podzero.runtime.cluster.placement import Node, Reservation
from podzero.runtime.cluster.remote import NodeLost
from podzero.runtime.monitoring.monitor import kind_of
from podzero.runtime.nodes import NodesAbsent
from podzero.runtime.stopping import StopRequest
from podzero.runtime.workers import LearnerFailed, RunFailed, WouldFailAgain

log = logging.getLogger(__name__)

_MOST_COUNTED = 64
"""Failures of one worker, or of one kind on a node, that are remembered: the pause no longer grows from there on."""
SHARD = "replay"
"""The kind of replay's shards, of which training needs every one."""
FIRST_PAUSE_S = 10.0
"""Pause after the first failed attempt to start; each further failure doubles it."""
LONGEST_PAUSE_S = 160.0
MAX_FAILURES = 8
"""How many attempts to start again may fail. Lost or missing nodes do not count: a run always waits for them."""
MAX_FIRST_FAILURES = 2
"""How many attempts may fail before a run's workers have started for the first time."""


class RestartLimits(NamedTuple):
    """How often workers and learner may fail, and how long their restarts wait."""

    window_minutes: float = 30.0
    """Minutes for which a failure counts."""
    first_pause_s: float = 5.0
    """Seconds before the restart after a worker's second failure; each further failure doubles the pause. After the
    first failure the worker restarts at once."""
    longest_pause_s: float = 300.0
    node_failures: int = 3
    """Failures of one kind of worker on a node, within the window, after which this kind avoids the node unless it
    avoids all nodes."""
    node_pause_minutes: float = 30.0
    """Minutes for which a node is avoided; less if it leaves the cluster and joins again."""
    max_failures: int = 10
    """Failures of a worker in a row, without any work in between. The run ends when a replay shard, or all workers of a
    kind that training needs, have failed this often. The evaluator is always restarted."""
    max_first_failures: int = 3
    """Like `max_failures`, before any worker of a kind has worked."""
    learner_failures: int = 5
    """Failures of the learner within the window, or without a new checkpoint in between, that a run survives."""


LIMITS = RestartLimits()


class Restart(NamedTuple):
    """The consequences of a failure."""

    in_row: int
    """The worker's failures since it last worked, including this one."""
    pause_s: float
    """Seconds until it may restart."""
    node_avoided: bool
    """Whether this failure makes the worker's kind avoid the node."""


class FailureBudget:
    """Counts failures per worker, and per node and kind of worker. Pure: the clock is an argument.

    Pauses and avoided nodes depend on the failures within `window_minutes`. Only failures in a row, since the worker
    last worked, can be too many; they count however old they are.
    """

    def __init__(self, limits: RestartLimits) -> None:
        self._limits = limits
        self._times: defaultdict[str | tuple[str, str], deque[float]] = defaultdict(lambda: deque(maxlen=_MOST_COUNTED))
        """When a worker failed, by name, and when workers of a kind failed on a node, by kind and node."""
        self._in_row: Counter[str] = Counter()
        self._may_start_at: dict[str, float] = {}
        self._avoided_until: dict[tuple[str, str], float] = {}
        self._have_worked: set[str] = set()
        """The kinds with a worker that has ever worked."""

    def record_work(self, worker: str) -> None:
        """Records that a worker has worked since its last failure."""
        self._have_worked.add(kind_of(worker))
        self._in_row.pop(worker, None)

    def record_failure(self, worker: str, node: str | None, now: float, node_at_fault: bool = False) -> Restart:
        """Records that a worker failed, and whether that shows that it cannot work on this node (its id) at all."""
        self._in_row[worker] += 1
        # A worker that needs longer than the window to fail must not restart at once each time.
        failures = max(self._count(worker, now), self._in_row[worker])
        # None after the first failure; then the first pause, doubled by each further failure.
        doubled_s = self._limits.first_pause_s * 2.0 ** min(failures - 2, _MOST_COUNTED)
        pause_s = 0.0 if failures == 1 else min(doubled_s, self._limits.longest_pause_s)
        self._may_start_at[worker] = now + pause_s
        avoided = node is not None and self._avoid(kind_of(worker), node, now, node_at_fault)
        return Restart(self._in_row[worker], pause_s, avoided)

    def may_start(self, worker: str, now: float) -> bool:
        """Whether the pause after the last failure of a worker is over."""
        return now >= self._may_start_at.get(worker, now)

    def avoids(self, kind: str, node: str, now: float) -> bool:
        """Whether workers of a kind avoid a node."""
        return now < self._avoided_until.get((kind, node), now)

    def has_worked(self, kind: str) -> bool:
        """Whether any worker of a kind has ever worked."""
        return kind in self._have_worked

    def in_row(self, worker: str) -> int:
        """A worker's failures since it last worked."""
        return self._in_row[worker]

    def exhausted(self, worker: str) -> bool:
        """Whether a worker has used up its failures in a row."""
        worked = self.has_worked(kind_of(worker))
        return self._in_row[worker] >= (self._limits.max_failures if worked else self._limits.max_first_failures)

    def _count(self, failed: str | tuple[str, str], now: float) -> int:
        """Adds a failure of a worker, or of a kind on a node; returns their number within the window."""
        times = self._times[failed]
        while times and times[0] <= now - 60 * self._limits.window_minutes:
            times.popleft()
        times.append(now)
        return len(times)

    def _avoid(self, kind: str, node: str, now: float, at_fault: bool) -> bool:
        """Counts a failure on a node; returns whether the kind begins to avoid it."""
        self._avoided_until = {place: until for place, until in self._avoided_until.items() if now < until}
        failures = self._count((kind, node), now)
        if self.avoids(kind, node, now) or not (at_fault or failures >= self._limits.node_failures):
            return False
        # When the kind comes back, these failures must not make it avoid the node at its first new one.
        del self._times[kind, node]
        self._avoided_until[kind, node] = now + 60 * self._limits.node_pause_minutes
        return True


class Failures:
    """The failures of a run's workers, by their nodes' ids. A worker that is lost with its node has not failed."""

    def __init__(self, program: Iterable[Reservation], describe: Callable[[str], str]) -> None:
        self._kinds = {kind.name: kind for kind in program}
        self._describe = describe
        self._budget = FailureBudget(LIMITS)
        self._last: dict[str, Exception] = {}
        """The last error of each worker that has not worked since it failed."""

    def record_work(self, worker: str) -> None:
        """Records that a worker has done some work."""
        self._budget.record_work(worker)
        self._last.pop(worker, None)

    def record_end(self, worker: str, node: str | None, error: Exception, alive: Collection[str]) -> None:
        """Records that a worker ended, on a node (its id) if that is known, and logs the consequences.

        `alive` are the workers of its kind that are alive.

        Raises:
          RunFailed: training needs the worker, and the experiment is at fault, or all workers of its kind have used up
            their failures in a row. The message gives the last error.
        """
        kind = self._kinds[kind_of(worker)]
        if isinstance(error, NodeLost):
            self._last.pop(worker, None)
            log.warning("%s was lost with its node; it restarts on a node that has room for it", worker)
            return
        unfit = isinstance(error, ConfigError)
        if unfit and kind.needed and not self._budget.has_worked(kind.name):
            raise WouldFailAgain(f"{worker} cannot do what the experiment asks for: {error}") from error
        self._last[worker] = error
        restart = self._budget.record_failure(worker, node, time.monotonic(), node_at_fault=unfit)
        when = f"in {restart.pause_s:g} s" if restart.pause_s else "at once"
        log.warning("%s failed %s; it restarts %s", worker, _times(restart.in_row), when, exc_info=error)
        if restart.node_avoided and node is not None:
            why = f"{worker} cannot work there" if unfit else "they keep failing there; the last error is"
            pause = f"for {LIMITS.node_pause_minutes:g} minutes"
            log.warning("%s avoid %s %s, because %s: %s", kind.plural, self._describe(node), pause, why, error)
        # Training needs every shard, but only some workers of the other kinds.
        peers = {*alive, *(other for other in self._last if kind_of(other) == kind.name)}
        concerned = {worker} if kind.name == SHARD else peers
        if kind.needed and all(self._budget.exhausted(other) for other in concerned):
            raise self._exhausted(worker, error) from error

    def may_start(self, worker: str) -> bool:
        """Whether the pause after the last failure of a worker is over."""
        return self._budget.may_start(worker, time.monotonic())

    def usable(self, kind: str, nodes: Sequence[Node]) -> list[Node]:
        """Those of `nodes` that workers of a kind do not avoid; all of them if they avoid all."""
        now = time.monotonic()
        return [node for node in nodes if not self._budget.avoids(kind, node.id, now)] or list(nodes)

    @property
    def failing(self) -> dict[str, str]:
        """The workers that have not worked since they failed: by name, the failures in a row and the last error."""
        return {
            worker: f"{_times(self._budget.in_row(worker))}: {error}".splitlines()[0]
            for worker, error in sorted(self._last.items())
        }

    def _exhausted(self, worker: str, error: Exception) -> RunFailed:
        kind = kind_of(worker)
        limit = LIMITS.max_failures if self._budget.has_worked(kind) else LIMITS.max_first_failures
        who, each = (worker, "") if kind == SHARD else (f"all {self._kinds[kind].plural}", " each")
        return RunFailed(
            f"{who} failed {_times(limit)}{each} without doing any work in between; the last error, of {worker}: "
            f"{error}\nCorrect its cause, for which the log has tracebacks, and resume the run"
        )


def _times(failures: int) -> str:
    return "once" if failures == 1 else f"{failures} times in a row"


class RestartPolicy:
    """When to try again after a failed attempt to restart the workers."""

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._failures = 0

    def pause_s(self, error: Exception) -> float:
        """Seconds until the next attempt after one that failed with `error`."""
        from podzero.learner import CheckpointMismatch

        # No ConfigError: these workers have run, so it may pass, as where a dying process still holds the chips.
        if isinstance(error, (RunFailed, WorkdirError, CheckpointMismatch)):
            raise error
        if not isinstance(error, (NodesAbsent, NodeLost)):
            self._failures += 1
        if self._failures > MAX_FAILURES:
            raise RunFailed(f"{self._failures} attempts to start again failed; last error: {error}") from error
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s


def first_start[Started](start: Callable[[], Started], stopping: StopRequest) -> Started:
    """The result of `start`, which starts a run's workers; called again after errors that may pass by themselves."""
    errors: list[str] = []
    while True:
        try:
            return start()
        except Exception as error:
            known, errors = errors, [*errors, _signature(error)]
            if not _may_pass(error) or errors[-1] in known or len(errors) > MAX_FIRST_FAILURES or stopping.is_set():
                raise
            pause_s = FIRST_PAUSE_S * 2 ** len(known)
            log.warning("the workers could not start; next attempt in %g s", pause_s, exc_info=error)
            stopping.wait(pause_s)


class _Failure(NamedTuple):
    """A failure of the learner."""

    time_s: float
    began_at: int
    """The step of the checkpoint from which the learner had started."""
    step: int
    signature: str


class LearnerFailures:
    """The failures of a run's learner. Pure: the clock is an argument."""

    def __init__(self, limits: RestartLimits = LIMITS) -> None:
        self._limits = limits
        self._pauses = FailureBudget(limits)
        self._counted: list[_Failure] = []

    def pause_s(self, failure: LearnerFailed, began_at: int, step: int, now: float) -> float:
        """Seconds until all workers start again from the newest checkpoint after a failure of the learner.

        Args:
          failure: the learner's failure; its cause is the error of a host.
          began_at: the step from which the learner had started.
          step: the last step that it reported.
          now: the current time in seconds.
        """
        cause = failure.__cause__
        if isinstance(cause, Exception) and _ends_training(cause):
            raise WouldFailAgain(str(failure)) from cause
        window_s = 60 * self._limits.window_minutes
        # Failures without a newer checkpoint in between always count: such attempts gain nothing.
        self._counted = [old for old in self._counted if old.began_at == began_at or now - old.time_s < window_s]
        # A checkpoint since the last failure is the learner's work.
        if not any(old.began_at == began_at for old in self._counted):
            self._pauses.record_work("learner")
        new = _Failure(now, began_at, step, _signature(failure))
        again = any((old.step, old.signature) == (step, new.signature) for old in self._counted)
        self._counted.append(new)
        if again:
            raise WouldFailAgain(f"the learner failed twice at step {step:,} with the same error: {failure}") from cause
        if len(self._counted) > self._limits.learner_failures:
            raise RunFailed(
                f"the learner failed {len(self._counted)} times within {self._limits.window_minutes:g} minutes or "
                f"without a new checkpoint, more than {self._limits.learner_failures} times; last error: {failure}"
            ) from cause
        return self._pauses.record_failure("learner", None, now).pause_s


_HOSTS = r"learner-\d+|learner host \d+|host\(s\) \d+(?:, \d+)*"
"""Hosts of the learner in messages."""


def _signature(error: Exception) -> str:
    """Type and message of an error without numbers, which may be ids, addresses or times, except those of hosts."""
    return re.sub(
        rf"({_HOSTS})|\b[0-9a-f]*\d[0-9a-f]*\b", lambda found: found[1] or "#", f"{type(error).__name__}: {error}"
    )


def _may_pass(error: Exception) -> bool:
    """Whether the cause of a failed start may be gone at the next attempt; `NodesAbsent` has waited long enough."""
    return isinstance(error, PodzeroError) and error.exit_code == TRY_AGAIN and not isinstance(error, NodesAbsent)


def _ends_training(error: Exception) -> bool:
    """Whether a restarted learner would fail with the same error."""
    from podzero.learner import CheckpointMismatch, TrainingDiverged
    from podzero.replay import ReplayTimeout

    user = (ConfigError, WorkdirError, CheckpointMismatch)
    return isinstance(error, (*user, TrainingDiverged, ReplayTimeout))
