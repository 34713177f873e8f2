r"""Trains a choice beside the default in pairs of equal seeds, each run on a core of its own, and judges both.

With one core, as under `taskset -c 1`, the two runs of a pair take turns.

uv run --group dev python benchmarks/paired.py runs/muon muon connect_four learner.optimizer.name=muon --minutes 3 \
    --hardware "2 cores of an AMD EPYC (Zen 5), no accelerator; nothing beside"
uv run --group dev python benchmarks/paired.py runs/range "a range of values of 1" minatar_breakout \
    search.min_value_range=1 --minutes 15 --judge returns --seeds 3 --hardware "..."

A solver judges positions, or episodes are played to their ends. Runs that the folder holds with their judgement are not
trained again. The comparison goes to `benchmarks/results/paired.json`, from which `uv run --group dev python
benchmarks/pages.py` writes docs/ablations.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

Json = dict[str, Any]

RESULTS = Path(__file__).parent / "results" / "paired.json"
QUIET = ("evaluation.every_minutes=1000", "evaluation.final_minutes=0")
"""Overrides of both runs: matches beside a run would take time from its core."""
JUDGES = {"positions": ("--positions", "5000", "--simulations", "32"), "returns": ("--games", "100")}
"""Arguments of `podzero evaluate`."""


def main() -> None:
    """Trains and judges the pairs, and stores them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the runs go")
    parser.add_argument("choice", help="its name on the page")
    parser.add_argument("experiment")
    parser.add_argument("settings", nargs="+", metavar="SECTION.FIELD=VALUE", help="what the choice sets")
    parser.add_argument("--also", nargs="*", default=[], metavar="SECTION.FIELD=VALUE", help="overrides of both runs")
    parser.add_argument("--minutes", type=float, required=True, help="of each run")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--judge", choices=JUDGES, default="positions")
    parser.add_argument("--hardware", required=True, help="the machine, and what ran beside")
    chosen = parser.parse_args()
    shared = (*chosen.also, f"stop.minutes={chosen.minutes:g}")
    own = sorted(os.sched_getaffinity(0))
    cores = [own[0], own[1 % len(own)]]
    pairs = []
    with ThreadPoolExecutor(len(set(cores))) as pool:
        for seed in range(chosen.seeds):
            overrides = (*shared, f"seed={seed}")
            default = chosen.folder / f"default-{seed}", (chosen.experiment, *overrides)
            choice = chosen.folder / f"choice-{seed}", (chosen.experiment, *chosen.settings, *overrides)
            # The cores take turns, so that neither side has the faster one.
            runs = zip((default, choice), (cores, cores[::-1])[seed % 2], strict=True)
            waiting = [pool.submit(judged, run, overrides, chosen.judge, core) for (run, overrides), core in runs]
            first, second = (future.result() for future in waiting)
            pairs.append({"seed": seed, "default": first, "choice": second})
            print(json.dumps(pairs[-1]), flush=True)
    judges = {"positions": "5,000 positions", "returns": "100 episodes"}[chosen.judge]
    train = " ".join(["podzero train", chosen.experiment, *shared, "seed=SEED", *QUIET])
    store({
        "choice": chosen.choice,
        "setting": " ".join(chosen.settings),
        "unit": {"positions": "points", "returns": "return"}[chosen.judge],
        "on": f"`{chosen.experiment}`, {chosen.minutes:g} minutes on one core, {judges}",
        "command": f"taskset -c CORE {train}; podzero evaluate RUN {' '.join(JUDGES[chosen.judge])} --json",
        "date": str(date.today()),
        "hardware": chosen.hardware,
        "pairs": pairs,
    })  # fmt: skip


def judged(workdir: Path, overrides: Sequence[str], judge: str, core: int) -> Json:
    """Trains a run on one core and tells what it did and how it is judged; what is judged already is only read."""
    file = workdir / "judged.json"
    if not file.exists():
        shutil.rmtree(workdir, ignore_errors=True)  # of a run that was interrupted
        # Of this thread alone; the processes that it starts inherit it.
        os.sched_setaffinity(0, {core})
        podzero("train", *overrides, *QUIET, "--view", "plain", "--workdir", str(workdir))
        status = json.loads(podzero("status", str(workdir), "--json"))
        found = json.loads(podzero("evaluate", str(workdir), *JUDGES[judge], "--json"))
        score = 100 * found["keeps_value"] if judge == "positions" else found["mean_return"]
        result = {"score": round(score, 2), "learner_steps": status["step"], "games": status["games"]}
        file.write_text(json.dumps(result) + "\n", encoding="utf-8")
    judgement: Json = json.loads(file.read_text(encoding="utf-8"))
    return judgement


def podzero(*arguments: str, **environment: str) -> str:
    """The output of a command of podzero, which must succeed; its errors go to the screen."""
    print(f"podzero {' '.join(arguments)}", file=sys.stderr, flush=True)
    command = [sys.executable, "-c", "from podzero.launch.cli import main; main()", *arguments]
    variables = os.environ | {"JAX_PLATFORMS": "cpu"} | environment
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8", env=variables).stdout


def store(comparison: Json) -> None:
    """Adds a comparison."""
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))
    stored["comparisons"].append(comparison)
    temporary = RESULTS.with_suffix(".part")
    temporary.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    temporary.replace(RESULTS)


if __name__ == "__main__":
    main()
