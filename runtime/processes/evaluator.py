"""The evaluator's process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from podzero.runtime.processes.process import Process


@dataclass(eq=False)
class EvaluatorProcess(Process):
    """The evaluator, which plays snapshots against each other and rates them."""

    def build(self) -> None:
        """Builds the evaluator, which continues the rating ladder of the run."""
        from podzero.evaluation.evaluator import Evaluator, make_rounds

        experiment, workdir = self.context.experiment, self.context.workdir
        rounds = make_rounds(experiment, workdir.snapshots, workdir.games, dict(self.context.ladder))
        minutes = experiment.evaluation.every_minutes
        self._evaluator = Evaluator(rounds, minutes, workdir.snapshots, self.reports.report)

    def run(self) -> None:
        """Evaluates snapshots until `stop`."""
        self._evaluator.run()

    def stop(self, last: int = -1) -> None:
        """Asks `run` to end once it has judged the snapshot of step `last`."""
        self._evaluator.stop(last)

    def ladder(self) -> dict[str, Any]:
        """The rating ladder as plain values."""
        ladder: dict[str, Any] = self._evaluator.ladder()
        return ladder
