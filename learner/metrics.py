"""The learner's metrics: means and rates over the steps since the last report."""

from __future__ import annotations

import time
from typing import NamedTuple

import jax

from podzero.core.errors import PodzeroError
from podzero.learner.devices import DeviceSummary, DeviceTime
from podzero.learner.step import StepSums

MAX_SKIPPED_IN_A_ROW = 1000
"""Training ends with an error after this many consecutive steps that were not finite."""


class TrainingDiverged(PodzeroError, RuntimeError):
    """The NaN guard skipped `MAX_SKIPPED_IN_A_ROW` consecutive steps."""

    def __init__(self, skipped: int, step: int) -> None:
        """Takes the number of skipped steps, and the step after which they began."""
        # The plain arguments, since pickle rebuilds an exception from them in other processes.
        super().__init__(skipped, step)
        self.step = step

    def __str__(self) -> str:
        return f"the loss or gradient of the last {self.args[0]:,} steps, after step {self.step:,}, was not finite"


class LearnerMetrics:
    """Accumulates the sums of dispatches between two reports."""

    def __init__(self, batch_size: int, step: int = 0) -> None:
        self._batch_size = batch_size
        self._step = step
        self._skipped_in_a_row = 0
        self._reset()

    def add(self, sums: StepSums) -> None:
        """Adds the sums of one dispatch, after the device has computed them."""
        host: StepSums = jax.device_get(sums)
        for name, total in _named(host).items():
            self._sums[name] = self._sums.get(name, 0.0) + total
        steps, skipped = float(host.steps), float(host.skipped)
        self._step += int(steps + skipped)
        # One finite step in a dispatch ends the row.
        self._skipped_in_a_row = 0 if steps else self._skipped_in_a_row + int(skipped)
        if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise TrainingDiverged(self._skipped_in_a_row, self._step - self._skipped_in_a_row)

    def flush(self, step: int) -> dict[str, float]:
        """The metrics since the last flush, without means if all steps were skipped."""
        seconds = max(time.perf_counter() - self._since, 1e-9)
        sums = dict(self._sums)
        applied, skipped = sums.pop("steps", 0.0), sums.pop("skipped", 0.0)
        metrics: dict[str, float] = {
            "learner/step": float(step),
            "learner/steps_per_s": (applied + skipped) / seconds,
            "learner/samples_per_s": (applied + skipped) * self._batch_size / seconds,
            "count/skipped_steps": skipped,
        }
        if applied:
            metrics |= {f"learner/{name}": total / applied for name, total in sums.items()}
        self._reset()
        return metrics

    def _reset(self) -> None:
        self._sums: dict[str, float] = {}
        self._since = time.perf_counter()


def _named(sums: StepSums) -> dict[str, float]:
    """All sums by name, including those of the objective's metrics."""
    flat = sums._asdict() | sums.metrics
    return {name: float(total) for name, total in flat.items() if name != "metrics"}


class ChipMetrics(NamedTuple):
    """Computes metrics of utilization and scaling."""

    devices: DeviceSummary
    batch_size: int
    steps_per_dispatch: int
    flops_per_sample: float
    """See `training_flops`."""
    one_chip_samples_per_s: float | None
    """Training speed of one chip alone; None if not measured."""

    def compute(self, samples_per_s: float, device_time: DeviceTime) -> dict[str, float]:
        """The metrics whose inputs are known; rates are over wall-clock time, which includes waiting for replay."""
        chips, hosts, peak = self.devices
        flops_per_s = samples_per_s * self.flops_per_sample
        metrics = {
            "learner/chips": float(chips),
            "learner/hosts": float(hosts),
            "learner/samples_per_s_per_chip": samples_per_s / chips,
            "learner/samples_per_s_per_host": samples_per_s / hosts,
            "learner/flops_per_sample": self.flops_per_sample,
            "learner/flops_per_s": flops_per_s,
            "learner/device_busy": device_time.busy,
            "count/device_s": device_time.busy_s,
        }
        if peak is not None:
            metrics["learner/peak_flops"] = peak
            metrics["learner/share_of_peak"] = flops_per_s / peak
        if device_time.dispatch_s is not None:
            metrics["learner/device_s_per_step"] = device_time.dispatch_s / self.steps_per_dispatch
        if self.one_chip_samples_per_s is not None:
            metrics["learner/one_chip_samples_per_s"] = self.one_chip_samples_per_s
            if device_time.dispatch_s:
                # Over busy time: this measures what communication in the mesh costs, not waiting for replay.
                busy_samples_per_s = self.batch_size * self.steps_per_dispatch / device_time.dispatch_s
                metrics["learner/scaling_efficiency"] = busy_samples_per_s / (chips * self.one_chip_samples_per_s)
        return metrics
