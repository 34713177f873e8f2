"""The report of a run as an HTML page with all files inside, and its sections on the whole run: state, faults, cost."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from podzero.config import Experiment, flatten
from podzero.runtime.monitoring.goodput import largest_first
from podzero.runtime.monitoring.ledger import COLUMNS, open_sums
from podzero.runtime.monitoring.status import RunStatus, duration
from podzero.tools.commands.printing import ReportTable
from podzero.tools.report.comparison import ABSENT, compare, overlaid, setting_text
from podzero.tools.report.figures import ReportSection
from podzero.tools.report.record import Record, node_cells
from podzero.tools.report.sections import measured


def make_report(record: Record, live: Mapping[str, Any] | None = None) -> str:
    """Makes the report of a run.

    `live` has, for a served page, its `version` and `poll_s`, the seconds after which it asks for a newer one.
    """
    of_run = settings(record), faults(record), machines(record)
    sections = [overview(record), *measured(record), _sample_games(record), *of_run]
    return _page(record.experiment.name, sections, live)


def make_comparison(records: Mapping[str, Record]) -> str:
    """Makes the report of two or more runs by name: what `compare` prints, and their curves over one another."""
    side_by_side = ReportSection("Side by side", tables=compare(records).tables())
    return _page(", ".join(records), [side_by_side, *overlaid(records)], None)


def _page(heading: str, sections: Sequence[ReportSection], live: Mapping[str, Any] | None) -> str:
    shown = list(filter(None, sections))
    figures = [figure for section in shown for figure in section.figures]
    replays = [replay for section in shown for replay in section.replays]
    return _template().render(
        title=f"{heading} \N{MIDDLE DOT} podzero",
        heading=heading,
        sections=shown,
        made=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        # The template finds the index of a figure or game in `data` by its identity.
        numbers={id(one): number for kind in (figures, replays) for number, one in enumerate(kind)},
        data={
            "figures": [figure.to_tree() for figure in figures],
            "replays": [replay.to_tree() for replay in replays],
            "live": live,
        },
        # Inside the page, so that a browser loads no other files.
        styles=[_asset(name) for name in _STYLES],
        scripts=[_asset(name) for name in _SCRIPTS],
        policy=content_policy(),
    )


def _sample_games(record: Record) -> ReportSection:
    if not record.games:
        return ReportSection("Sample games")
    # Imports JAX, which takes seconds.
    from podzero.tools.report.sample_games import sample_games

    return sample_games(record.experiment, record.games)


_SCRIPTS = ("uPlot.iife.min.js", "page.js")
_STYLES = ("uPlot.min.css", "page.css")


@cache
def content_policy() -> str:
    """The content security policy: a browser runs only the page's two scripts and connects only to its server."""
    digests = [base64.b64encode(hashlib.sha256(_asset(name).encode()).digest()).decode() for name in _SCRIPTS]
    scripts = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'"


@cache
def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters |= {"id": id, "slug": lambda title: title.lower().replace(" ", "-")}
    return environment.from_string(_asset("page.html"))


# The sections on the whole run.


def overview(record: Record) -> ReportSection:
    """The section on the run's state and newest results."""
    facts, tables = {"environment": record.experiment.env.title, "network": record.experiment.network.name}, []
    if record.status is None:
        facts["state"] = "no status: the run has not started, or status.json is damaged"
    else:
        facts |= {"state": record.status.summary} | _progress(record.status.status)
        tables = _ledger(record.status.status.ledger)
    if damaged := record.history.damaged_lines:
        facts["damaged lines"] = f"{damaged:,} lines of metrics.jsonl are damaged and were left out"
    return ReportSection("Overview", facts=facts, tables=tables)


def _ledger(ledger: Mapping[str, Mapping[str, Any]]) -> list[ReportTable]:
    """The table of what became of all samples."""
    rows = [(words, *(f"{row[name]:,}" for row in ledger.values())) for name, words in COLUMNS.items()]
    found = open_sums(ledger)
    caption = f"What became of all samples. The sums {'do not close: ' + found if found else 'close'}."
    return [ReportTable(caption, ("count", *ledger), rows)] if ledger else []


def machines(record: Record) -> ReportSection:
    """The section on the run's nodes and their cost."""
    rows, driver = node_cells(record.hardware), record.hardware.get("driver")
    caption = "Nodes of the cluster when the run last started or resumed."
    tables = [ReportTable(caption, ("node", "CPUs", "memory, GiB", "accelerators"), rows)] if rows else []
    facts = {f"driver: {name}": str(value) for name, value in driver.items()} if isinstance(driver, dict) else {}
    if record.status is not None:
        paid_s = record.status.status.paid_s
        hours = sum(paid_s.values()) / 3600
        parts = [(cause, f"{share * hours:,.2f}", f"{share:.1%}") for cause, share in largest_first(paid_s)]
        tables += [ReportTable("What the paid time went into.", ("cause", "hours", "share"), parts)] if parts else []
        facts |= _devices(record.status.status)
    return ReportSection("Hardware and cost", tables=tables, facts=facts)


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
        ("best snapshot", status.best.get("best_step"), "step {:,.0f}"),
        ("bottleneck", status.bottleneck or None, "{}"),
    )


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


def settings(record: Record) -> ReportSection:
    """The section on the settings that differ from the built-in experiment, were inherited, or were changed later."""
    experiment, base, inheritance, changes = record.experiment, record.base, record.inheritance, record.changes
    own, tables = flatten(experiment.model_dump(mode="json")), []
    if base is None:
        # Of all settings but those of `env` and `network`, whose defaults depend on their kinds.
        other = flatten(Experiment.model_construct().model_dump(mode="json", exclude={"network"}))
        differing = [*flatten(experiment.model_dump(mode="json", exclude_defaults=True))]
        caption, name = "Settings that differ from the defaults: no built-in experiment has this name.", "default"
    else:
        other = flatten(base.model_dump(mode="json"))
        differing = [key for key in {*own, *other} if own.get(key) != other.get(key)]
        caption, name = f"Settings that differ from the built-in experiment {base.name}.", base.name
    if differing:
        rows = [(key, _text(other, key), _text(own, key)) for key in sorted(differing)]
        tables.append(ReportTable(caption, ("setting", name, "this run"), rows))
    if inheritance is not None:
        # Those that still are as they were inherited.
        unchanged = own.keys() - {change.setting for _, _, change in changes}
        origins = [(key, origin) for key, origin in sorted(inheritance.settings.items()) if key in unchanged]
        rows = [(key, _text(own, key), origin) for key, origin in origins]
        caption = f"Inherited settings: {inheritance.lineage}."
        tables.append(ReportTable(caption, ("setting", "this run", "inherited from"), rows))
    if changes:
        caption = "Settings that were changed when the run was resumed."
        texts = [
            (f"{step:,}", time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(t)), key, json.dumps(old), json.dumps(new))
            for t, step, (key, old, new) in changes
        ]
        tables.append(ReportTable(caption, ("step", "time", "setting", "before", "after"), texts))
    facts = {} if differing else {"differences": f"none from the built-in experiment {experiment.name}"}
    return ReportSection("Settings", facts=facts, tables=tables, text=experiment.to_yaml())


def _text(flat: Mapping[str, Any], key: str) -> str:
    return setting_text(flat.get(key, ABSENT))


def faults(record: Record) -> ReportSection:
    """The section on warnings, errors and restarts: events of the log, and the number of faults of each kind."""
    rows = [(event.last, event.level.lower(), f"{event.times:,}", event.text) for event in record.events]
    caption = (
        "Warnings, errors and starts of workers in the log, newest first. A row stands for all messages that differ "
        "only in numbers, and shows the newest."
    )
    tables = [ReportTable(caption, ("last time", "level", "times", "message"), rows)] if rows else []
    facts = {}
    if record.status is not None:
        skipped = record.history.values("learner", "count/skipped_steps").values.sum()
        facts = {
            "restarts": f"{record.status.status.restarts:,}",
            "failed episodes": f"{record.status.status.failed_episodes:,}",
            "skipped learner steps": f"{int(skipped):,}",
        }
    return ReportSection("Faults and restarts", tables=tables, facts=facts)
