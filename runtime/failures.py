"""What follows when a worker ends by itself: a restart, a node that is avoided, or the end of the run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from podzero.config import RestartsConfig
from podzero.errors import ConfigError
from podzero.runtime.cluster.placement import Node, Reservation
from podzero.runtime.cluster.remote import NodeLost
from podzero.runtime.failure_budget import FailureBudget
from podzero.runtime.learner_group import RunFailed
from podzero.runtime.monitoring.monitor import kind_of

log = logging.getLogger(__name__)

SHARD = "replay"
"""The kind of replay's shards, of which training needs every one."""


class Failures:
    """The failures of a run's workers. A worker that is lost with its node has not failed.

    Args:
      config: the section `restarts`.
      program: the kinds of processes.
      describe: describes the node of an id, for the log.
    """

    def __init__(self, config: RestartsConfig, program: Iterable[Reservation], describe: Callable[[str], str]) -> None:
        self._config = config
        self._kinds = {kind.name: kind for kind in program}
        self._describe = describe
        self._budget = FailureBudget(config)
        self._last: dict[str, Exception] = {}
        """The last error of each worker that has failed and not worked since."""

    def note_work(self, worker: str) -> None:
        """Notes that a worker has done some work."""
        self._budget.note_work(worker)
        self._last.pop(worker, None)

    def note_end(self, worker: str, node: str | None, error: Exception, alive: Collection[str]) -> None:
        """Notes that a worker ended, and logs what follows.

        Args:
          worker: its name.
          node: id of its node, if that is known.
          error: that ended it.
          alive: the workers of its kind that are alive.

        Raises:
          RunFailed: training needs the worker, and the experiment is at fault, or all of its kind have failed as often
            in a row as they may. The message names the last error.
        """
        kind = kind_of(worker)
        if isinstance(error, NodeLost):
            self._last.pop(worker, None)
            log.warning("%s was lost with its node; it restarts on a node that has room for it", worker)
            return
        unfit = isinstance(error, ConfigError)
        if unfit and self._kinds[kind].needed and not self._budget.has_worked(kind):
            raise RunFailed(f"{worker} cannot do what the experiment asks for: {error}") from error
        self._last[worker] = error
        self._count(worker, node, error, node_at_fault=unfit)
        if self._kinds[kind].needed and all(self._budget.exhausted(other) for other in self._concerned(worker, alive)):
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
        """The workers that have failed and not worked since, by name: how often in a row, and their last errors."""
        return {
            worker: f"{_times(self._budget.in_row(worker))}: {error}".splitlines()[0]
            for worker, error in sorted(self._last.items())
        }

    def _count(self, worker: str, node: str | None, error: Exception, node_at_fault: bool) -> None:
        restart = self._budget.note_failure(worker, node, time.monotonic(), node_at_fault)
        when = f"in {restart.pause_s:g} s" if restart.pause_s else "at once"
        log.warning("%s failed %s; it restarts %s", worker, _times(restart.in_row), when, exc_info=error)
        if restart.node_avoided and node is not None:
            log.warning(
                "%s avoid %s for %g minutes (restarts.node_pause_minutes), because %s: %s",
                self._kinds[kind_of(worker)].plural,
                self._describe(node),
                self._config.node_pause_minutes,
                f"{worker} cannot work there" if node_at_fault else "they keep failing there; the last error is",
                error,
            )

    def _concerned(self, worker: str, alive: Collection[str]) -> set[str]:
        """The workers that must all have failed too often: those of the same kind that are alive or have failed."""
        kind = kind_of(worker)
        if kind == SHARD:
            return {worker}
        return {*alive, *(other for other in self._last if kind_of(other) == kind)}

    def _exhausted(self, worker: str, error: Exception) -> RunFailed:
        kind = kind_of(worker)
        limit = "max_failures" if self._budget.has_worked(kind) else "max_first_failures"
        who, each = (worker, "") if kind == SHARD else (f"all {self._kinds[kind].plural}", " each")
        return RunFailed(
            f"{who} failed {_times(getattr(self._config, limit))}{each} without doing any work in between "
            f"(restarts.{limit}); the last error, of {worker}: {error}\n"
            f"Correct its cause, for which the log has tracebacks; if it passes by itself, raise restarts.{limit}"
        )


def _times(failures: int) -> str:
    return "once" if failures == 1 else f"{failures} times in a row"
