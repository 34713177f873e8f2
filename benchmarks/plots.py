"""Draws the figures of README.md and docs/results.md.

uv run --group dev python benchmarks/plots.py learning docs/connect_four.png runs/connect_four runs/connect_four_int8
uv run --group dev python benchmarks/plots.py returns docs/gymnasium.png
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from podzero.files.workdir import Workdir

RESULTS = Path(__file__).parent / "results"
LOSSES = {"policy_loss": "-", "value_loss": "--"}
"""The line styles of the losses."""
STOPPED_S = 60.0
"""A run whose workers write nothing for this long is stopped; that time does not count."""
MINUTES = (1, 2, 5, 10, 20, 60, 120)
"""The ticks of the logarithmic time axis."""
RETURNS = {
    "cartpole": ("CartPole-v1", 475.0, "bar: 475"),
    "lunar_lander": ("LunarLander-v3", 200.0, "solved: 200"),
    "pendulum": ("Pendulum-v1", None, ""),
    "minatar_breakout": ("MinAtar Breakout", None, ""),
}
"""The title of each experiment, the mean return that counts as solved, if there is one, and its label."""


def main() -> None:
    """Draws the figure that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=("learning", "returns"))
    parser.add_argument("target", type=Path, help="the file to write")
    parser.add_argument("workdirs", type=Path, nargs="*", metavar="workdir", help="the runs of `learning`")
    arguments = parser.parse_args()
    match arguments.figure:
        case "learning":
            draw_learning(arguments.workdirs, arguments.target)
        case "returns":
            draw_panels(arguments.target, RETURNS, returns_panel, width=9)


def curves(metrics: Path) -> dict[str, list[tuple[float, float]]]:
    """The values of each metric as (minutes since the first line, value)."""
    found: dict[str, list[tuple[float, float]]] = {}
    seconds, before = 0.0, None
    for line in metrics.read_text(encoding="utf-8").splitlines():
        parsed = json.loads(line)
        passed = 0.0 if before is None else parsed["t"] - before
        seconds, before = seconds + (passed if passed < STOPPED_S else 0.0), parsed["t"]
        for name, value in parsed["metrics"].items():
            if value is not None:
                found.setdefault(name, []).append((seconds / 60.0, value))
    return found


def draw_learning(workdirs: Sequence[Path], target: Path) -> None:
    """Draws the skill of each run's agent above and its losses below."""
    figure, (skill, loss) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, height_ratios=(3, 2))
    for index, workdir in enumerate(workdirs):
        found, name, color = curves(workdir / "metrics.jsonl"), Workdir(workdir).experiment().name, f"C{index}"
        if keeps := found.get("evaluation/keeps_value"):
            skill.plot(*zip(*keeps, strict=True), "o-", color=color, label=name)
        for metric, style in LOSSES.items():
            loss.plot(*zip(*found[f"learner/{metric}"], strict=True), style, color=color)
    for metric, style in LOSSES.items():
        loss.plot([], [], style, color="black", label=metric.replace("_", " "))
    plain = [
        (point["minutes"], point["keeps_value"])
        for point in json.loads((RESULTS / "plain_learning.json").read_text(encoding="utf-8"))["curve"]
    ]
    skill.plot(*zip(*plain, strict=True), "o:", color="gray", label="plain pgx and mctx")
    skill.set_ylim(0.5, 1.0)
    skill.set_ylabel("moves that keep the game's value")
    skill.legend(loc="lower right")
    loss.set_xlabel("minutes")
    loss.set_xscale("log")
    end = loss.dataLim.x1
    ticks = [minutes for minutes in MINUTES if minutes <= 1.1 * end]
    loss.set_xticks(ticks, labels=map(str, ticks))
    loss.set_xlim(MINUTES[0], 1.1 * end)
    loss.set_ylabel("loss")
    loss.legend(loc="upper right")
    figure.tight_layout()
    figure.savefig(target, dpi=110)


def draw_panels(target: Path, names: Collection[str], panel: Callable[[Any, str], None], width: float) -> None:
    """Draws a panel for each experiment, two in a row.

    Args:
      target: the file to write.
      names: the experiments.
      panel: draws one of them.
      width: the width of the figure in inches.
    """
    rows = (len(names) + 1) // 2
    figure, places = plt.subplots(rows, 2, figsize=(width, 3.5 * rows), squeeze=False)
    for axes, name in zip(places.flat, names, strict=False):
        panel(axes, name)
    for axes in places.flat[len(names) :]:
        axes.set_axis_off()
    figure.tight_layout()
    figure.savefig(target, dpi=100)


def returns_panel(axes: Any, name: str) -> None:
    """Draws one experiment: evaluations during its runs, the final 100 episodes with their interval, and baselines."""
    results = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    title, bar, label = RETURNS[name]
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
    if baseline := results.get("baselines", {}).get("random"):
        axes.axhline(baseline["mean_return"], color="tab:red", linestyle="--", label="random")
    axes.set_title(title)
    axes.set_xlabel("minutes")
    axes.set_ylabel("mean return")
    axes.legend(fontsize="small")


if __name__ == "__main__":
    main()
