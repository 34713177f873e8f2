"""Figures with a panel for each experiment of `benchmarks/results`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def draw_panels(
    description: str | None, names: Collection[str], panel: Callable[[Any, str], None], width: float
) -> None:
    """Reads the path of the figure from the command line, and draws a panel for each experiment, two in a row.

    Args:
      description: of the script, for `--help`.
      names: of the experiments.
      panel: draws one of them.
      width: of the figure, in inches.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("target", type=Path)
    target = parser.parse_args().target
    rows = (len(names) + 1) // 2
    figure, places = plt.subplots(rows, 2, figsize=(width, 3.5 * rows), squeeze=False)
    for axes, name in zip(places.flat, names, strict=False):
        panel(axes, name)
    for axes in places.flat[len(names) :]:
        axes.set_axis_off()
    figure.tight_layout()
    figure.savefig(target, dpi=100)
