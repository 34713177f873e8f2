"""The section of docs/ablations.md about rules of selection below the root."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import scipy.stats

from podzero.benchmarks.refutations import NEVER_VISITED, REASONS, VALUE_WRONG
from podzero.intervals import wilson
from podzero.markdown import table

Json = Mapping[str, Any]


def inner_nodes(results: Json) -> list[str]:
    """The table of what `benchmarks/inner_nodes.py` measured.

    Args:
      results: its file, with how positions were `drawn`, in words.
    """
    searches = list(results["searches"].values())
    first = {search["simulations"]: search for search in reversed(searches) if search["rule"] == searches[0]["rule"]}
    return [
        "## Rules below the root, and why searches err",
        "",
        f"`{results['agent']}`, always with sequential halving at the root; `{results['command']}`; "
        f"{results['hardware']}; {results['date']}. {results['drawn']} A rule differs from the first one with as many "
        "simulations by the positions in which it alone is right (+) and those in which it alone errs (-); p is that "
        "of McNemar's exact test.",
        "",
        "Each error is followed along the solver's refutation through the tree of its search "
        "(`benchmarks/refutations.py`) to the node that holds no further move of it: *never visited* if that node has "
        "more visits than moves, *value wrong* if it has fewer, so that the network's value stands for the rest. In "
        f"the others a right move has the higher value at the end but is not chosen. {_never_visited(first)}",
        "",
        f"- {_gains(searches, first)}",
        f"- {_of_the_network(searches)}",
        f"- {_ranges(results['ranges_where_all_moves_are_equal'])}",
        "",
        *table(
            ("rule", "simulations", "positions", "keeps the value", "beside the first", *REASONS),
            (_row(search, first[search["simulations"]]) for search in searches),
        ),
        "",
    ]


def _never_visited(first: Mapping[int, Json]) -> str:
    """How many refutations the first rule never visits, in words."""
    counts = [
        f"{_count(search, NEVER_VISITED)} of {len(search['errors'])} with {simulations:,}"
        for simulations, search in sorted(first.items())
    ]
    return f"By the first rule a refutation is never visited in {', '.join(counts)} simulations."


def _gains(searches: Sequence[Json], first: Mapping[int, Json]) -> str:
    """Which rules gain against the first one by more than chance, in words."""
    better = [
        f"{search['rule']} with {search['simulations']}"
        for search in searches
        if search is not first[search["simulations"]] and _gained(search, first[search["simulations"]])
    ]
    if better:
        return f"Rules that keep the value in more positions (p below 0.05): {', '.join(better)}."
    return (
        "No rule keeps the value in more positions than the first one by more than chance allows (p below 0.05), so "
        "that one is the default, with a lower bound for the range in games of two players."
    )


def _gained(search: Json, first: Json) -> bool:
    gained, lost, p = _mcnemar(search, first)
    return gained > lost and p < 0.05


def _of_the_network(searches: Sequence[Json]) -> str:
    """How many errors come from a wrong value at the end of the line, in words."""
    wrong = sum(_count(search, VALUE_WRONG) for search in searches)
    errors = sum(len(search["errors"]) for search in searches)
    return (
        f"{wrong:,} of {errors:,} errors are the network's: the tree holds the line as far as it goes, and its end is "
        "valued wrongly."
    )


def _ranges(quartiles: Mapping[str, Sequence[float]]) -> str:
    """How far Q-values differ by errors alone, in words."""
    found = [f"{low:.2f} to {high:.2f}, median {median:.2f}, with {n}" for n, (low, median, high) in quartiles.items()]
    return (
        "Where all moves have the same value by the solver, the Q-values of a root differ by errors alone: half of "
        f"their ranges are {' and '.join(found)} simulations."
    )


def _count(search: Json, reason: str) -> int:
    return sum(error["reason"] == reason for error in search["errors"])


def _row(search: Json, first: Json) -> tuple[str, ...]:
    """One rule with one number of simulations."""
    count, errors = search["positions"], search["errors"]
    kept = count - len(errors)
    low, high = wilson(kept, count)
    return (
        search["rule"],
        str(search["simulations"]),
        f"{count:,}",
        f"{100 * kept / count:.1f}% ({100 * low:.1f} to {100 * high:.1f})",
        "" if search is first else _paired(search, first),
        *(str(_count(search, reason)) for reason in REASONS),
    )


def _paired(search: Json, first: Json) -> str:
    """McNemar's test of two rules, in words."""
    gained, lost, p = _mcnemar(search, first)
    return f"+{gained}, -{lost} (p = {p:.3f})"


def _mcnemar(search: Json, first: Json) -> tuple[int, int, float]:
    """Positions in which a rule alone is right, in which it alone errs, and p, among those that both have searched."""
    count = min(search["positions"], first["positions"])
    mine, theirs = (
        {error["position"] for error in found["errors"] if error["position"] < count} for found in (search, first)
    )
    gained, lost = len(theirs - mine), len(mine - theirs)
    p = scipy.stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    return gained, lost, float(p)
