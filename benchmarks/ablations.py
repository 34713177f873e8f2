"""Trains variants of an experiment one after the other, each by `podzero sweep`. A perfect solver judges each run.

uv run --group dev python benchmarks/ablations.py --minutes 10 runs/ablations
uv run --group dev python benchmarks/ablations.py --minutes 10 --also actors.inference=int8 -- runs/ablations
uv run --group dev python benchmarks/ablations.py --steps 2000 --only baseline greedy -- runs/ablations

If each run uses one core, several may run at once, each with its own folder and variants (`--only`).

Each result is added to `benchmarks/results/ablations.json`; variants that are there already are not run again, and an
interrupted sweep goes on. Agents stay in the folder, so they can be judged again. Runs that fail are named at the end.
`uv run --group dev python benchmarks/pages.py` writes docs/ablations.md from the results.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

Json = dict[str, Any]

EXPERIMENT = "connect_four"
GAVE_UP = 1
"""The exit code of a sweep of which some runs failed; its results are complete."""
POSITIONS = "distinct"
"""How the judged positions are drawn. The file also has results from positions that were drawn with repetition."""
RESULTS = Path(__file__).parent / "results" / "ablations.json"
SHORT_AND_GREEDY = (
    "actors.opening_plies=12", "actors.temperature=0.0", "search.root_value=policy", "actors.root_value_weight=0.5",
)  # fmt: skip
BOOTSTRAP = ("search.root_value=policy", "actors.root_value_weight=0.0")
VARIANTS: dict[str, tuple[str, ...]] = {
    "baseline": (),
    "root_value: action": ("search.root_value=action",),
    "root_value: network": ("search.root_value=network",),
    "q_scale: tree": ("search.q_scale=tree",),
    "q_scale: bounds": ("search.q_scale=bounds", "search.value_scale=1.0"),
    "puct": ("search.algorithm=puct",),
    "play in float32": ("actors.inference=local",),
    "training in float32": ("learner.cpu_convolutions=xla",),
    "no evaluation cache": ("actors.cache_mib=0",),
    "greedy": ("actors.temperature=0.0",),
    "greedy after 6 plies": ("actors.temperature_plies=6",),
    "outcome alone": ("actors.root_value_weight=0.0",),
    "root_value: policy": ("search.root_value=policy",),
    "root_value: policy, weight 0.6": ("search.root_value=policy", "actors.root_value_weight=0.6"),
    "lambda 0.9": (*BOOTSTRAP, "actors.td_lambda=0.9"),
    "lambda 0.7": (*BOOTSTRAP, "actors.td_lambda=0.7"),
    "lambda 0.4": (*BOOTSTRAP, "actors.td_lambda=0.4"),
    "lambda 0.7, openings of 12 plies": (*BOOTSTRAP, "actors.td_lambda=0.7", "actors.opening_plies=12"),
    "lambda 0.7, root value mean": (*BOOTSTRAP, "actors.td_lambda=0.7", "search.root_value=mean"),
    "lambda 0.7, scale bounds": (*BOOTSTRAP, "actors.td_lambda=0.7", "search.q_scale=bounds", "search.value_scale=1.0"),
    "fewer random openings": ("actors.opening_fraction=0.5",),
    "openings of 12 plies": ("actors.opening_plies=12",),
    "short and greedy, policy 0.5": SHORT_AND_GREEDY,
    "short and greedy, policy 0.9": (*SHORT_AND_GREEDY, "actors.root_value_weight=0.9"),
    "short and greedy, action 0.9": (*SHORT_AND_GREEDY, "search.root_value=action", "actors.root_value_weight=0.9"),
    "short and greedy, lambda 0.7": (*SHORT_AND_GREEDY, "actors.td_lambda=0.7"),
    "short and greedy, policy 0.5, noise 0.25": (*SHORT_AND_GREEDY, "actors.noise=0.25"),
    "short and greedy, policy 0.5, 64 simulations": (*SHORT_AND_GREEDY, "search.simulations=64"),
    "auxiliary heads": ("network.auxiliary=true",),
    "global pooling": ("network.global_pooling=true", "learner.cpu_convolutions=xla"),
    "replay ratio 2": ("replay.samples_per_insert=2",),
    "large replay": ("replay.capacity=300000",),
    "small replay": ("replay.capacity=30000",),
    "network 48x4": ("network.channels=48", "network.blocks=4"),
    "network 64x5": ("network.channels=64", "network.blocks=5"),
    "network 96x6": ("network.channels=96", "network.blocks=6"),
    "half the learning rate": ("learner.optimizer.learning_rate=0.001",),
    "twice the learning rate": ("learner.optimizer.learning_rate=0.004",),
    "constant learning rate": ("learner.optimizer.schedule=constant",),
}
"""The overrides of each variant."""


def main() -> None:
    """Runs the variants that are missing from the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the runs go")
    limited = parser.add_mutually_exclusive_group(required=True)
    limited.add_argument("--minutes", type=float, help="equal wall time")
    limited.add_argument("--steps", type=int, help="equal learner steps, for machines that do other work")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--also", nargs="*", default=[], metavar="SECTION.FIELD=VALUE", help="overrides of all variants"
    )
    parser.add_argument("--only", nargs="*", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    arguments = parser.parse_args()
    by_time = arguments.minutes is not None
    limit = f"stop.minutes={arguments.minutes:g}" if by_time else f"stop.steps={arguments.steps}"
    more = () if by_time else ("stop.minutes=600",)
    failed = []
    for name in arguments.only:
        chosen, limits = (*arguments.also, *VARIANTS[name]), (limit, *more)
        overrides = {seed: (*chosen, f"seed={seed}", *limits) for seed in range(arguments.seeds)}
        keys = {seed: " ".join([*settings, POSITIONS]) for seed, settings in overrides.items()}
        for seed in (seed for seed, key in keys.items() if key not in stored()):
            # A sweep of each seed: its folder stays the same, whichever others are missing, so that it goes on.
            folder = arguments.folder / f"{''.join(c if c.isalnum() else '_' for c in name)}_{seed}"
            try:
                trained = sweep(folder, overrides[seed])
                if trained["state"] == "finished":
                    settings = {"variant": name, "also": arguments.also, "seed": seed, "limit": limit}
                    store(keys[seed], settings | judged(folder / trained["name"], overrides[seed]))
                else:
                    failed.append(f"{name}, seed {seed}: {trained['state']}")
            except subprocess.CalledProcessError as error:
                failed.append(f"{name}, seed {seed}: exit status {error.returncode}")
    if failed:
        sys.exit("\n".join(["these runs failed:", *failed]))


def sweep(folder: Path, overrides: Sequence[str]) -> Json:
    """Trains one variant with one seed; returns what `podzero sweep --json` says of the run.

    Raises:
      CalledProcessError: the sweep could not be started; its errors are on the screen.
    """
    asked = ("sweep", EXPERIMENT, *overrides, "--to", str(folder), "--parallel", "1", "--json")
    try:
        output = podzero(*asked)
    except subprocess.CalledProcessError as error:
        if error.returncode != GAVE_UP:
            raise
        output = error.stdout
    run: Json = json.loads(output)["runs"][0]
    return run


def judged(workdir: Path, overrides: Sequence[str]) -> Json:
    """What a run has done and how it is judged; deletes its checkpoints, which hold the replay.

    Raises:
      CalledProcessError: a command failed; its errors are on the screen.
    """
    shutil.rmtree(workdir / "checkpoints", ignore_errors=True)
    status = json.loads(podzero("status", str(workdir), "--json"))
    diagnose = str(Path(__file__).with_name("diagnose.py"))
    diagnosis = python(diagnose, str(workdir), "--only", "simulations", "--simulations", "1", "32", "512")
    return {
        "command": f"podzero train {EXPERIMENT} {' '.join(overrides)}",
        "date": str(date.today()),
        "cores": len(os.sched_getaffinity(0)),
        "steps": status["step"],
        "games": status["games"],
        "positions": POSITIONS,
        "judged": json.loads(diagnosis)["simulations"],
    }


def podzero(*arguments: str, **environment: str) -> str:
    """The output of a command of podzero, which must succeed; its errors go to the screen."""
    print("podzero", *arguments, file=sys.stderr, flush=True)
    return python("-c", "from podzero.launch.cli import main; main()", *arguments, **environment)


def python(*arguments: str, **environment: str) -> str:
    """The output of a Python process, which must succeed; its errors go to the screen."""
    variables = os.environ | {"JAX_PLATFORMS": "cpu"} | environment
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8", env=variables).stdout


def stored() -> Json:
    """The stored results, by overrides and positions."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def store(key: str, result: Json) -> None:
    """Adds a result."""
    print(json.dumps(result), file=sys.stderr, flush=True)
    temporary = RESULTS.with_suffix(".part")
    temporary.write_text(json.dumps(stored() | {key: result}, indent=1) + "\n", encoding="utf-8")
    temporary.replace(RESULTS)


if __name__ == "__main__":
    main()
