"""Writes docs/ablations.md: where strength is lost, and what each choice changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from podzero.markdown import table

Json = Mapping[str, Any]


def ablations_page(diagnosis: Json, ceilings: Iterable[Json], ablations: Mapping[str, Json]) -> str:
    """The page.

    Args:
      diagnosis: what `benchmarks/diagnose.py` printed, as `result`, with its command, date and hardware, the
        `findings` of this and the other results, in words, and the same of each agent with a `larger` network.
      ceilings: the same of each network that `benchmarks/ceiling.py` taught, with the solved `positions`.
      ablations: the results of `benchmarks/ablations.py`, by overrides.
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
        "`uv run python benchmarks/pages.py` writes this page from `benchmarks/results/`. A perfect solver judges "
        "moves in connect four: the share that keeps the game's value, with its 95% interval (Wilson) over positions, "
        "in all plies and in bands of plies.",
        "",
        *(f"- {finding}" for finding in diagnosis["findings"]),
        "",
        f"The agent of `{diagnosis['agent']}`; `{diagnosis['command']}`; {diagnosis['hardware']}; {diagnosis['date']}.",
        "",
        *(line for title, rows in parts if len(rows) > 2 for line in (title, "", *rows, "")),
        *(line for larger in diagnosis["larger"] for line in _larger(larger)),
        *(line for ceiling in ceilings for line in _ceiling(ceiling)),
        "## Variants of the training",
        "",
        "`uv run python benchmarks/ablations.py --minutes 10 runs/ablations` runs what is missing, `--steps` and "
        "`--also` change what all variants share; each row is one run from nothing, with the settings that it shows.",
        "",
        *(_variants(ablations.values()) if ablations else ["None has been trained yet."]),
        "",
    ])  # fmt: skip


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


def _variants(results: Iterable[Json]) -> list[str]:
    """One row for each run."""
    return table(
        ("variant", "settings", "steps", "games", "network alone", "32 simulations", "of them plies 0 to 9",
         "10 to 19", "20 to 30", "512 simulations", "measured"),
        (_variant(run, {judged["simulations"]: judged for judged in run["judged"]}) for run in results),
    )  # fmt: skip


def _variant(run: Json, judged: Mapping[int, Json]) -> tuple[str, ...]:
    """The row of one run."""
    return (
        run["variant"],
        f"`{' '.join([*run['also'], run['limit']])} seed={run['seed']}`",
        f"{run['steps']:,}",
        f"{run['games']:,}",
        f"{100 * judged[1]['keeps_value']:.1f}%",
        _share(judged[32]["keeps_value"], judged[32]["interval"]),
        *(f"{100 * band['share']:.1f}%" for band in judged[32]["bands"].values()),
        f"{100 * judged[512]['keeps_value']:.1f}%",
        run["date"],
    )


def _share(share: float, interval: Sequence[float]) -> str:
    return f"{100 * share:.1f}% ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
