"""The measured part of docs/evaluation.md: what simulated tournaments say of intervals and of choosing who plays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from podzero.markdown import Row, table

Json = Mapping[str, Any]


def simulated(found: Json) -> list[str]:
    """The tables of coverage and of games saved.

    Args:
      found: `benchmarks/results/tournaments.json`.
    """
    result = found["result"]
    kinds = ("tournaments of", "spread", "interval used", "half-width", "Fisher", "percentile", "BCa", "pairs flagged")
    return [
        f"Coverage of 95% intervals in {result['tournaments']:,} simulated tournaments of each kind "
        f"({result['few']:,} for the other kinds of interval), and the median half-width in Elo points. Spread is "
        "the standard deviation of the true ratings in Elo points. Pairs flagged is the share of tournaments in which "
        "some pair of players was flagged wrongly.",
        "",
        *table(kinds, [_coverage(name, kind) for name, kind in result["intervals"].items()]),
        "",
        f"Games until the largest half of an interval was at most {result['until']:g} Elo points, the mean of "
        f"{result['saving_tournaments']} tournaments of each kind, each ended after 3,200 games at the latest:",
        "",
        *table(
            ("players", "by uncertainty", "round robin", "ratio"),
            [_saving(name, kind) for name, kind in result["saving"].items()],
        ),
        "",
        f"`{found['command']}`; {found['hardware']}; {found['date']}.",
    ]


def _coverage(name: str, kind: Json) -> Row:
    methods = kind["methods"]
    shares = {method: f"{100 * one['coverage']:.1f}%" for method, one in methods.items()}
    half = f"{methods['used']['half_interval']:.0f}"
    others = (shares["fisher"], shares["percentile"], shares["bca"])
    return name, f"{kind['spread']:g}", f"**{shares['used']}**", half, *others, f"{100 * kind['flagged']:.1f}%"


def _saving(name: str, kind: Json) -> Row:
    games = kind["games"]
    return (
        name.removeprefix("saving: "),
        f"{games['by_uncertainty']:,.0f}",
        f"{games['round_robin']:,.0f}",
        f"**{kind['ratio']:.2f}**",
    )
