"""The curves of a report as a file for papers and spreadsheets: CSV, or PDF with a figure on each page."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy as np

from podzero.core.importing import import_extra
from podzero.tools.report.figures import Figure, ReportSection

SUFFIXES = (".csv", ".pdf")
"""Suffixes of these files."""
_SIZE_IN = (5.5, 3.4)
"""Width and height of a page, in inches: a column of a paper's text."""
_OVER = {"hours": "hours of training", "steps": "learner steps", "games": "games"}
_BAND_ALPHA = 0.2


def make_curves(sections: Sequence[ReportSection], suffix: str, over: str = "hours") -> bytes:
    """The file of all figures but stacked shares; a PDF is `over` `hours`, `steps` or `games`, a CSV has all three."""
    figures = [figure for section in sections for figure in section.figures if not figure.stacked]
    return _csv(figures) if suffix == ".csv" else _pdf(figures, over)


def _csv(figures: Sequence[Figure]) -> bytes:
    """A row for each value of each curve; `low` and `high` are empty where it has no band."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("figure", "unit", "curve", *_OVER, "value", "low", "high"))
    for figure in figures:
        for curve in figure.curves:
            columns = (*figure.axes, curve.values, curve.low, curve.high)
            full = [np.full(len(curve.values), np.nan) if column is None else column for column in columns]
            for row in np.stack(full, axis=1)[np.isfinite(curve.values)]:
                numbers = (f"{number:.6g}" if np.isfinite(number) else "" for number in row)
                rows.writerow((figure.title, figure.unit, curve.label, *numbers))
    return text.getvalue().encode()


def _pdf(figures: Sequence[Figure], over: str) -> bytes:
    drawing = import_extra("matplotlib.figure", "a PDF", "plots")
    pages = import_extra("matplotlib.backends.backend_pdf", "a PDF", "plots")
    file = io.BytesIO()
    with pages.PdfPages(file) as pdf:
        for figure in figures:
            page = drawing.Figure(figsize=_SIZE_IN, layout="constrained")
            axes = page.subplots()
            at = getattr(figure.axes, over)
            for curve in figure.curves:
                known = np.flatnonzero(np.isfinite(curve.values))
                known = known[np.argsort(at[known], kind="stable")]
                (line,) = axes.plot(
                    at[known], curve.values[known], label=curve.label, marker="." if figure.dots else ""
                )
                if curve.low is not None and curve.high is not None:
                    band = curve.low[known], curve.high[known]
                    axes.fill_between(at[known], *band, color=line.get_color(), alpha=_BAND_ALPHA, linewidth=0)
            axes.set(title=figure.title, xlabel=_OVER[over], ylabel=figure.unit)
            axes.grid(alpha=_BAND_ALPHA)
            axes.legend(frameon=False, fontsize="small")
            pdf.savefig(page)
    return file.getvalue()
