"""Trains connect four for the same steps with each `actors.inference`. A perfect solver judges each agent.

uv run --group dev python benchmarks/placements.py runs/placements

`device` runs on two emulated devices, which share games and batches. In int8, which is for TPUs, CPUs compute the same
sums in float32. Each result is added to `benchmarks/results/placements.json`;
`uv run --group dev python benchmarks/pages.py` writes docs/performance.md from them.
"""

from __future__ import annotations

import argparse
import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

from podzero.benchmarks.paired import podzero

RESULTS = Path(__file__).parent / "results" / "placements.json"
TWO_ACTORS = ("actors.count=2", "actors.games=64", "actors.cpus=1")
SERVER = (*TWO_ACTORS, "actors.inference=server", "server.batch_sizes=[8,16,32,64]")
DEVICE = ("actors.inference=device", "actors.games=128")
PLACEMENTS: dict[str, tuple[str, ...]] = {
    "local": TWO_ACTORS,
    "server": SERVER,
    "server in int8": (*SERVER, "int8.on_tpu=true"),
    "device": DEVICE,
    "device in int8": (*DEVICE, "int8.on_tpu=true"),
}
"""The overrides of `connect_four` for each placement."""
EMULATED = dict.fromkeys(("device", "device in int8"), "--xla_force_host_platform_device_count=2")
"""The XLA_FLAGS of a placement."""


def main() -> None:
    """Trains and judges the placements that are missing from the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the runs go")
    parser.add_argument("--steps", type=int, default=1000, help="learner steps of each placement")
    parser.add_argument("--positions", type=int, default=1000, help="the positions that the solver judges")
    parser.add_argument("--hardware", default="2 cores", help="this machine, for the page")
    parser.add_argument("--only", nargs="*", choices=PLACEMENTS, default=list(PLACEMENTS), metavar="PLACEMENT")
    arguments = parser.parse_args()
    for name in arguments.only:
        stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        found = run(name, arguments.folder / name, arguments.steps, arguments.positions)
        stored[name] = found | {"hardware": arguments.hardware}
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(stored[name]), flush=True)


def run(name: str, workdir: Path, steps: int, positions: int) -> dict[str, Any]:
    """Trains one placement from scratch and judges it."""
    shutil.rmtree(workdir, ignore_errors=True)
    unjudged = ("evaluation.every_minutes=60", "evaluation.final_minutes=0")
    overrides = (*PLACEMENTS[name], f"stop.steps={steps}", "stop.minutes=30", *unjudged)
    flags = {"XLA_FLAGS": EMULATED[name]} if name in EMULATED else {}
    podzero("train", "connect_four", "--workdir", str(workdir), "--view", "plain", *overrides, **flags)
    status = json.loads(podzero("status", str(workdir), "--json"))
    judged = json.loads(
        podzero("evaluate", str(workdir), "--positions", str(positions), "--simulations", "32", "--json")
    )
    return {
        "command": f"podzero train connect_four {' '.join(overrides)}",
        "flags": EMULATED.get(name),
        "date": str(date.today()),
        "steps": status["step"],
        "seconds": status["elapsed_s"],
        "keeps_value": judged["keeps_value"],
        "interval": judged["interval"],
        "positions": judged["positions"],
    }


if __name__ == "__main__":
    main()
