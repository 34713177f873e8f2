"""Utilization of the chips, and cost. Pure: numbers in, a status out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from podzero.runtime.monitoring.status import RunStatus


def with_utilization(
    status: RunStatus,
    learner: Mapping[str, float],
    hosts: Iterable[Mapping[str, float]],
    batch_size: int,
    price_per_hour: float | None,
) -> RunStatus:
    """Adds the fields about chips, memory and cost to `status`, as far as they are known.

    Args:
      status: with counts, rates and time.
      learner: the newest metrics of the learner on host 0.
      hosts: the newest metrics of each learner host, including host 0.
      batch_size: samples of a learner step.
      price_per_hour: price of all nodes together, in any currency.
    """
    chips, on_hosts = _count(learner.get("learner/chips")), _count(learner.get("learner/hosts"))
    samples_per_s = status.steps_per_s * batch_size
    peak, flops_per_sample = learner.get("learner/peak_flops"), learner.get("learner/flops_per_sample", 0.0)
    memory = list(hosts)
    cost = None if price_per_hour is None else price_per_hour * status.elapsed_s / 3600.0
    return dataclasses.replace(
        status,
        samples_per_s=samples_per_s,
        step_s=1.0 / status.steps_per_s if status.steps_per_s > 0 else None,
        chips=chips,
        hosts=on_hosts,
        samples_per_s_per_chip=_per(samples_per_s, chips),
        samples_per_s_per_host=_per(samples_per_s, on_hosts),
        moves_per_s_per_chip=_per(status.moves_per_s, chips),
        moves_per_s_per_host=_per(status.moves_per_s, on_hosts),
        share_of_peak=_per(samples_per_s * flops_per_sample, peak),
        scaling_efficiency=learner.get("learner/scaling_efficiency"),
        hbm_bytes=_largest(memory, "learner/hbm_bytes"),
        hbm_peak_bytes=_largest(memory, "learner/hbm_peak_bytes"),
        hbm_limit_bytes=_largest(memory, "learner/hbm_limit_bytes"),
        cost=cost,
        cost_per_million_samples=_per(1e6 * cost, status.samples) if cost is not None else None,
    )


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)


def _per(amount: float, divisor: float | None) -> float | None:
    return amount / divisor if divisor else None


def _largest(hosts: list[Mapping[str, float]], name: str) -> float | None:
    return max((metrics[name] for metrics in hosts if name in metrics), default=None)
