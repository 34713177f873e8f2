"""Renders the sections of a report as one HTML page, with its style and its program inside."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from podzero.tools.report.figures import Curve, Figure, Section

_FOLDER = Path(__file__).parent
_SCRIPTS = ("uPlot.iife.min.js", "page.js")
_STYLES = ("uPlot.min.css", "page.css")


class Live(NamedTuple):
    """What a page needs that a server replaces by newer ones."""

    version: str
    poll_s: float
    """Seconds between two looks for a newer version."""


class Page(NamedTuple):
    """What a page shows."""

    title: str
    heading: str
    sections: Sequence[Section]
    live: Live | None
    """None for a file."""


def render(page: Page) -> str:
    """The page as HTML that loads nothing from elsewhere."""
    figures = [figure for section in page.sections for figure in section.figures]
    replays = [replay for section in page.sections for replay in section.replays]
    return _template().render(
        **page._asdict(),
        made=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        numbers={id(one): number for shown in (figures, replays) for number, one in enumerate(shown)},
        data={
            "figures": [figure.to_tree() for figure in figures],
            "replays": [replay.to_tree() for replay in replays],
            "live": page.live and page.live._asdict(),
        },
        styles=[_asset(name) for name in _STYLES],
        scripts=[_asset(name) for name in _SCRIPTS],
        policy=content_policy(),
    )


@cache
def content_policy() -> str:
    """The page's content security policy: its own two scripts run, and nothing is loaded but a newer report."""
    hashes = " ".join(f"'sha256-{_digest(_asset(name))}'" for name in _SCRIPTS)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'"


@cache
def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.undefined = jinja2.StrictUndefined
    environment.filters |= {"id": id, "rows": _rows, "slug": _slug}
    return environment.from_string(_asset("page.html"))


def _rows(figure: Figure) -> list[tuple[str, list[str]]]:
    """Label and first, last, least and greatest value of each curve of a figure."""
    return [(curve.label, _cells(curve)) for curve in figure.curves]


def _cells(curve: Curve) -> list[str]:
    known = curve.known
    return [f"{value:,.4g}" for value in (float(known[0]), float(known[-1]), curve.least, curve.greatest)]


def _slug(title: Any) -> str:
    return str(title).lower().replace(" ", "-")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
