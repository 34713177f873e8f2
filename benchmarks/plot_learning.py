"""Draws the learning curve of a run from its metrics.

uv run python benchmarks/plot_learning.py runs/connect_four docs/connect_four.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

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


def draw(workdir: Path, target: Path) -> None:
    """Draws the agent's skill above and the learner's losses below."""
    found = curves(workdir / "metrics.jsonl")
    figure, (skill, loss) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, height_ratios=(3, 2))
    if keeps := found.get("evaluation/keeps_value"):
        skill.plot(*zip(*keeps, strict=True), "o-", color="tab:blue", label="moves that keep the game's value")
        skill.set_ylim(0.3, 1.0)
    skill.set_ylabel("share")
    if elo := found.get("evaluation/elo"):
        ratings = skill.twinx()
        errors = [error for _, error in found["evaluation/elo_error"]]
        minutes, values = zip(*elo, strict=True)
        ratings.errorbar(minutes, values, yerr=errors, fmt="s--", color="tab:orange", alpha=0.7, label="Elo")
        ratings.set_ylabel("Elo (random = 0)")
        ratings.legend(loc="lower right")
    skill.legend(loc="upper left")
    for name, label in (("learner/policy_loss", "policy loss"), ("learner/value_loss", "value loss")):
        loss.plot(*zip(*found[name], strict=True), label=label)
    loss.set_xlabel("minutes")
    loss.set_ylabel("loss")
    loss.legend()
    figure.suptitle(Workdir(workdir).experiment().name)
    figure.tight_layout()
    figure.savefig(target, dpi=110)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workdir", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    draw(arguments.workdir, arguments.target)


if __name__ == "__main__":
    main()
