r"""Puts the newest snapshot of a run into the package, as `zoo:NAME`, with the metrics of its training and a card.

uv run --group dev python benchmarks/zoo_agent.py runs/tic_tac_toe tic_tac_toe --command "podzero train tic_tac_toe" \
    --hardware "2 cores of an AMD EPYC (Zen 5), no accelerator" --judged "400 of 400 games drawn against the solver"
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from podzero.config import Experiment, MLPConfig, MuZeroMLPConfig, ResNetConfig
from podzero.files.workdir import Workdir
from podzero.networks.snapshots import load_snapshot, save_snapshot, snapshot_steps
from podzero.runtime.monitoring.reports import merge_metrics
from podzero.runtime.monitoring.status import read_status

ZOO = Path(__file__).resolve().parents[1] / "podzero" / "zoo"
_SECONDS = 60
"""Reports of a worker within this time become one line."""
_DIGITS = 4


def main() -> None:
    """Writes `podzero/zoo/NAME`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--command", required=True, help="the command that trained it")
    parser.add_argument("--hardware", required=True)
    parser.add_argument("--judged", required=True, nargs="+", help="sentences with figures")
    arguments = parser.parse_args()
    run, agent = Workdir(arguments.run), Workdir(ZOO / arguments.name)
    shutil.rmtree(agent.root, ignore_errors=True)
    step = max(snapshot_steps(run.snapshots))
    # The card's command says what a run began with; its path means nothing elsewhere.
    alone = run.experiment().model_copy(update={"init_from": None})
    save_snapshot(agent.snapshots, step, load_snapshot(run.snapshots, step).params, alone)
    stored = run.experiment_file.read_text(encoding="utf-8")
    agent.experiment_file.write_text(re.sub(r"^init_from: .*", "init_from: null", stored, flags=re.M), encoding="utf-8")
    with run.metrics_file.open(encoding="utf-8") as lines, agent.metrics_file.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in thinned(map(json.loads, lines)))
    told = {"command": arguments.command, "hardware": arguments.hardware, "judged": arguments.judged}
    card = {**_card(run), **told}
    (agent.root / "card.yaml").write_text(yaml.safe_dump(card, sort_keys=False, width=200), encoding="utf-8")
    size = sum(file.stat().st_size for file in agent.root.rglob("*") if file.is_file())
    print(f"{agent.root}: step {step:,}, {size / 1e6:.1f} MB")


def thinned(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Merges the reports of each worker within a minute into one line."""
    last: dict[str, dict[str, Any]] = {}
    for line in lines:
        held = last.get(line["worker"])
        if held is not None and line["t"] - held["t"] < _SECONDS:
            held["metrics"] = merge_metrics(held["metrics"], line["metrics"])
            held["step"] = line["step"]
            continue
        if held is not None:
            yield _rounded(held)
        last[line["worker"]] = line
    yield from map(_rounded, last.values())


def _rounded(line: dict[str, Any]) -> dict[str, Any]:
    metrics = {name: float(f"{value:.{_DIGITS}g}") for name, value in line["metrics"].items()}
    return {"t": round(line["t"]), "step": line["step"], "worker": line["worker"], "metrics": metrics}


def _card(run: Workdir) -> dict[str, Any]:
    experiment, stored = run.experiment(), read_status(run)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, encoding="utf-8", cwd=ZOO.parent
    ).stdout.strip()
    return {
        "game": experiment.env.title,
        "network": _network(experiment),
        "commit": commit,
        "date": str(date.today()),
        "hours": round(stored.status.elapsed_s / 3600, 2),
        "games": stored.status.games,
    }


def _network(experiment: Experiment) -> str:
    match experiment.network:
        case ResNetConfig() as net:
            more = ", auxiliary heads" if net.auxiliary else ""
            return f"ResNet, {net.channels} channels, {net.blocks} blocks{more}"
        case MLPConfig() | MuZeroMLPConfig() as net:
            return f"multilayer perceptrons ({net.name})"
        case net:
            return net.name


if __name__ == "__main__":
    main()
