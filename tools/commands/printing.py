"""What commands print: JSON for programs, tables and aligned lines for people, and progress."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

PROGRESS_S = 10.0
"""Seconds between two lines of progress of a command."""
Rows = list[tuple[str, str]]
"""Lines of a label and a text; a line without a label continues the one above."""
_MANY = 100
"""From this number of trials on, percentages have a decimal."""


class ReportTable(NamedTuple):
    """A table of text."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def print_json(result: Mapping[str, Any]) -> None:
    """Prints one JSON object on one line."""
    print(json.dumps(result, allow_nan=False), flush=True)


def progress[**Told](describe: Callable[Told, str]) -> Callable[Told, None]:
    """A function that prints what `describe` says of its arguments to standard error, at most every `PROGRESS_S`."""
    printed = time.monotonic()

    def report(*args: Told.args, **kwargs: Told.kwargs) -> None:
        nonlocal printed
        if time.monotonic() >= printed + PROGRESS_S:
            printed = time.monotonic()
            print(describe(*args, **kwargs), file=sys.stderr, flush=True)

    return report


def print_tables(tables: Iterable[ReportTable]) -> None:
    """Prints tables with their captions."""
    console = Console()
    for table in tables:
        # Not as the table's title, which would be as narrow as the table.
        shown = plain_table(*table.header, overflow="fold")
        for row in table.rows:
            shown.add_row(*row)
        console.print(table.caption, shown, "", sep="\n", markup=False, highlight=False)


def plain_table(*header: str, **column: Any) -> Table:
    """A table without lines; each column of `header` has the options `column`."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in header:
        table.add_column(name, **column)
    return table


def print_result(
    result: Mapping[str, Any], as_json: bool, rows: Callable[[Mapping[str, Any]], Rows] | None = None
) -> None:
    """Prints a result as one line of JSON, or in aligned lines: its `rows`, by default one for each value."""
    if as_json:
        print_json(result)
    else:
        print_rows(rows(result) if rows else [(name, readable(value)) for name, value in _flat(result).items()])


def print_rows(rows: Rows) -> None:
    """Prints a line for each label and text, with the texts aligned."""
    width = max((len(label) for label, _ in rows), default=0)
    for label, text in rows:
        print(f"{label:<{width}}  {text}")


def _flat(result: Mapping[str, Any]) -> dict[str, Any]:
    """Flattens nested results; a nested value is named like `network keeps_value`."""
    flat: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, dict) and any(isinstance(inner, dict | list) for inner in value.values()):
            flat |= {f"{name} {inner}": found for inner, found in _flat(value).items()}
        else:
            flat[name] = value
    return flat


def readable(value: Any) -> str:
    """Formats a value for people: numbers with four digits, items separated by commas."""
    match value:
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        case list() | tuple():
            return ", ".join(readable(item) for item in value)
        case dict():
            return ", ".join(f"{key}: {readable(item)}" for key, item in value.items())
        case _:
            return str(value)


def share(value: float, trials: int, interval: Sequence[float] = ()) -> str:
    """A share of `trials` in percent, with its 95% interval if that is given."""
    digits = 1 if trials >= _MANY else 0
    ends = " to ".join(f"{100 * end:.{digits}f}" for end in interval)
    return f"{100 * value:.{digits}f}%" + (f" ({ends}%)" if ends else "")


def measure(value: float) -> str:
    """A return or a length, with a decimal; with two below 10."""
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"
