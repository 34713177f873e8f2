"""Draws the learning curves of runs in games from their metrics, beside that of `plain_learning.py` in connect four.

uv run python benchmarks/plot_learning.py docs/connect_four.png runs/connect_four runs/connect_four_int8
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from podzero.benchmarks.plain_learning import RESULT as PLAIN
from podzero.workdir import Workdir

Curve = list[tuple[float, float]]


def curves(metrics: Path) -> dict[str, Curve]:
    """(minutes since the first line, value) of each metric."""
    found: dict[str, Curve] = {}
    start: float | None = None
    for line in metrics.read_text().splitlines():
        report = json.loads(line)
        start = report["t"] if start is None else start
        for name, value in report["metrics"].items():
            if value is not None:
                found.setdefault(name, []).append(((report["t"] - start) / 60.0, value))
    return found


def draw(workdirs: Sequence[Path], target: Path) -> None:
    """Draws the skill of each run's agent above and its losses below."""
    figure, (skill, loss) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, height_ratios=(3, 2))
    for index, workdir in enumerate(workdirs):
        found, name, color = curves(workdir / "metrics.jsonl"), Workdir(workdir).experiment().name, f"C{index}"
        if keeps := found.get("evaluation/keeps_value"):
            skill.plot(*zip(*keeps, strict=True), "o-", color=color, label=name)
        for metric, style in (("policy_loss", "-"), ("value_loss", "--")):
            label = f"{name}: {metric.replace('_', ' ')}"
            loss.plot(*zip(*found[f"learner/{metric}"], strict=True), style, color=color, label=label)
    if PLAIN.exists():  # once plain_learning.py has run
        plain = [(point["minutes"], point["keeps_value"]) for point in json.loads(PLAIN.read_text())["curve"]]
        skill.plot(*zip(*plain, strict=True), "o:", color="gray", label="plain pgx and mctx")
    skill.set_ylim(0.5, 1.0)
    skill.set_ylabel("moves that keep the game's value")
    skill.legend(loc="lower right")
    loss.set_xlabel("minutes")
    loss.set_ylabel("loss")
    loss.legend()
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
