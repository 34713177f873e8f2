"""What a report consists of: sections with figures and tables. Plain values, which the page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from podzero.tools.report.history import FloatArray
from podzero.tools.report.timeline import Axes

DIGITS = 5
"""Significant digits of the numbers in the page."""


@dataclass(frozen=True)
class Curve:
    """A curve of a figure, with a band around it if there is one."""

    label: str
    values: FloatArray
    """`[N]`, NaN where there is none."""
    low: FloatArray | None = None
    """`[N]` lower end of the band."""
    high: FloatArray | None = None
    """`[N]` upper end of the band."""

    @property
    def known(self) -> FloatArray:
        """The values that are not NaN."""
        result: FloatArray = self.values[np.isfinite(self.values)]
        return result

    @property
    def least(self) -> float:
        """The least value, of the band if there is one."""
        return float(np.nanmin(self.values if self.low is None else np.fmin(self.values, self.low)))

    @property
    def greatest(self) -> float:
        """The greatest value, of the band if there is one."""
        return float(np.nanmax(self.values if self.high is None else np.fmax(self.values, self.high)))


@dataclass(frozen=True)
class Figure:
    """Curves over steps, games or hours."""

    title: str
    unit: str
    caption: str
    """One sentence that says what is shown."""
    axes: Axes
    curves: Sequence[Curve]
    stacked: bool = False
    """Whether the curves are shares that are drawn above one another."""
    dots: bool = False
    """Whether the points are drawn, because they are few."""

    def to_tree(self) -> dict[str, Any]:
        """The figure as plain values for the page's program."""
        return {
            "unit": self.unit,
            "stacked": self.stacked,
            "dots": self.dots,
            "axes": {name: numbers(values) for name, values in self.axes._asdict().items()},
            "curves": [
                {
                    "label": curve.label,
                    "values": numbers(curve.values),
                    "low": None if curve.low is None else numbers(curve.low),
                    "high": None if curve.high is None else numbers(curve.high),
                }
                for curve in self.curves
            ],
        }


@dataclass(frozen=True)
class Table:
    """Rows of text."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Replay:
    """A game as boards to step through, in SVG."""

    title: str
    extent: tuple[int, int]
    """Width and height of a board in the units of its elements."""
    ground: str
    """The elements of the empty board."""
    elements: Sequence[str]
    """All pieces and marks of the game, each once."""
    frames: Sequence[Sequence[int]]
    """`[plies + 1]`, which of `elements` each position has."""
    moves: Sequence[str]
    """`[plies]`, the names of the moves."""
    caption: str = ""
    """What there is to know of the game."""

    @property
    def last(self) -> str:
        """The elements of the last position."""
        return "".join(self.elements[number] for number in self.frames[-1])

    def to_tree(self) -> dict[str, Any]:
        """The game as plain values for the page's program."""
        return {"elements": list(self.elements), "frames": list(self.frames), "moves": list(self.moves)}


@dataclass(frozen=True)
class Section:
    """A section of the report; it is left out if it is empty."""

    title: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """Names and values."""
    text: str = ""
    """A text that is folded away at first."""
    replays: Sequence[Replay] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.figures or self.tables or self.facts or self.text or self.replays)


def numbers(values: FloatArray) -> list[float | None]:
    """Values for JSON: rounded to `DIGITS` digits, None for NaN and infinities."""
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]
