"""The report of a run as a self-contained HTML page, with styles and scripts inside."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from podzero.runtime.monitoring.status import StoredStatus
from podzero.tools.report.comparison import compare, overlaid
from podzero.tools.report.figures import ReportSection
from podzero.tools.report.history import History
from podzero.tools.report.overview import faults, machines, overview, settings
from podzero.tools.report.record import Record
from podzero.tools.report.sections import measured


def make_report(record: Record, live: Live | None = None) -> str:
    """Makes the report as a self-contained HTML page.

    Args:
      record: the content of the run's working directory.
      live: how a served page finds newer versions of itself; None for a file.
    """
    return _page(record.experiment.name, sections(record), live)


def make_comparison(records: Mapping[str, Record]) -> str:
    """Makes the report of several runs as a self-contained HTML page, with their curves over one another.

    Args:
      records: the content of at least two working directories, by the runs' names.
    """
    side_by_side = ReportSection("Side by side", tables=compare(records).tables())
    return _page(", ".join(records), [side_by_side, *overlaid(records)], None)


def _page(heading: str, sections: Sequence[ReportSection], live: Live | None) -> str:
    shown = [section for section in sections if not section.empty]
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
            "live": live and live._asdict(),
        },
        # Inside the page, so that a browser loads no other files.
        styles=[_asset(name) for name in _STYLES],
        scripts=[_asset(name) for name in _SCRIPTS],
        policy=content_policy(),
    )


def sections(record: Record) -> list[ReportSection]:
    """All sections in page order; those without data are empty."""
    experiment = record.experiment
    return [
        overview(experiment, record.status, record.history.damaged_lines),
        *measured(record),
        _sample_games(record),
        settings(experiment, record.base, record.changes, record.inheritance),
        faults(record.events, _fault_counts(record.history, record.status)),
        machines(record.hardware, record.status),
    ]


def _sample_games(record: Record) -> ReportSection:
    if not record.games:
        return ReportSection("Sample games")
    # Imports JAX, which takes seconds.
    from podzero.tools.report.sample_games import sample_games

    return sample_games(record.experiment, record.games)


def _fault_counts(history: History, stored: StoredStatus | None) -> dict[str, int]:
    if stored is None:
        return {}
    skipped = history.values("learner", "count/skipped_steps").values
    return {
        "restarts": stored.status.restarts,
        "failed episodes": stored.status.failed_episodes,
        "skipped learner steps": int(skipped.sum()),
    }


_FOLDER = Path(__file__).parent
_SCRIPTS = ("uPlot.iife.min.js", "page.js")
_STYLES = ("uPlot.min.css", "page.css")


class Live(NamedTuple):
    """The version of a served page, which asks the server for newer ones."""

    version: str
    poll_s: float
    """Interval of these requests in seconds."""


@cache
def content_policy() -> str:
    """The content security policy: a browser runs only the page's two scripts and connects only to its server."""
    hashes = " ".join(f"'sha256-{_digest(_asset(name))}'" for name in _SCRIPTS)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'"


@cache
def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.undefined = jinja2.StrictUndefined
    environment.filters |= {"id": id, "slug": _slug}
    return environment.from_string(_asset("page.html"))


def _slug(title: Any) -> str:
    return str(title).lower().replace(" ", "-")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
