"""Draws the scores of snapshots against fixed opponents, for the runs in `benchmarks/results` that have them.

uv run --group dev python benchmarks/plot_scores.py docs/scores.png
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from podzero.benchmarks.panels import draw_panels
from podzero.intervals import wilson

RESULTS = Path(__file__).parent / "results"
PANELS = ("othello_hour", "go_9x9_hour")
"""The experiments."""


def panel(axes: Any, name: str) -> None:
    """Draws one experiment: matches of its snapshots, with 95% intervals over their games, and the final match."""
    results = json.loads((RESULTS / f"{name}.json").read_text())
    minutes = [seconds / 60 for seconds, _ in results["judged_seconds_step"]]
    games = results["judged_games"]
    for index, (opponent, scores) in enumerate(results["judged_scores"].items()):
        bounds = [wilson(score * games, games) for score in scores]
        below = [score - low for score, (low, _) in zip(scores, bounds, strict=True)]
        above = [high - score for score, (_, high) in zip(scores, bounds, strict=True)]
        axes.errorbar(
            minutes, scores, [below, above], fmt="o-", capsize=3, color=f"C{index}", label=f"against {opponent}"
        )
    final = results["result"]
    low, high = final["interval"]
    error = [[final["score"] - low], [high - final["score"]]]
    axes.errorbar(results["minutes"], final["score"], error, fmt="D", color="black", capsize=4,
                  label=f"{final['games']} games against {final['opponent']}")  # fmt: skip
    axes.set_title(name)
    axes.set_ylim(0.0, 1.05)
    axes.set_xlabel("minutes")
    axes.set_ylabel("score")
    axes.legend(fontsize="small", loc="lower right")


if __name__ == "__main__":
    draw_panels(__doc__, PANELS, panel, width=10)
