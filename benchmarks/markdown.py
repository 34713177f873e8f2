"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

Row = tuple[str, ...]


def table(header: Row, rows: Iterable[Row]) -> list[str]:
    """The lines of a table. Short rows are filled with empty cells; bars in cells are escaped."""
    filled = (row + ("",) * (len(header) - len(row)) for row in rows)
    return [
        f"| {' | '.join(cell.replace('|', '\\|') for cell in line)} |"
        for line in (header, ("---",) * len(header), *filled)
    ]
