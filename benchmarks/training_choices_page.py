"""The sections of docs/ablations.md about choices in other games than connect four."""

from __future__ import annotations

from collections.abc import Mapping
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
