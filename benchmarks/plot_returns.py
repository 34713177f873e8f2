"""Draws the returns of the runs in `benchmarks/results`, beside those of baselines.

uv run --group dev python benchmarks/plot_returns.py docs/gymnasium.png
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from podzero.benchmarks.panels import draw_panels

RESULTS = Path(__file__).parent / "results"
PANELS = {
    "cartpole": ("CartPole-v1", 475.0, "bar: 475"),
    "lunar_lander": ("LunarLander-v3", 200.0, "solved: 200"),
    "pendulum": ("Pendulum-v1", None, ""),
    "minatar_breakout": ("MinAtar Breakout", None, ""),
}
"""Title of each experiment, and the mean return that counts as solved, if there is one, with its label."""


def panel(axes: Any, name: str) -> None:
    """Draws one experiment: evaluations during its runs, the final 100 episodes with their interval, and baselines."""
    results = json.loads((RESULTS / f"{name}.json").read_text())
    title, bar, label = PANELS[name]
    for run in results["runs"]:
        minutes = [seconds / 60 for seconds, _, _ in run["judged_seconds_step_return"]]
        means = [mean for _, _, mean in run["judged_seconds_step_return"]]
        (line,) = axes.plot(minutes, means, "o-", label=f"seed {run['seed']}")
        final = run["result"]
        low, high = final["interval"]
        error = [[final["mean_return"] - low], [high - final["mean_return"]]]
        axes.errorbar(results["minutes"], final["mean_return"], yerr=error, fmt="D", color=line.get_color(), capsize=4)
    if bar is not None:
        axes.axhline(bar, color="gray", linestyle=":", label=label)
    for who, style in (("random", "--"), ("greedy", "-.")):
        if baseline := results.get("baselines", {}).get(who):
            axes.axhline(baseline["mean_return"], color="tab:red", linestyle=style, label=who)
    axes.set_title(title)
    axes.set_xlabel("minutes")
    axes.set_ylabel("mean return")
    axes.legend(fontsize="small")


if __name__ == "__main__":
    draw_panels(__doc__, PANELS, panel, width=9)
