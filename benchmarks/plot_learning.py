"""Draws the learning curves of runs in games from their metrics, beside that of `plain_learning.py` in connect four.

uv run --group dev python benchmarks/plot_learning.py docs/connect_four.png runs/connect_four runs/connect_four_int8
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from podzero.workdir import Workdir

Curve = list[tuple[float, float]]

PLAIN = Path(__file__).parent / "results" / "plain_learning.json"
"""The curve that `plain_learning.py` writes."""
LOSSES = {"policy_loss": "-", "value_loss": "--"}
"""Line styles of the losses."""
STOPPED_S = 60.0
"""A run whose workers report nothing for so many seconds is stopped; that time does not count."""
MINUTES = (1, 2, 5, 10, 20, 60, 120)
"""Ticks of the axis of time, which is logarithmic."""


def curves(metrics: Path) -> dict[str, Curve]:
    """(minutes of the run since the first line, value) of each metric."""
    found: dict[str, Curve] = {}
    seconds, before = 0.0, None
    for line in metrics.read_text().splitlines():
        report = json.loads(line)
        passed = 0.0 if before is None else report["t"] - before
        seconds, before = seconds + (passed if passed < STOPPED_S else 0.0), report["t"]
        for name, value in report["metrics"].items():
            if value is not None:
                found.setdefault(name, []).append((seconds / 60.0, value))
    return found


def draw(workdirs: Sequence[Path], target: Path) -> None:
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
    plain = [(point["minutes"], point["keeps_value"]) for point in json.loads(PLAIN.read_text())["curve"]]
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


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("workdirs", type=Path, nargs="+", metavar="workdir")
    arguments = parser.parse_args()
    draw(arguments.workdirs, arguments.target)


if __name__ == "__main__":
    main()
