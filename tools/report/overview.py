"""The sections of a report on the run as a whole, its machines and its cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podzero.config import Experiment
from podzero.runtime.monitoring.status import RunStatus, StoredStatus, duration
from podzero.tools.report.figures import Section, Table

NEVER_STARTED = "no status: the run has not started, or status.json is damaged"


def overview(experiment: Experiment, stored: StoredStatus | None, damaged_lines: int) -> Section:
    """The state of the run and its newest figures."""
    facts = {"environment": experiment.env.title, "network": experiment.network.name}
    if stored is None:
        facts["state"] = NEVER_STARTED
    else:
        facts |= {"state": stored.summary} | _counts(stored.status) | _results(stored.status)
    if damaged_lines:
        facts["damaged lines"] = f"{damaged_lines:,} lines of metrics.jsonl could not be read and are left out"
    return Section("Overview", facts=facts)


def machines(hardware: Mapping[str, Any], stored: StoredStatus | None) -> Section:
    """The nodes of the run and what they cost.

    Args:
      hardware: what `Workdir.hardware_file` holds.
      stored: the newest status.
    """
    status = stored.status if stored else None
    return Section(
        "Hardware and cost", tables=_nodes(hardware), facts=_driver(hardware) | _devices(status) | _cost(status)
    )


def _counts(status: RunStatus) -> dict[str, str]:
    return {
        "training time": duration(status.elapsed_s),
        "learner step": f"{status.step:,}",
        "games": f"{status.games:,}",
        "moves": f"{status.moves:,}",
        "samples": f"{status.samples:,}",
    }


def _results(status: RunStatus) -> dict[str, str]:
    facts = {}
    if status.rating is not None:
        error = "" if status.rating_error is None else f" ± {status.rating_error:,.0f}"
        facts["rating"] = f"{status.rating:,.0f}{error} Elo"
    if status.keeps_value is not None:
        facts["keeps the value"] = f"{status.keeps_value:.1%} of moves"
    if status.mean_return is not None:
        facts["mean return"] = f"{status.mean_return:,.4g}"
    if status.loss is not None:
        facts["loss"] = f"{status.loss:.4g}"
    if status.bottleneck:
        facts["bottleneck"] = status.bottleneck
    return facts


def _nodes(hardware: Mapping[str, Any]) -> list[Table]:
    rows = [row for node in _list(hardware.get("nodes")) if (row := _node_row(node))]
    caption = "Nodes of the cluster when the run started or resumed last."
    return [Table(caption, ("node", "CPUs", "memory, GiB", "accelerators"), rows)] if rows else []


def _node_row(node: object) -> list[str] | None:
    """The cells of a node's row; None if it is damaged."""
    match node:
        case {
            "host": str(host),
            "cpus": int() | float() as cpus,
            "memory_gib": int() | float() as memory,
            "accelerators": {**named},
        }:
            return [
                host,
                f"{cpus:g}",
                f"{memory:,.1f}",
                ", ".join(f"{n} {kind}" for kind, n in named.items()) or "none",
            ]
    return None


def _driver(hardware: Mapping[str, Any]) -> dict[str, str]:
    driver = hardware.get("driver")
    return {f"driver: {name}": str(value) for name, value in driver.items()} if isinstance(driver, dict) else {}


def _devices(status: RunStatus | None) -> dict[str, str]:
    if status is None or status.chips is None:
        return {}
    facts = {"learner": f"{status.chips} device(s) on {status.hosts} host(s)"}
    if status.hbm_peak_bytes is not None:
        facts["highest use of device memory"] = f"{status.hbm_peak_bytes / 2**30:.1f} GiB"
    return facts


def _cost(status: RunStatus | None) -> dict[str, str]:
    """In the currency of `cluster.price_per_hour`, which the settings show; nothing without a price."""
    if status is None or status.cost is None:
        return {}
    facts = {"cost": f"{status.cost:,.2f} (cluster.price_per_hour times the training time)"}
    if status.cost_per_million_samples is not None:
        facts["cost per million samples"] = f"{status.cost_per_million_samples:,.2f}"
    return facts


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
