"""The learner's metrics: means and rates since the last report, and the FLOPs of a sample."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params
from jax.sharding import Mesh

from podzero.config import Experiment, ModelNetworkConfig
from podzero.config.samples import UNSEARCHED, sample_like, with_axes
from podzero.core.chips import peak_flops
from podzero.core.errors import PodzeroError
from podzero.core.types import Batch, EnvSpec, ModelNetwork, Network, Params, Sample, Symmetry, Window
from podzero.learner.objectives import Objective, make_objective
from podzero.learner.step import StepSums
from podzero.networks import make_network

log = logging.getLogger(__name__)

MOST_CLIPPED = 0.01
"""Share of clipped value targets from which on the user is warned."""
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
        self._batch_size, self._step = batch_size, step
        self._skipped_in_a_row, self._warned = 0, False
        self._sums: dict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    def add(self, sums: StepSums) -> None:
        """Adds the sums of one dispatch, after the device has computed them."""
        host: StepSums = jax.device_get(sums)
        for name, total in (host._asdict() | host.metrics).items():
            if name != "metrics":
                self._sums[name] += float(total)
        steps, skipped = float(host.steps), float(host.skipped)
        self._step += int(steps + skipped)
        # One finite step in a dispatch ends the row.
        self._skipped_in_a_row = 0 if steps else self._skipped_in_a_row + int(skipped)
        if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise TrainingDiverged(self._skipped_in_a_row, self._step - self._skipped_in_a_row)

    def flush(self, step: int) -> dict[str, float]:
        """The metrics since the last flush, without means if all steps were skipped."""
        seconds = max(time.perf_counter() - self._since, 1e-9)
        applied, skipped = self._sums.pop("steps", 0.0), self._sums.pop("skipped", 0.0)
        metrics: dict[str, float] = {
            "learner/step": float(step),
            "learner/steps_per_s": (applied + skipped) / seconds,
            "learner/samples_per_s": (applied + skipped) * self._batch_size / seconds,
            "count/skipped_steps": skipped,
        }
        if applied:
            metrics |= {f"learner/{name}": total / applied for name, total in self._sums.items()}
        if metrics.get("learner/clipped_values", 0.0) > MOST_CLIPPED and not self._warned:
            self._warned = True
            log.warning(
                "%.0f%% of the value targets lie beyond the largest value that the network can predict, about the "
                "square of network.support, and are learned as that one: raise network.support, or lower env.discount",
                100 * metrics["learner/clipped_values"],
            )
        self._sums.clear()
        self._since = time.perf_counter()
        return metrics


class PolicyAges:
    """The policy ages of a host's samples between two reports."""

    def __init__(self) -> None:
        self._ages = [np.empty(0)]

    def add(self, step: int, versions: np.ndarray[Any, Any]) -> None:
        """Adds the samples of a dispatch that begins at `step`, by the `versions` `[K, B]` that searched them."""
        ages = step + np.arange(len(versions))[:, None] - versions
        self._ages.append(ages[versions != UNSEARCHED])

    def flush(self) -> dict[str, float]:
        """Mean and quantiles since the last flush; empty without samples of self-play.

        Samples that are newer than the learner, made with parameters of a lost one, have no age; their share is told.
        """
        ages, self._ages = np.concatenate(self._ages), [np.empty(0)]
        if not len(ages):
            return {}
        old, names = np.maximum(ages, 0), ("", "_median", "_p99", "_max")
        values = (old.mean(), *np.quantile(old, (0.5, 0.99, 1.0)))
        metrics = {f"learner/policy_age{name}": float(value) for name, value in zip(names, values, strict=True)}
        return metrics | {"learner/taken_back": float(np.mean(ages < 0))}


def utilization(
    chips: int, hosts: int, peak: float | None, flops_per_sample: float, samples_per_s: float
) -> dict[str, float]:
    """Metrics of `chips` devices that `hosts` processes own; rates are over wall-clock time, waits for replay included.

    `peak` are the bfloat16 operations per second of all devices together; its metrics are left out where it is None.
    `flops_per_sample`: see `training_flops`.
    """
    flops_per_s = samples_per_s * flops_per_sample
    metrics = {
        "learner/chips": float(chips),
        "learner/hosts": float(hosts),
        "learner/samples_per_s_per_chip": samples_per_s / chips,
        "learner/samples_per_s_per_host": samples_per_s / hosts,
        "learner/flops_per_sample": flops_per_sample,
        "learner/flops_per_s": flops_per_s,
    }
    if peak is not None:
        metrics |= {"learner/peak_flops": peak, "learner/share_of_peak": flops_per_s / peak}
    return metrics


def training_flops(objective: Objective, like: Sample | Window, batch_size: int) -> float:
    """FLOPs per sample of one step, forward and backward; of a teacher's network only forward."""

    # Forward mode has as many FLOPs as reverse mode, which transposes each product into one of equal size; but it does
    # not rematerialize activations, whose FLOPs must not count.
    def derivative(params: Params, direction: Params, teacher: Params | None, batch: Batch) -> Any:
        step = np.zeros((), np.int32)
        return jax.jvp(lambda p: objective.taught_loss(p, teacher, step, batch).total, (params,), (direction,))

    params = jax.eval_shape(objective.init, jax.random.key(0))
    traced = jax.make_jaxpr(derivative)(params, params, objective.teacher, Batch(with_axes(like, batch_size)))
    return flops_of(traced) / batch_size


def flops_of(jaxpr: Jaxpr) -> float:
    """FLOPs of all products in a jaxpr.

    A `scan` counts its body once per iteration, a `cond` its largest branch, and a `while` one iteration, because its
    trip count depends on data.
    """
    return sum(map(_flops, jaxpr.eqns))


def _flops(eqn: JaxprEqn) -> float:
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        left, out = _shape(eqn.invars[0]), _shape(eqn.outvars[0])
        return 2.0 * float(math.prod(out) * math.prod(left[d] for d in contracted))
    if eqn.primitive.name == "conv_general_dilated":
        return _convolution(eqn)
    inner = [flops_of(jaxpr) for jaxpr in jaxprs_in_params(eqn.params)]
    if eqn.primitive.name == "cond":
        return max(inner)
    trip_count: int = eqn.params["length"] if eqn.primitive.name == "scan" else 1
    return sum(inner) * trip_count


def _convolution(eqn: JaxprEqn) -> float:
    params, layout = eqn.params, eqn.params["dimension_numbers"]
    image, kernel, out = map(_shape, (*eqn.invars, *eqn.outvars))
    pairs = 1
    for at, (i, k, o) in enumerate(zip(layout.lhs_spec[2:], layout.rhs_spec[2:], layout.out_spec[2:], strict=True)):
        pairs *= window_pairs(
            image[i], kernel[k], out[o], params["window_strides"][at], params["padding"][at][0],
            params["lhs_dilation"][at], params["rhs_dilation"][at],
        )  # fmt: skip
    batch, features = (out[d] for d in layout.out_spec[:2])
    return 2.0 * float(pairs * batch * features * kernel[layout.rhs_spec[1]])


def window_pairs(
    image: int, kernel: int, result: int, stride: int, padding: int, image_dilation: int, kernel_dilation: int
) -> int:
    """Pairs of a result and a kernel element along one dimension of a convolution that meet the image, not its padding.

    `padding` is what precedes the image; the other numbers are sizes and steps, as in `lax.conv_general_dilated`.
    """
    met = np.arange(result)[:, None] * stride - padding + np.arange(kernel) * kernel_dilation
    return int(np.sum((met >= 0) & (met < image * image_dilation) & (met % image_dilation == 0)))


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(map(int, variable.aval.shape))


def chip_metrics(
    experiment: Experiment, network: Network | ModelNetwork, spec: EnvSpec, symmetries: Sequence[Symmetry], mesh: Mesh
) -> Callable[[float], dict[str, float]]:
    """The `utilization` of a learner on `mesh`, as a function of its samples per second."""
    counted = network
    if experiment.learner.cpu_convolutions == "openvino":
        # OpenVINO's callbacks hide their FLOPs, so the same network in JAX is counted.
        assert not isinstance(experiment.network, ModelNetworkConfig)
        counted = make_network(experiment.network, spec)
    config, devices = experiment.learner, mesh.devices.ravel()
    chips, peak = len(devices), peak_flops(devices[0].device_kind)
    objective = make_objective(experiment, counted, spec, symmetries)
    hosts, flops = {device.process_index for device in devices}, None if peak is None else peak * chips
    per_sample = training_flops(objective, sample_like(experiment, spec), config.batch_size)
    return partial(utilization, chips, len(hosts), flops, per_sample)
