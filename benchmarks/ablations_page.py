"""Writes docs/ablations.md: what each choice changes, and where strength is lost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from scipy import special

from podzero.benchmarks.markdown import Row, abbreviated, table
from podzero.config import SearchConfig

Json = Mapping[str, Any]

FILES = ("paired", "inner_nodes", "inner_nodes_2048", "diagnosis", "ceiling")
"""The files of `benchmarks/results` that the page shows."""
POWER = 0.8
"""The probability with which a comparison finds the difference that the page calls detectable."""
_DETECTABLE = 1 + float(special.ndtri(POWER) / special.ndtri(0.975))
"""That difference, as a multiple of half the interval of 95% (Cohen 1988; both from the normal distribution)."""


def ablations_page(results: Mapping[str, Json]) -> str:
    """The page, from the contents of `FILES`, by name."""
    rows = [
        *map(_paired, results["paired"]["comparisons"]),
        *map(_match, results["paired"]["matches"]),
        *_rules(results["inner_nodes"]),
        *_rules(results["inner_nodes_2048"]),
    ]
    return "\n".join([
        "# What each choice changes",
        "",
        "Each row compares one choice with the default of that day, by paired seeds, a match, or searches of equal "
        "positions. Points are percentage points of moves that keep the game's value in connect "
        f"four. {POWER:.0%} of such comparisons would find the detectable effect; smaller ones are not excluded.",
        "",
        *table(
            ("choice", "what it changed", "difference (95% interval)", "detectable", "on what"), abbreviated(rows, (4,))
        ),
        "",
        "## Where strength is lost",
        "",
        *(f"- {sentence}" for sentence in _findings(results)),
        "",
        "Figures: `benchmarks/results/`.",
        "",
    ])  # fmt: skip


def _row(choice: str, setting: str, difference: float, half: float, unit: str, on: str) -> Row:
    """A row; `half` is half the length of the interval."""
    return (
        choice,
        f"`{setting}`",
        f"{difference:+.1f} {unit} ({difference - half:+.1f} to {difference + half:+.1f})",
        f"{_DETECTABLE * half:.1f}",
        on,
    )


def _rules(results: Json) -> list[Row]:
    """Rules of selection below the root compared with the first, each at the most simulations that both have."""
    searches = list(results["searches"].values())
    default = {one["simulations"]: one for one in searches if one["rule"] == searches[0]["rule"]}
    others = [one for one in searches if one["rule"] != searches[0]["rule"] and one["simulations"] in default]
    largest = {one["rule"]: one for one in sorted(others, key=lambda one: one["simulations"])}
    rows = []
    for search in largest.values():
        if not search["settings"].keys() <= SearchConfig.model_fields.keys():  # a setting that is gone
            continue
        simulations, first = search["simulations"], default[search["simulations"]]
        count = min(search["positions"], first["positions"])
        mine, theirs = ({e["position"] for e in one["errors"] if e["position"] < count} for one in (search, first))
        gained, lost = len(theirs - mine), len(mine - theirs)
        difference = (gained - lost) / count
        half = 1.96 * math.sqrt(gained + lost - count * difference**2) / count  # of a difference of paired shares
        setting = " ".join(f"search.{name}={value}" for name, value in search["settings"].items())
        on = f"`{results['agent']}`, {simulations:,} simulations, {count:,} positions"
        rows.append(_row("search", setting, 100 * difference, 100 * half, "points", on))
    return rows


def _paired(comparison: Json) -> Row:
    """A choice by pairs of runs of equal seeds, which ran at the same time."""
    gained = [pair["choice"]["score"] - pair["default"]["score"] for pair in comparison["pairs"]]
    # By Student's t.
    half = float(special.stdtrit(len(gained) - 1, 0.975)) * statistics.stdev(gained) / math.sqrt(len(gained))
    on = f"{comparison['on']}, {len(gained)} paired seeds"
    return _row(comparison["choice"], comparison["setting"], statistics.fmean(gained), half, comparison["unit"], on)


def _match(match: Json) -> Row:
    """A choice by a match between two runs that differ in it: its points above one half, of 100 games."""
    low, high = match["interval"]
    on = f"{match['on']}, then a match of {match['games']} games"
    return _row(
        match["choice"], match["setting"], 100 * match["score"] - 50, 50 * (high - low), "points of 100 games", on
    )


def _findings(results: Mapping[str, Json]) -> list[str]:
    """Sentences that take their figures from the results."""
    found, taught = results["diagnosis"]["result"], results["ceiling"]["networks"][0]["result"]
    leaves = found["solver at the leaves"][-1]
    band, played = next(iter(found["values"][0]["bands"].items()))
    by_weight = found["targets"][0]["bands"][band]
    outcome, *others = (by_weight[weight]["correlation"] for weight in by_weight)
    seeds = [pair["default"]["score"] for pair in results["paired"]["comparisons"][0]["pairs"]]
    return [
        f"With the solver's values at its leaves, a search of {leaves['simulations']} simulations keeps the game's "
        f"value in {100 * leaves['keeps_value']:.1f}% of positions. The network's values lose most of the rest.",
        f"The opening is hardest. In plies {band} the network's values are off by {played:.2f} on average after "
        f"self-play, and by {taught['values'][0]['bands'][band]:.2f} after training on the solver's values. The "
        "network has the capacity; the targets of self-play lack the information.",
        f"The outcome of a game correlates by {outcome:.2f} with the true value in plies {band}. Lambda-returns "
        f"correlate by {min(others):.2f} to {max(others):.2f}.",
        f"Seeds differ by {statistics.stdev(seeds):.1f} points (standard deviation of {len(seeds)} default runs of "
        f"{results['paired']['comparisons'][0]['on']}).",
    ]
