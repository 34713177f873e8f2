"""The learner's figures: sums of the steps since the last report, turned into means and rates."""

from __future__ import annotations

import time
from typing import NamedTuple

import jax

from podzero.errors import PodzeroError
from podzero.learner.devices import Machine, Pace
from podzero.learner.step import StepSums

MAX_SKIPPED_IN_A_ROW = 1000
"""Steps without a single finite one among them after which training is given up."""


class TrainingDiverged(PodzeroError, RuntimeError):
    """The NaN guard has skipped every step for so long that nothing is being learned any more."""


class Figures:
    """Adds up what the dispatches return."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._skipped_in_a_row = 0
        self._start_anew()

    def add(self, sums: StepSums) -> None:
        """Takes in the sums of one dispatch, waiting until the device has made them.

        Raises:
          TrainingDiverged: `MAX_SKIPPED_IN_A_ROW` steps were skipped one after the other.
        """
        host: StepSums = jax.device_get(sums)
        for name, total in _named(host).items():
            self._sums[name] = self._sums.get(name, 0.0) + total
        steps, skipped = float(host.steps), float(host.skipped)
        self._skipped_in_a_row = 0 if steps else self._skipped_in_a_row + int(skipped)
        if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise TrainingDiverged(
                f"the last {self._skipped_in_a_row} steps all had a loss or gradient that is not finite; "
                "go back to an earlier checkpoint with a smaller learner.optimizer.learning_rate"
            )

    def flush(self, step: int) -> dict[str, float]:
        """The figures since the last flush; means are left out when no step was made."""
        seconds = max(time.perf_counter() - self._since, 1e-9)
        sums = dict(self._sums)
        moved, skipped = sums.pop("steps", 0.0), sums.pop("skipped", 0.0)
        metrics: dict[str, float] = {
            "learner/step": float(step),
            "learner/steps_per_s": (moved + skipped) / seconds,
            "learner/samples_per_s": (moved + skipped) * self._batch_size / seconds,
            "count/skipped_steps": skipped,
        }
        if moved:
            metrics |= {f"learner/{name}": total / moved for name, total in sums.items()}
        self._start_anew()
        return metrics

    def _start_anew(self) -> None:
        self._sums: dict[str, float] = {}
        self._since = time.perf_counter()


def _named(sums: StepSums) -> dict[str, float]:
    """All sums by name, those of the objective among them."""
    flat = sums._asdict() | sums.parts
    return {name: float(total) for name, total in flat.items() if name != "parts"}


class ChipFigures(NamedTuple):
    """Turns the rates of a report into the figures that TPUs are judged by."""

    machine: Machine
    batch_size: int
    steps_per_dispatch: int
    flops_per_sample: float
    """Useful operations, see `training_flops`."""
    one_chip_samples_per_s: float | None
    """What one chip learns alone, where that was measured."""

    def of(self, samples_per_s: float, pace: Pace) -> dict[str, float]:
        """The figures; what is not known is left out.

        `learner/flops_per_s` and `learner/share_of_peak` are over wall time: chips that wait for replay are paid for as
        well. `learner/scaling_efficiency` is over the time in which the devices work: waiting for replay is no fault of
        the mesh, exchanging gradients is.
        """
        chips, hosts, peak = self.machine
        flops_per_s = samples_per_s * self.flops_per_sample
        metrics = {
            "learner/chips": float(chips),
            "learner/hosts": float(hosts),
            "learner/samples_per_s_per_chip": samples_per_s / chips,
            "learner/samples_per_s_per_host": samples_per_s / hosts,
            "learner/flops_per_sample": self.flops_per_sample,
            "learner/flops_per_s": flops_per_s,
            "learner/device_busy": pace.busy,
            "count/device_s": pace.busy_s,
        }
        if peak is not None:
            metrics["learner/peak_flops"] = peak
            metrics["learner/share_of_peak"] = flops_per_s / peak
        if pace.dispatch_s is not None:
            metrics["learner/device_s_per_step"] = pace.dispatch_s / self.steps_per_dispatch
        if self.one_chip_samples_per_s is not None:
            alone = chips * self.one_chip_samples_per_s
            metrics["learner/one_chip_samples_per_s"] = self.one_chip_samples_per_s
            if pace.dispatch_s:
                together = self.batch_size * self.steps_per_dispatch / pace.dispatch_s
                metrics["learner/scaling_efficiency"] = together / alone
        return metrics
