"""The evaluator: judges the newest snapshot again and again while training goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from podzero.envs import EnvironmentFailed, SimulatorError, simulator_errors
from podzero.evaluation.arena import Interrupted
from podzero.params import load_snapshot, snapshot_steps
from podzero.protocols import Report
from podzero.types import Params

log = logging.getLogger(__name__)

ROLE = "evaluator"
_LOOK_EVERY_S = 1.0


class Rounds(Protocol):
    """A way to judge parameters; everything is compiled in the first round and used again in all others."""

    @property
    def rated(self) -> int:
        """The newest step judged so far, in earlier lives too; -1 before the first."""
        ...

    def judge(self, step: int, params: Params, keep_going: Callable[[], bool]) -> dict[str, float]:
        """The figures of the parameters of `step`, named `evaluation/...`; asks now and then whether to go on.

        Raises:
          Interrupted: it was not to go on; the round counts for nothing.
        """
        ...

    def ladder(self) -> dict[str, Any]:
        """The rating ladder after the last complete round, as plain values; empty where nobody is met."""
        ...


class Evaluator:
    """Judges the newest snapshot every `every_minutes`."""

    def __init__(self, rounds: Rounds, every_minutes: float, snapshots: Path, report: Report) -> None:
        """Judges nothing yet; `snapshots` is `Workdir.snapshots`, and `report` where the figures go."""
        self._rounds = rounds
        self._every_s = 60 * every_minutes
        self._snapshots = snapshots
        self._report = report
        self._stop = Event()

    def run(self) -> None:
        """Judges until `stop`; waits for a first snapshot."""
        due = time.monotonic()
        while not self._stop.wait(_LOOK_EVERY_S):
            if time.monotonic() >= due and max(snapshot_steps(self._snapshots), default=-1) > self._rounds.rated:
                due = time.monotonic() + self._every_s
                try:
                    self.judge_newest()
                except Interrupted:
                    return
                except (EnvironmentFailed, SimulatorError) as error:
                    log.warning("a round was lost to what it was played in; another one follows: %s", error)

    def stop(self) -> None:
        """Makes `run` return before the next move of the round under way; does not wait for it."""
        self._stop.set()

    def ladder(self) -> dict[str, Any]:
        """The rating ladder after the last complete round, as plain values."""
        return self._rounds.ladder()

    def judge_newest(self) -> None:
        """One round, and its report.

        Raises:
          Interrupted: `stop` was called; the round counts for nothing.
          SnapshotError: no snapshot is intact.
          EnvironmentFailed, SimulatorError: the environments, or a game on the host, failed; no round either.
        """
        step, params = load_snapshot(self._snapshots)
        with simulator_errors():
            metrics = self._rounds.judge(step, params, lambda: not self._stop.is_set())
        self._report(ROLE, {"evaluation/step": float(step)} | metrics)
