"""The sections of docs/ablations.md about choices in other games than connect four."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from podzero.markdown import table

Json = Mapping[str, Any]


def horizon(results: Json) -> list[str]:
    """The section about the value target's horizon.

    Args:
      results: the `players` of a tournament between the last snapshots of runs that differ in it, strongest first.
    """
    return [
        "## How far value targets look ahead, in Othello",
        "",
        f"`{results['command']}` and the same with other targets, {results['minutes']} minutes each, then "
        f"`{results['tournament']}`; "
        f"{results['hardware']}; {results['date']}. {results['finding']}",
        "",
        *table(
            ("targets", "learner steps", "games of training", "Elo", "95% interval", "score"),
            (
                (
                    player["targets"],
                    "" if player["steps"] is None else f"{player['steps']:,}",
                    "" if player["trained_games"] is None else f"{player['trained_games']:,}",
                    f"{player['elo']:.0f}",
                    f"{player['low']:.0f} to {player['high']:.0f}",
                    f"{100 * player['score']:.1f}% of {player['games']:,} games",
                )
                for player in results["players"]
            ),
        ),
        "",
    ]


def root_values(results: Json) -> list[str]:
    """The section about the root value that MuZero's targets bootstrap from.

    Args:
      results: the `runs`, with mean returns over episodes played afterwards.
    """
    kinds = sorted({run["root_value"] for run in results["runs"]})
    experiments = list(dict.fromkeys(run["experiment"] for run in results["runs"]))
    rows = []
    for experiment in experiments:
        for kind in kinds:
            runs = [run for run in results["runs"] if (run["experiment"], run["root_value"]) == (experiment, kind)]
            rows.append((experiment, kind, *_returns(runs)))
    return [
        "## The root value that MuZero bootstraps from",
        "",
        f"`{results['command']}`; {results['hardware']}; {results['date']}. {results['finding']}",
        "",
        *table(("experiment", "`search.root_value`", "learner steps", "mean return by seed (95% interval)"), rows),
        "",
    ]


def _returns(runs: Sequence[Json]) -> tuple[str, str]:
    """Steps and returns of runs that differ in their seed, in words."""
    steps = ", ".join(f"{run['steps']:,}" for run in runs)
    found = ", ".join(f"{run['mean_return']:.1f} ({run['low']:.1f} to {run['high']:.1f})" for run in runs)
    return steps, found
