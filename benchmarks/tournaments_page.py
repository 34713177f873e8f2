"""The measured part of docs/evaluation.md: what simulated tournaments say of intervals and of choosing who plays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podzero.markdown import Row, table

Json = Mapping[str, Any]


def simulated(found: Json) -> list[str]:
    """The table of coverage, and a sentence about the games saved.

    Args:
      found: `benchmarks/results/tournaments.json`.
    """
    result = found["result"]
    kinds = ("tournaments of", "interval used", "Fisher", "bootstrap", "half-width")
    ratios = [kind["ratio"] for kind in result["saving"].values()]
    return [
        f"How often 95% intervals hold the true rating, in {result['tournaments']:,} simulated tournaments of each "
        f"kind ({result['few']:,} for the other two intervals), and the median half-width in Elo points:",
        "",
        *table(kinds, [_coverage(name, kind) for name, kind in result["intervals"].items()]),
        "",
        f"Choosing matches by information needs {min(ratios):.2f} to {max(ratios):.2f} of a round robin's games for "
        f"intervals of {result['until']:g} Elo points (`{found['command']}`; {found['hardware']}; {found['date']}).",
    ]


def _coverage(name: str, kind: Json) -> Row:
    methods = kind["methods"]
    shares = {method: f"{100 * one['coverage']:.1f}%" for method, one in methods.items()}
    half = f"{methods['used']['half_interval']:.0f}"
    return name, f"**{shares['used']}**", shares["fisher"], shares["percentile"], half
