"""Writes docs/ablations.md: what each choice changes, and where strength is lost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scipy import special

from podzero.benchmarks.markdown import Row, table
from podzero.config.loading import GONE

Json = Mapping[str, Any]

VALUE_WRONG = "visited, value wrong"
"""The reason of an error in `inner_nodes.json` whose line ends at a position that the network alone judges."""
FILES = (
    "ablations", "inner_nodes", "inner_nodes_2048", "othello_horizon", "root_values", "paired", "diagnosis", "ceiling",
)  # fmt: skip
"""The files of `benchmarks/results` that the page shows."""
SIMULATIONS = 32
"""The simulations with which variants of the training are compared."""
POWER = 0.8
"""The probability with which a comparison finds the difference that the page calls detectable."""
_DETECTABLE = 1 + float(special.ndtri(POWER) / special.ndtri(0.975))
"""That difference, as a multiple of half the interval of 95% (Cohen 1988; both from the normal distribution)."""


def ablations_page(results: Mapping[str, Json]) -> str:
    """The page, from the contents of `FILES`, by name."""
    runs = list(results["ablations"].values())
    rows = [
        *(row for group in _groups(runs) for row in _variants(group, *_spread_of_seeds(runs))),
        *_rules(results["inner_nodes"]),
        *_rules(results["inner_nodes_2048"]),
        *_horizons(results["othello_horizon"]),
        *_root_values(results["root_values"]),
        *map(_paired, results["paired"]["comparisons"]),
        *map(_match, results["paired"]["matches"]),
    ]
    return "\n".join([
        "# What each choice changes",
        "",
        "Each row compares one choice with the default on the day of the run. Points are percentage points of moves "
        "that keep the game's value in connect four, as a perfect solver judges them. Where the interval contains "
        f"zero, an effect below the detectable one, which {POWER:.0%} of such comparisons would find, is not excluded. "
        "Settings that gained nothing and were removed are in the results alone.",
        "",
        *table(("choice", "what it changed", "difference (95% interval)", "detectable", "on what"), rows),
        "",
        "## Where strength is lost",
        "",
        *(f"- {sentence}" for sentence in _findings(results, runs)),
        "",
        "`uv run --group dev python benchmarks/pages.py` writes this page. `benchmarks/results/` holds every figure "
        f"with its command, machine and date: {', '.join(f'`{name}.json`' for name in FILES)}.",
        "",
    ])  # fmt: skip


def _groups(runs: Iterable[Json]) -> list[dict[str, list[Json]]]:
    """The runs of each variant, for each set of runs that share positions and all settings but variant and seed."""
    groups: dict[tuple[str, ...], dict[str, list[Json]]] = {}
    for run in runs:
        shared = (run["limit"], str(run["cores"]), run["positions"], *run["also"])
        groups.setdefault(shared, {}).setdefault(run["variant"], []).append(run)
    return list(groups.values())


def _variants(group: Mapping[str, Sequence[Json]], spread: float, freedom: int) -> list[Row]:
    """A row for each variant of the training, the best first; the interval is that of the spread between seeds."""
    baseline = [_kept(run) for run in group["baseline"]]
    differences = {
        name: statistics.fmean(_kept(run) for run in runs) - statistics.fmean(baseline)
        for name, runs in group.items()
        if name != "baseline"
    }
    rows = []
    for name in sorted(differences, key=lambda name: -differences[name]):
        runs = group[name]
        if any(word.partition("=")[0] in GONE for word in _setting(runs[0]).split()):
            continue
        half = _quantile(freedom) * spread * math.sqrt(1 / len(runs) + 1 / len(baseline))
        rows.append(_row(name, _setting(runs[0]), 100 * differences[name], 100 * half, "points", _limit(runs[0])))
    return rows


def _row(choice: str, setting: str, difference: float, half: float, unit: str, on: str) -> Row:
    """A row; `half` is half the length of the interval, nan where there is none."""
    known = math.isfinite(half)
    interval = f" ({difference - half:+.1f} to {difference + half:+.1f})" if known else ""
    return (
        choice,
        f"`{setting}`",
        f"{difference:+.1f} {unit}{interval}",
        f"{_DETECTABLE * half:.1f}" if known else "",
        on,
    )


def _setting(run: Json) -> str:
    """The overrides that make a variant."""
    shared = {"podzero", "train", "connect_four", *run["also"], run["limit"]}
    words = [word for word in run["command"].split() if word not in shared]
    return " ".join(word for word in words if not word.startswith(("seed=", "stop.")))


def _limit(run: Json) -> str:
    name, _, value = run["limit"].removeprefix("stop.").partition("=")
    return f"connect four, {int(value):,} {name}"


def _spread_of_seeds(runs: Iterable[Json]) -> tuple[float, int]:
    """The pooled standard deviation between the seeds of a variant, and its degrees of freedom: none of one seed."""
    seeds = [[_kept(run) for run in found] for group in _groups(runs) for found in group.values() if len(found) > 1]
    freedom = sum(len(sample) - 1 for sample in seeds)
    squares = sum((len(sample) - 1) * statistics.variance(sample) for sample in seeds)
    return (math.sqrt(squares / freedom), freedom) if freedom else (math.nan, 0)


def _quantile(freedom: int) -> float:
    """The quantile of Student's t for a two-sided interval of 95%."""
    return float(special.stdtrit(freedom, 0.975)) if freedom else math.nan


def _kept(run: Json) -> float:
    found = next(judged for judged in run["judged"] if judged["simulations"] == SIMULATIONS)
    return float(found["keeps_value"])


def _rules(results: Json) -> list[Row]:
    """Rules of selection below the root compared with the first, each at the most simulations that both have."""
    searches = list(results["searches"].values())
    default = {one["simulations"]: one for one in searches if one["rule"] == searches[0]["rule"]}
    others = [one for one in searches if one["rule"] != searches[0]["rule"] and one["simulations"] in default]
    largest = {one["rule"]: one for one in sorted(others, key=lambda one: one["simulations"])}
    rows = []
    for rule, search in largest.items():
        if any(f"search.{name}" in GONE for name in search["settings"]):
            continue
        simulations, first = search["simulations"], default[search["simulations"]]
        count = min(search["positions"], first["positions"])
        mine, theirs = ({e["position"] for e in one["errors"] if e["position"] < count} for one in (search, first))
        gained, lost = len(theirs - mine), len(mine - theirs)
        difference = (gained - lost) / count
        half = 1.96 * math.sqrt(gained + lost - count * difference**2) / count  # of a difference of paired shares
        setting = " ".join(f"{name}={value}" for name, value in search["settings"].items())
        on = f"`{results['agent']}`, {simulations:,} simulations, {count:,} positions"
        rows.append(_row(f"search: {rule}", setting, 100 * difference, 100 * half, "points", on))
    return rows


def _horizons(results: Json) -> list[Row]:
    """Value targets in Othello, in Elo points compared with the first player of a tournament."""
    return [
        (
            "value target",
            player["targets"],
            f"{player['elo']:+.0f} Elo ({player['low']:+.0f} to {player['high']:+.0f})",
            f"{_DETECTABLE * (player['high'] - player['low']) / 2:.0f}",
            f"Othello, {results['minutes']} minutes",
        )
        for player in results["players"][1:]
        if player["steps"]
    ]


def _root_values(results: Json) -> list[Row]:
    """The root value that MuZero bootstraps from, by mean returns over seeds."""
    returns: dict[str, dict[str, list[float]]] = {}
    for run in results["runs"]:
        returns.setdefault(run["experiment"], {}).setdefault(run["root_value"], []).append(run["mean_return"])
    rows = []
    for experiment, found in returns.items():
        mean, policy = found["mean"], found["policy"]
        freedom = len(mean) + len(policy) - 2
        squares = sum((value - statistics.fmean(sample)) ** 2 for sample in (mean, policy) for value in sample)
        spread = math.sqrt(squares / freedom * (1 / len(mean) + 1 / len(policy))) if freedom else math.nan
        difference = statistics.fmean(mean) - statistics.fmean(policy)
        half = _quantile(freedom) * spread
        rows.append(_row("root value", "search.root_value=mean", difference, half, "return", f"`{experiment}`"))
    return rows


def _paired(comparison: Json) -> Row:
    """A choice by pairs of runs of equal seeds, which ran at the same time."""
    gained = [pair["choice"]["score"] - pair["default"]["score"] for pair in comparison["pairs"]]
    half = _quantile(len(gained) - 1) * statistics.stdev(gained) / math.sqrt(len(gained))
    on = f"{comparison['on']}, {len(gained)} paired seeds"
    return _row(comparison["choice"], comparison["setting"], statistics.fmean(gained), half, comparison["unit"], on)


def _match(match: Json) -> Row:
    """A choice by a match between two runs that differ in it: its points above one half, of 100 games."""
    low, high = match["interval"]
    on = f"{match['on']}, then a match of {match['games']} games"
    return _row(
        match["choice"], match["setting"], 100 * match["score"] - 50, 50 * (high - low), "points of 100 games", on
    )


def _findings(results: Mapping[str, Json], runs: Sequence[Json]) -> list[str]:
    """Sentences that take their figures from the results."""
    found, taught = results["diagnosis"]["result"], results["ceiling"]["networks"][0]["result"]
    leaves = found["solver at the leaves"][-1]
    band, played = next(iter(found["values"][0]["bands"].items()))
    by_weight = found["targets"][0]["bands"][band]
    outcome, *others = (by_weight[weight]["correlation"] for weight in by_weight)
    searches = results["inner_nodes"]["searches"].values()
    errors = [error["reason"] for search in searches for error in search["errors"]]
    spread, freedom = _spread_of_seeds(runs)
    return [
        f"With the solver's values at its leaves, a search of {leaves['simulations']} simulations keeps the game's "
        f"value in {100 * leaves['keeps_value']:.1f}% of positions. The network's values lose most of the rest.",
        f"The opening is hardest. In plies {band} the network's values are off by {played:.2f} on average after "
        f"self-play, and by {taught['values'][0]['bands'][band]:.2f} after training on the solver's values. The "
        "network has the capacity; the targets of self-play lack the information.",
        f"The outcome of a game correlates by {outcome:.2f} with the true value in plies {band}. Lambda-returns "
        f"correlate by {min(others):.2f} to {max(others):.2f}.",
        _of_simulations(results["diagnosis"]["larger"][-1]),
        f"{errors.count(VALUE_WRONG):,} of {len(errors):,} errors of the search end in a position that the network "
        "values wrongly.",
        f"Seeds differ by {100 * spread:.1f} points (standard deviation). Two single runs must differ by more than "
        f"{100 * _quantile(freedom) * spread * math.sqrt(2):.0f} points to say anything.",
        "Runs of equal minutes share one schedule of the learning rate. A variant with slower steps ended at a higher "
        "rate, and its difference includes that.",
    ]


def _of_simulations(larger: Json) -> str:
    judged = {entry["simulations"]: f"{100 * entry['keeps_value']:.1f}%" for entry in larger["result"]["simulations"]}
    shares = ", ".join(f"{share} with {simulations:,}" for simulations, share in judged.items())
    return f"More simulations help the larger network after {larger['trained']}: {shares}."
