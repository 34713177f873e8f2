"""What follows a failure: when and where a worker, the learner or the whole start is retried, or the run ends."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from podzero.core.errors import TRY_AGAIN, ConfigError, PodzeroError
from podzero.core.waiting import doubled
from podzero.files.workdir import WorkdirError
from podzero.runtime.cluster.placement import ClusterEnded, Node, NodesAbsent, Reservation
from podzero.runtime.cluster.remote import NodeLost
from podzero.runtime.monitoring.monitor import kind_of
from podzero.runtime.stopping import StopRequest
from podzero.runtime.workers import LearnerFailed, RunFailed, WouldFailAgain

log = logging.getLogger(__name__)

_MOST_COUNTED = 64
"""Failures of one worker, or of one kind on a node, that are remembered."""
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


def pause_after(failures: int) -> float:
    """Seconds until a restart after so many failures: none after the first, then doubling up to the longest."""
    return 0.0 if failures == 1 else doubled(LIMITS.first_pause_s, failures - 1, LIMITS.longest_pause_s)


class Failures:
    """The failures of a run's workers, by their nodes' ids. A worker that is lost with its node has not failed.

    Pauses and avoided nodes depend on the failures within `window_minutes`. Only failures in a row, since the worker
    last worked, can be too many; they count however old they are. `describe` puts the node of an id into words.
    """

    def __init__(self, program: Iterable[Reservation], describe: Callable[[str], str]) -> None:
        self._kinds = {kind.name: kind for kind in program}
        self._describe = describe
        self._times: defaultdict[str | tuple[str, str], deque[float]] = defaultdict(lambda: deque(maxlen=_MOST_COUNTED))
        """When a worker failed, by name, and when workers of a kind failed on a node, by kind and node."""
        self._in_row: Counter[str] = Counter()
        """The failures of each worker since it last worked."""
        self._last: dict[str, Exception] = {}
        """The last error of each worker that has not worked since it failed."""
        self._may_start_at: dict[str, float] = {}
        self._avoided_until: dict[tuple[str, str], float] = {}
        self._have_worked: set[str] = set()
        """The kinds with a worker that has ever worked."""

    def record_work(self, worker: str) -> None:
        """Records that a worker has worked since its last failure."""
        self._have_worked.add(kind_of(worker))
        self._in_row.pop(worker, None)
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
        if unfit and kind.needed and kind.name not in self._have_worked:
            raise WouldFailAgain(f"{worker} cannot do what the experiment asks for: {error}") from error
        self._last[worker] = error
        pause_s = self.record_failure(worker)
        when = f"in {pause_s:g} s" if pause_s else "at once"
        log.warning("%s failed %s; it restarts %s", worker, _times(self._in_row[worker]), when, exc_info=error)
        if node is not None and self.record_failure_on(node, kind.name, at_fault=unfit):
            why = f"{worker} cannot work there" if unfit else "they keep failing there; the last error is"
            pause = f"for {LIMITS.node_pause_minutes:g} minutes"
            log.warning("%s avoid %s %s, because %s: %s", kind.plural, self._describe(node), pause, why, error)
        # Training needs every shard, but only some workers of the other kinds.
        peers = {*alive, *(other for other in self._last if kind_of(other) == kind.name)}
        concerned = {worker} if kind.name == SHARD else peers
        if kind.needed and all(self.exhausted(other) for other in concerned):
            who, each = (worker, "") if kind.name == SHARD else (f"all {kind.plural}", " each")
            raise RunFailed(
                f"{who} failed {_times(self._limit(worker))}{each} without doing any work in between; the last error, "
                f"of {worker}: {error}\nCorrect its cause, for which the log has tracebacks, and resume the run"
            ) from error

    def record_failure(self, worker: str) -> float:
        """Counts a failure of a worker; returns the seconds until it may restart."""
        now = time.monotonic()
        self._in_row[worker] += 1
        # A worker that needs longer than the window to fail must not restart at once each time.
        pause_s = pause_after(max(self._count(worker, now), self._in_row[worker]))
        self._may_start_at[worker] = now + pause_s
        return pause_s

    def record_failure_on(self, node: str, kind: str, at_fault: bool) -> bool:
        """Counts a failure of a kind on a node; returns whether the kind begins to avoid it: at once if `at_fault`."""
        now = time.monotonic()
        self._avoided_until = {place: until for place, until in self._avoided_until.items() if now < until}
        failures = self._count((kind, node), now)
        if self.avoids(kind, node) or not (at_fault or failures >= LIMITS.node_failures):
            return False
        # When the kind comes back, these failures must not make it avoid the node at its first new one.
        del self._times[kind, node]
        self._avoided_until[kind, node] = now + 60 * LIMITS.node_pause_minutes
        return True

    def may_start(self, worker: str) -> bool:
        """Whether the pause after the last failure of a worker is over."""
        return time.monotonic() >= self._may_start_at.get(worker, 0.0)

    def avoids(self, kind: str, node: str) -> bool:
        """Whether workers of a kind avoid a node."""
        return time.monotonic() < self._avoided_until.get((kind, node), 0.0)

    def usable(self, kind: str, nodes: Sequence[Node]) -> list[Node]:
        """Those of `nodes` that workers of a kind do not avoid; all of them if they avoid all."""
        return [node for node in nodes if not self.avoids(kind, node.id)] or list(nodes)

    def exhausted(self, worker: str) -> bool:
        """Whether a worker has used up its failures in a row."""
        return self._in_row[worker] >= self._limit(worker)

    @property
    def failing(self) -> dict[str, str]:
        """The workers that have not worked since they failed: by name, the failures in a row and the last error."""
        return {
            worker: f"{_times(self._in_row[worker])}: {error}".splitlines()[0]
            for worker, error in sorted(self._last.items())
        }

    def _limit(self, worker: str) -> int:
        return LIMITS.max_failures if kind_of(worker) in self._have_worked else LIMITS.max_first_failures

    def _count(self, failed: str | tuple[str, str], now: float) -> int:
        """Adds a failure of a worker, or of a kind on a node; returns their number within the window."""
        times = self._times[failed]
        while times and times[0] <= now - 60 * LIMITS.window_minutes:
            times.popleft()
        times.append(now)
        return len(times)


def _times(failures: int) -> str:
    return "once" if failures == 1 else f"{failures} times in a row"


class RestartPolicy:
    """When to try again after a failed attempt to restart the workers."""

    def __init__(self) -> None:
        self._attempts = 0
        self._failures = 0

    def pause_s(self, error: Exception) -> float:
        """Seconds until the next attempt after one that failed with `error`."""
        from podzero.learner import CheckpointMismatch

        # No ConfigError: these workers have run, so it may pass, as where a dying process still holds the chips.
        if isinstance(error, (RunFailed, WorkdirError, CheckpointMismatch, ClusterEnded)):
            raise error
        if not isinstance(error, (NodesAbsent, NodeLost)):
            self._failures += 1
        if self._failures > MAX_FAILURES:
            raise RunFailed(f"{self._failures} attempts to start again failed; last error: {error}") from error
        self._attempts += 1
        return doubled(FIRST_PAUSE_S, self._attempts, LONGEST_PAUSE_S)


def first_start[Started](start: Callable[[], Started], stopping: StopRequest) -> Started:
    """The result of `start`, which starts a run's workers; called again after errors that may pass by themselves."""
    errors: list[str] = []
    while True:
        try:
            return start()
        except Exception as error:
            known, errors = errors, [*errors, _signature(error)]
            may_pass = isinstance(error, PodzeroError) and error.exit_code == TRY_AGAIN
            if isinstance(error, NodesAbsent) or not may_pass:  # nodes were waited for already
                raise
            if errors[-1] in known or len(errors) > MAX_FIRST_FAILURES or stopping.is_set():
                raise
            pause_s = doubled(FIRST_PAUSE_S, len(errors), LONGEST_PAUSE_S)
            log.warning("the workers could not start; next attempt in %g s", pause_s, exc_info=error)
            stopping.wait(pause_s)


class _Failure(NamedTuple):
    time_s: float
    began_at: int
    """The step of the checkpoint from which the learner had started."""
    step: int
    signature: str


class LearnerFailures:
    """The failures of a run's learner. Pure: the clock is an argument."""

    def __init__(self) -> None:
        self._counted: list[_Failure] = []

    def pause_s(self, failure: LearnerFailed, began_at: int, step: int, now: float) -> float:
        """Seconds until all workers start again after the learner, which had begun at a step, failed at another.

        The cause of `failure` is the error of a host.
        """
        from podzero.learner import CheckpointMismatch, TrainingDiverged
        from podzero.replay import ReplayTimeout

        cause = failure.__cause__
        # A restarted learner would fail with the same error.
        if isinstance(cause, (ConfigError, WorkdirError, CheckpointMismatch, TrainingDiverged, ReplayTimeout)):
            raise WouldFailAgain(str(failure)) from cause
        # Failures without a newer checkpoint in between always count: such attempts gain nothing.
        window_s = 60 * LIMITS.window_minutes
        self._counted = [old for old in self._counted if old.began_at == began_at or now - old.time_s < window_s]
        new = _Failure(now, began_at, step, _signature(failure))
        again = any((old.step, old.signature) == (step, new.signature) for old in self._counted)
        self._counted.append(new)
        if again:
            raise WouldFailAgain(f"the learner failed twice at step {step:,} with the same error: {failure}") from cause
        if len(self._counted) > LIMITS.learner_failures:
            raise RunFailed(
                f"the learner failed {len(self._counted)} times within {LIMITS.window_minutes:g} minutes or without a "
                f"new checkpoint, more than {LIMITS.learner_failures} times; last error: {failure}"
            ) from cause
        return pause_after(len(self._counted))


_HOSTS = r"learner-\d+|learner host \d+|host\(s\) \d+(?:, \d+)*"
"""Hosts of the learner in messages."""


def _signature(error: Exception) -> str:
    """Type and message of an error without numbers, which may be ids, addresses or times, except those of hosts."""
    text = f"{type(error).__name__}: {error}"
    return re.sub(rf"({_HOSTS})|\b[0-9a-f]*\d[0-9a-f]*\b", lambda found: found[1] or "#", text)
