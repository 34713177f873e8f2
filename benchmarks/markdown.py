"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

Row = tuple[str, ...]


def table(header: Row, rows: Iterable[Row]) -> list[str]:
    """The lines of a table; bars in cells are escaped."""
    return [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |"
        for line in (header, ("---",) * len(header), *rows)
    ]
