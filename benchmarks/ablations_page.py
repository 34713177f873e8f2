"""Writes docs/ablations.md: where strength is lost, and what each choice changes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import scipy.stats

from podzero.markdown import table

Json = Mapping[str, Any]


def ablations_page(
    diagnosis: Json,
    ceilings: Sequence[Json],
    ablations: Mapping[str, Json],
    rules: Sequence[str],
    other_games: Sequence[str],
) -> str:
    """The page.

    Args:
      diagnosis: what `benchmarks/diagnose.py` printed, as `result`, with its command, date and hardware, and the same
        of each agent with a `larger` network.
      ceilings: the same of each network that `benchmarks/ceiling.py` taught, with the solved `positions`.
      ablations: the results of `benchmarks/ablations.py`, by overrides.
      rules: the section about rules of selection, by lines.
      other_games: the sections about choices in other games, by lines.
    """
    found = diagnosis["result"]
    parts = [
        ("## More simulations", _judged(found.get("simulations", ()), ("simulations",))),
        ("## Scales of Q-values", _judged(found.get("scales", ()), ("q_scale", "value_scale", "simulations"))),
        ("## PUCT with the same network", _judged(found.get("puct", ()), ("simulations",))),
        ("## Distance of values from the game's value", _errors(found.get("values", ()))),
        ("## Value targets of self-play beside the game's value", _targets(found.get("targets", ()))),
        ("## The solver's values at the leaves", _judged(found.get("solver at the leaves", ()), ("simulations",))),
    ]
    return "\n".join([
        "# Where strength is lost, and what each choice changes",
        "",
        "`uv run --group dev python benchmarks/pages.py` writes this page from `benchmarks/results/`. A perfect solver "
        "judges moves in connect four: the share that keeps the game's value, with its 95% interval (Wilson) over "
        "positions, in all plies and in bands of plies.",
        "",
        *(f"- {finding}" for finding in _findings(diagnosis, ceilings, _groups(ablations.values()))),
        "",
        f"The agent of `{diagnosis['agent']}`; `{diagnosis['command']}`; {diagnosis['hardware']}; {diagnosis['date']}.",
        "",
        *(line for title, rows in parts if len(rows) > 2 for line in (title, "", *rows, "")),
        *(line for larger in diagnosis["larger"] for line in _larger(larger)),
        *(line for ceiling in ceilings for line in _ceiling(ceiling)),
        *rules,
        "## Variants of the training",
        "",
        "`uv run --group dev python benchmarks/ablations.py --minutes 10 runs/ablations` runs what is missing; "
        "`--steps` and `--also` change what all variants share; each run starts from nothing. A variant's difference "
        "is that of its share with 32 simulations from the mean of the baseline's, with its 95% interval by the spread "
        "between seeds.",
        "",
        *(line for group in _groups(ablations.values()) for line in _variants(group)),
        *other_games,
    ])  # fmt: skip


def _findings(diagnosis: Json, ceilings: Sequence[Json], groups: Sequence[Sequence[Json]]) -> list[str]:
    """What the tables say, as far as they are there."""
    found = diagnosis["result"]
    return [
        *_of_leaves(found.get("solver at the leaves", ())),
        *_of_capacity(found.get("values", ()), ceilings),
        *_of_targets(found.get("targets", ())),
        *(_of_simulations(larger) for larger in diagnosis["larger"]),
        *_of_scales(found.get("scales", ()), found.get("puct", ())),
        *_of_seeds(groups),
        "Where a table's positions were drawn with repetition, its intervals are those of as many positions as carry "
        "the same information: (Σ n)² / Σ n² with n copies of each.",
    ]


def _of_leaves(entries: Sequence[Json]) -> list[str]:
    if not entries:
        return []
    kept = [f"{100 * entry['keeps_value']:.1f}% with {entry['simulations']:,}" for entry in entries]
    return [
        f"With the solver's values at its leaves, the search keeps the value in {', '.join(kept)} simulations: most of "
        "what is lost is lost by the network's values there."
    ]


def _of_capacity(values: Sequence[Json], ceilings: Sequence[Json]) -> list[str]:
    if not values or not ceilings:
        return []
    band, played = next(iter(values[0]["bands"].items()))
    taught = ceilings[0]["result"]["values"][0]["bands"][band]
    return [
        f"Values are wrong first in the opening. In plies {band} those of the network are off by {played:.2f} after "
        f"self-play, and by {taught:.2f} where the solver has taught a network of the same size: it has the capacity, "
        "and the targets of self-play lack the values."
    ]


def _of_targets(entries: Sequence[Json]) -> list[str]:
    if not entries:
        return []
    band, by_weight = next(iter(entries[0]["bands"].items()))
    outcome, *others = (by_weight[weight]["correlation"] for weight in by_weight)
    return [
        "The outcome of a game of self-play says little about an early position, because each side errs on the way: in "
        f"plies {band} it correlates by {outcome:.2f} with the value, lambda-returns by {min(others):.2f} to "
        f"{max(others):.2f}."
    ]


def _of_simulations(larger: Json) -> str:
    judged = {entry["simulations"]: 100 * entry["keeps_value"] for entry in larger["result"]["simulations"]}
    shares = ", ".join(f"{share:.1f}% with {simulations:,}" for simulations, share in judged.items())
    return f"The larger network after {larger['trained']}: {shares} simulations."


def _of_scales(scales: Sequence[Json], puct: Sequence[Json]) -> list[str]:
    """That the intervals of all searches with equal simulations overlap, if they do."""
    for simulations in {entry["simulations"] for entry in scales}:
        intervals = [entry["interval"] for entry in (*scales, *puct) if entry["simulations"] == simulations]
        if max(low for low, _ in intervals) > min(high for _, high in intervals):
            return []
    return ["With equal simulations the intervals of all scales of Q-values, and of PUCT, overlap."] if scales else []


def _of_seeds(groups: Sequence[Sequence[Json]]) -> list[str]:
    spreads = [_spread_of_seeds(_by_variant(group).values()) for group in groups]
    spread, freedom = max(spreads, key=lambda found: found[1], default=(math.nan, 0))
    if not freedom:
        return []
    error = float(scipy.stats.t.ppf(0.975, freedom)) * spread * math.sqrt(2)
    return [
        f"Seeds differ by {100 * spread:.1f} points (standard deviation), so two single runs say something only if "
        f"they differ by more than {100 * error:.0f} points."
    ]


def _judged(entries: Sequence[Json], settings: tuple[str, ...]) -> list[str]:
    """One row for each setting of the search."""
    bands = tuple(f"plies {band}" for band in entries[0]["bands"]) if entries else ()
    header = (*(name.replace("_", " ") for name in settings), "keeps the value", *bands)
    return table(
        header,
        (
            (
                *(str(entry[name]) for name in settings),
                _share(entry["keeps_value"], entry["interval"]),
                *(_share(band["share"], band["interval"]) for band in entry["bands"].values()),
            )
            for entry in entries
        ),
    )


def _larger(diagnosis: Json) -> list[str]:
    """An agent of the larger network, with more and more simulations."""
    return [
        f"## The larger network, {diagnosis['trained']}",
        "",
        f"The agent of `{diagnosis['agent']}`; `{diagnosis['command']}`; {diagnosis['hardware']}; {diagnosis['date']}.",
        "",
        *_judged(diagnosis["result"]["simulations"], ("simulations",)),
        "",
    ]


def _ceiling(taught: Json) -> list[str]:
    """The network that the solver taught."""
    found = taught["result"]
    return [
        f"## The network taught by the solver on {taught['positions']:,} positions",
        "",
        f"`{taught['command']}`; {taught['hardware']}; {taught['date']}.",
        "",
        *_judged(found["simulations"], ("simulations",)),
        "",
        *_errors(found["values"]),
        "",
    ]


def _targets(entries: Sequence[Json]) -> list[str]:
    """The correlation of each target with the game's value."""
    bands = list(entries[0]["bands"]) if entries else []
    return table(
        ("root value", "lambda", *(f"correlation, plies {band}" for band in bands),
         *(f"squared error, plies {band}" for band in bands)),
        (
            (
                entry["root_value"],
                weight,
                *(f"{entry['bands'][band][weight][measure]:.3f}"
                  for measure in ("correlation", "squared_error") for band in bands),
            )
            for entry in entries
            for weight in entry["bands"][bands[0]]
        ),
    )  # fmt: skip


def _errors(entries: Sequence[Json]) -> list[str]:
    """The mean absolute error of each kind of root value."""
    bands = tuple(f"plies {band}" for band in entries[0]["bands"]) if entries else ()
    return table(
        ("root value", "simulations", "mean error", *bands),
        (
            (
                entry["root_value"],
                str(entry["simulations"]),
                *(f"{error:.3f}" for error in (entry["error"], *entry["bands"].values())),
            )
            for entry in entries
        ),
    )


def _groups(results: Iterable[Json]) -> list[list[Json]]:
    """The runs that share positions and all settings but those of variant and seed, by the first run of each group."""
    groups: dict[tuple[str, ...], list[Json]] = {}
    for run in results:
        groups.setdefault((run["limit"], str(run["cores"]), run["positions"], *run["also"]), []).append(run)
    return list(groups.values())


def _by_variant(group: Sequence[Json]) -> dict[str, list[Json]]:
    """The runs of each variant."""
    found: dict[str, list[Json]] = {}
    for run in group:
        found.setdefault(run["variant"], []).append(run)
    return found


def _variants(group: Sequence[Json]) -> list[str]:
    """The table of one group: a row for each variant, the means over its seeds."""
    by_variant = _by_variant(group)
    spread, freedom = _spread_of_seeds(by_variant.values())
    quantile = float(scipy.stats.t.ppf(0.975, freedom)) if freedom else math.nan
    first = group[0]
    return [
        f"`podzero train connect_four {' '.join([*first['also'], first['limit']])}`, held to {first['cores']} "
        f"{'core' if first['cores'] == 1 else 'cores'}, {first['positions']} positions, "
        f"{' and '.join(sorted({run['date'] for run in group}))}; "
        + (f"standard deviation between seeds {100 * spread:.1f} points." if freedom else "one seed each.")
        + _decay(first["also"]),
        "",
        *table(
            ("variant", "seeds", "steps", "games", "network alone", "32 simulations", "difference",
             "32 simulations, plies 0 to 9", "10 to 19", "20 to 30", "512 simulations"),
            (_variant(runs, by_variant.get("baseline", []), quantile * spread) for runs in by_variant.values()),
        ),
        "",
    ]  # fmt: skip


def _decay(overrides: Iterable[str]) -> str:
    """What to know of runs whose learning rate falls over a number of steps, whatever part of them they make."""
    prefix = "learner.optimizer.decay_steps="
    steps = next((override.removeprefix(prefix) for override in overrides if override.startswith(prefix)), None)
    if steps is None:
        return ""
    return (
        f" The learning rate falls over {int(steps):,} steps: a variant that made fewer ended at a higher rate, and "
        "its difference at equal time includes that."
    )


def _variant(runs: Sequence[Json], baseline: Sequence[Json], error: float) -> tuple[str, ...]:
    """The row of one variant; `error` is half of the interval of one run, not a number if it is unknown."""
    share = _mean(_kept(run, 32) for run in runs)
    interval = _judgement(runs[0], 32)["interval"]
    bands = _judgement(runs[0], 32)["bands"]
    difference = ""
    if runs[0] not in baseline and baseline and math.isfinite(error):
        points = 100 * (share - _mean(_kept(run, 32) for run in baseline))
        difference = f"{points:+.1f} ± {100 * error * math.sqrt(1 / len(runs) + 1 / len(baseline)):.1f}"
    return (
        runs[0]["variant"],
        str(len(runs)),
        f"{_mean(run['steps'] for run in runs):,.0f}",
        f"{_mean(run['games'] for run in runs):,.0f}",
        f"{100 * _mean(_kept(run, 1) for run in runs):.1f}%",
        _share(share, interval) if len(runs) == 1 else _seeds([_kept(run, 32) for run in runs]),
        difference,
        *(f"{100 * _mean(_judgement(run, 32)['bands'][band]['share'] for run in runs):.1f}%" for band in bands),
        f"{100 * _mean(_kept(run, 512) for run in runs):.1f}%",
    )


def _spread_of_seeds(variants: Iterable[Sequence[Json]]) -> tuple[float, int]:
    """The pooled standard deviation between the seeds of a variant, and its degrees of freedom: none of one seed."""
    samples = [[_kept(run, 32) for run in runs] for runs in variants if len(runs) > 1]
    freedom = sum(len(sample) - 1 for sample in samples)
    squares = sum((len(sample) - 1) * statistics.variance(sample) for sample in samples)
    return math.sqrt(squares / freedom) if freedom else math.nan, freedom


def _judgement(run: Json, simulations: int) -> Json:
    found: Json = next(judged for judged in run["judged"] if judged["simulations"] == simulations)
    return found


def _kept(run: Json, simulations: int) -> float:
    return float(_judgement(run, simulations)["keeps_value"])


def _seeds(shares: Sequence[float]) -> str:
    return f"{100 * _mean(shares):.1f}% ({', '.join(f'{100 * share:.1f}' for share in shares)})"


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def _share(share: float, interval: Sequence[float]) -> str:
    return f"{100 * share:.1f}% ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
