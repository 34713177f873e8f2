"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise

Row = tuple[str, ...]


def abbreviated(rows: Iterable[Row], columns: Collection[int]) -> list[Row]:
    """The rows with "same" in these columns for a cell that repeats the one above it."""
    rows = list(rows)
    return [
        tuple(
            "same" if column in columns and above[column : column + 1] == (cell,) else cell
            for column, cell in enumerate(row)
        )
        for above, row in pairwise([(), *rows])
    ]


def table(header: Row, rows: Iterable[Row]) -> list[str]:
    """The lines of a table. Short rows are filled with empty cells; bars in cells are escaped."""
    filled = (row + ("",) * (len(header) - len(row)) for row in rows)
    return [
        f"| {' | '.join(cell.replace('|', '\\|') for cell in line)} |"
        for line in (header, ("---",) * len(header), *filled)
    ]
