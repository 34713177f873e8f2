"""The sections of a report on the whole run: state, settings, faults, machines and cost."""

from __future__ import annotations

import json
import time
from collections.abc import Container, Mapping, Sequence
from typing import Any

from podzero.config import Experiment, flatten
from podzero.config.section import Section
from podzero.files.workdir import Inheritance, RecordedChange
from podzero.runtime.monitoring.status import RunStatus, StoredStatus, duration
from podzero.tools.commands.printing import ReportTable
from podzero.tools.report.figures import ReportSection
from podzero.tools.report.record import Event

NEVER_STARTED = "no status: the run has not started, or status.json is damaged"


def overview(experiment: Experiment, stored: StoredStatus | None, damaged_lines: int) -> ReportSection:
    """The section on the run's state and newest results."""
    facts = {"environment": experiment.env.title, "network": experiment.network.name}
    if stored is None:
        facts["state"] = NEVER_STARTED
    else:
        facts |= {"state": stored.summary} | _progress(stored.status)
    if damaged_lines:
        facts["damaged lines"] = f"{damaged_lines:,} lines of metrics.jsonl are damaged and were left out"
    return ReportSection("Overview", facts=facts)


def machines(hardware: Mapping[str, Any], stored: StoredStatus | None) -> ReportSection:
    """The section on the run's nodes, from `Workdir.hardware_file`, and their cost, from the newest status."""
    status = stored.status if stored else None
    return ReportSection(
        "Hardware and cost", tables=_nodes(hardware), facts=_driver(hardware) | (_devices(status) if status else {})
    )


def _known(*rows: tuple[str, object, str]) -> dict[str, str]:
    """The facts whose values are not None, from rows of name, value and format."""
    return {name: form.format(value) for name, value, form in rows if value is not None}


def _progress(status: RunStatus) -> dict[str, str]:
    error = "" if status.rating_error is None else f" ± {status.rating_error:,.0f}"
    return _known(
        ("training time", duration(status.elapsed_s), "{}"),
        ("learner step", status.step, "{:,}"),
        ("games", status.games, "{:,}"),
        ("moves", status.moves, "{:,}"),
        ("samples", status.samples, "{:,}"),
        ("rating", status.rating, f"{{:,.0f}}{error} Elo"),
        ("keeps the value", status.keeps_value, "{:.1%} of moves"),
        ("mean return", status.mean_return, "{:,.4g}"),
        ("loss", status.loss, "{:.4g}"),
        ("bottleneck", status.bottleneck or None, "{}"),
    )


def _nodes(hardware: Mapping[str, Any]) -> list[ReportTable]:
    rows = node_cells(hardware)
    caption = "Nodes of the cluster when the run last started or resumed."
    return [ReportTable(caption, ("node", "CPUs", "memory, GiB", "accelerators"), rows)] if rows else []


def node_cells(hardware: Mapping[str, Any]) -> list[list[str]]:
    """Host, CPUs, GiB of memory and accelerators of each node of `Workdir.hardware_file`; damaged ones are left out."""
    nodes = hardware.get("nodes")
    return [cells for node in nodes if (cells := _cells(node))] if isinstance(nodes, list) else []


def _cells(node: object) -> list[str] | None:
    match node:
        case {
            "host": str(host),
            "cpus": int() | float() as cpus,
            "memory_gib": int() | float() as memory,
            "accelerators": {**named},
        }:
            accelerators = ", ".join(f"{n} {kind}" for kind, n in named.items()) or "none"
            return [host, f"{cpus:g}", f"{memory:,.1f}", accelerators]
    return None


def _driver(hardware: Mapping[str, Any]) -> dict[str, str]:
    driver = hardware.get("driver")
    return {f"driver: {name}": str(value) for name, value in driver.items()} if isinstance(driver, dict) else {}


def _devices(status: RunStatus) -> dict[str, str]:
    """The learner's devices, if they are known, and the cost, in the currency of `cluster.price_per_hour`."""
    chips = None if status.chips is None else f"{status.chips} device(s) on {status.hosts} host(s)"
    peak = None if status.chips is None or status.hbm_peak_bytes is None else status.hbm_peak_bytes / 2**30
    return _known(
        ("learner", chips, "{}"),
        ("highest use of device memory", peak, "{:.1f} GiB"),
        ("cost", status.cost, "{:,.2f} (cluster.price_per_hour times the training time)"),
        ("cost per million samples", status.cost_per_million_samples, "{:,.2f}"),
    )


def settings(
    experiment: Experiment,
    base: Experiment | None,
    changes: Sequence[RecordedChange] = (),
    inheritance: Inheritance | None = None,
) -> ReportSection:
    """The section on the settings that differ from the built-in experiment, were inherited, or were changed later.

    Args:
      experiment: the run's experiment.
      base: the built-in experiment of the same name; None to compare with the schema's defaults.
      changes: the settings that were changed when the run was resumed.
      inheritance: what the experiment inherited when the run started; None if nothing.
    """
    changed = (_changed(changes),) if changes else ()
    if inheritance is not None:
        changed = (_inherited(experiment, inheritance, {change.setting for _, _, change in changes}), *changed)
    own = flatten(experiment.model_dump(mode="json"))
    if base is None:
        other, differing = _defaults(), [*flatten(experiment.model_dump(mode="json", exclude_defaults=True))]
        caption, name = "Settings that differ from the defaults: no built-in experiment has this name.", "default"
    else:
        other = flatten(base.model_dump(mode="json"))
        differing = [key for key in {*own, *other} if own.get(key) != other.get(key)]
        caption, name = f"Settings that differ from the built-in experiment {base.name}.", base.name
    rows = [(key, _text(other, key), _text(own, key)) for key in sorted(differing)]
    if not rows:
        facts = {"differences": f"none from the built-in experiment {experiment.name}"}
        return ReportSection("Settings", facts=facts, tables=changed, text=experiment.to_yaml())
    table = ReportTable(caption, ("setting", name, "this run"), rows)
    return ReportSection("Settings", tables=(table, *changed), text=experiment.to_yaml())


def _inherited(experiment: Experiment, inheritance: Inheritance, changed: Container[str]) -> ReportTable:
    """The settings that still are as they were inherited."""
    own = flatten(experiment.model_dump(mode="json"))
    rows = [
        (name, _text(own, name), origin)
        for name, origin in sorted(inheritance.settings.items())
        if name not in changed and name in own
    ]
    return ReportTable(f"Inherited settings: {inheritance.lineage}.", ("setting", "this run", "inherited from"), rows)


def _changed(changes: Sequence[RecordedChange]) -> ReportTable:
    rows = [
        (f"{step:,}", time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(t)), name, json.dumps(old), json.dumps(new))
        for t, step, (name, old, new) in changes
    ]
    return ReportTable(
        "Settings that were changed when the run was resumed.", ("step", "time", "setting", "before", "after"), rows
    )


def _defaults() -> dict[str, Any]:
    """The defaults of all settings but those of `env` and `network`, which depend on their kinds."""
    defaults = {name: field.default for name, field in Experiment.model_fields.items() if not field.is_required()}
    return flatten(
        {
            name: default.model_dump(mode="json") if isinstance(default, Section) else default
            for name, default in defaults.items()
            if name != "network"
        }
    )


def _text(flat: Mapping[str, Any], key: str) -> str:
    if key not in flat:
        return "\N{EN DASH}"
    value = flat[key]
    return value if isinstance(value, str) else json.dumps(value)


def faults(found: Sequence[Event], counts: dict[str, int]) -> ReportSection:
    """The section on warnings, errors and restarts: events of the log, and the number of faults of each kind."""
    rows = [(event.last, event.level.lower(), f"{event.times:,}", event.text) for event in found]
    caption = (
        "Warnings, errors and starts of workers in the log, newest first. A row stands for all messages that differ "
        "only in numbers, and shows the newest."
    )
    tables = [ReportTable(caption, ("last time", "level", "times", "message"), rows)] if rows else []
    return ReportSection(
        "Faults and restarts", tables=tables, facts={name: f"{count:,}" for name, count in counts.items()}
    )
