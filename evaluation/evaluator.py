"""The evaluator: judges the newest snapshot periodically while training goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from podzero.envs import EnvironmentFailed, SimulatorError, simulator_errors
from podzero.evaluation.arena import Interrupted
from podzero.networks.snapshots import SnapshotError, load_snapshot, snapshot_steps
from podzero.protocols import Report
from podzero.types import Params

log = logging.getLogger(__name__)

WORKER = "evaluator"
_LOOK_EVERY_S = 1.0


class Rounds(Protocol):
    """One way to judge parameters. Programs are compiled in the first round and reused in all later ones."""

    @property
    def rated(self) -> int:
        """The newest step judged so far, also by earlier evaluator processes; -1 before the first."""
        ...

    def judge(self, step: int, params: Params, keep_going: Callable[[], bool]) -> dict[str, float]:
        """Metrics of the parameters of `step`, named `evaluation/...`. Calls `keep_going` regularly.

        Raises:
          Interrupted: `keep_going` returned False; the round is discarded.
        """
        ...

    def ladder(self) -> dict[str, Any]:
        """The ratings after the last complete round, as plain values; empty in single-agent environments."""
        ...


class Evaluator:
    """Judges the newest snapshot every `every_minutes`."""

    def __init__(self, rounds: Rounds, every_minutes: float, snapshots: Path, report: Report) -> None:
        """Judges nothing yet. `snapshots` is `Workdir.snapshots`; `report` receives the metrics."""
        self._rounds = rounds
        self._every_s = 60 * every_minutes
        self._snapshots = snapshots
        self._report = report
        self._stop = Event()

    def run(self) -> None:
        """Judges until `stop`; waits for a first snapshot.

        A round whose environment fails, or whose snapshots cannot be read now, is repeated after the usual time.
        """
        due = time.monotonic()
        while not self._stop.wait(_LOOK_EVERY_S):
            began = time.monotonic()
            if began < due:
                continue
            try:
                if max(snapshot_steps(self._snapshots), default=-1) <= self._rounds.rated:
                    continue
                self.judge_newest()
            except Interrupted:
                return
            except (EnvironmentFailed, SimulatorError, SnapshotError, OSError) as error:
                log.warning(
                    "an evaluation round failed; one begins again in %g minutes (evaluation.every_minutes): %s",
                    self._every_s / 60,
                    error,
                )
            due = began + self._every_s

    def stop(self) -> None:
        """Makes `run` return before the next move of the current round; does not wait for it."""
        self._stop.set()

    def ladder(self) -> dict[str, Any]:
        """The rating ladder after the last complete round, as plain values."""
        return self._rounds.ladder()

    def judge_newest(self) -> None:
        """Runs and reports one round.

        Raises:
          Interrupted: `stop` was called; the round is discarded.
          SnapshotError: no snapshot can be read, or none that is newer than the one judged last.
          EnvironmentFailed, SimulatorError: the environments, or a game on the host, failed; the round is discarded.
        """
        step, params = load_snapshot(self._snapshots)
        if step <= self._rounds.rated:
            raise SnapshotError(f"{self._snapshots}: of the snapshots after step {self._rounds.rated} none is intact")
        with simulator_errors():
            metrics = self._rounds.judge(step, params, lambda: not self._stop.is_set())
        self._report(WORKER, {"evaluation/step": float(step)} | metrics)
