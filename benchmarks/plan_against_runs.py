"""Holds `podzero plan` against real runs on this machine: 1, 2 and 4 actors, a slow node, and a stand-in for a chip.

uv run --group dev python benchmarks/plan_against_runs.py FOLDER [--minutes 1.5] [--hardware "2 cores"] [--store]

The plan is given what the run of one actor tells, and for the chip what the TPU compiler says. The machine must have
nothing else to do: some 12 minutes. `--store` writes `benchmarks/results/plan.json`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import threading
import time
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import psutil

from podzero.benchmarks.paired import podzero
from podzero.config import load
from podzero.files.workdir import Workdir
from podzero.runtime.monitoring.status import read_status
from podzero.tools.plan.cli import system_of
from podzero.tools.plan.rates import find_rates
from podzero.tools.plan.simulation import simulate

RESULTS = Path(__file__).parent / "results" / "plan.json"
SMALL = ("connect_four", "actors.cpus=0.4", "evaluation.every_minutes=600", "evaluation.final_minutes=0")
"""Four actors fit on two cores, beside a learner that trains on both."""
CHIP = ("connect_four", "actors.inference=device", "actors.games=1024")
SLICE = "v5e-1"
SLOW = 0.5
"""The share of its time in which the slow node works."""
PERIOD_S = 0.2
"""How often it is stopped."""


def main() -> None:
    """Makes the runs that the options ask for, and prints what was measured, what was planned, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the runs go")
    parser.add_argument("--minutes", type=float, default=1.5, help="minutes of training of each run")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of the loop with the stand-in")
    parser.add_argument("--hardware", default="2 cores", help="this machine")
    parser.add_argument(
        "--only", nargs="*", choices=("1", "2", "4", "slow", "chip"), default=["1", "2", "4", "slow", "chip"]
    )
    parser.add_argument("--store", action="store_true", help="write the results")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for case in options.only:
        compared = against_chip(options) if case == "chip" else against_run(case, options)
        found[case] = compared | {"ratio": compared["planned"] / compared["measured"]}
        print(json.dumps({case: found[case]}), flush=True)
    if options.store:
        command = (
            f"uv run --group dev python benchmarks/plan_against_runs.py FOLDER --minutes {options.minutes:g} --store"
        )
        result = {"command": command, "date": date.today().isoformat(), "hardware": options.hardware, "result": found}
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def against_run(case: str, options: argparse.Namespace) -> dict[str, Any]:
    """Learner steps/s of a run with so many actors, or of two of which one is slow; the limiter ties moves to them."""
    settings = (*SMALL, f"actors.count={2 if case == 'slow' else case}", f"stop.minutes={options.minutes}")
    workdir = options.folder / case
    shutil.rmtree(workdir, ignore_errors=True)
    ended = threading.Event()
    slowing = threading.Thread(target=slow_down, args=(ended,), daemon=True)
    if case == "slow":
        slowing.start()
    try:
        podzero("train", *settings, "--workdir", str(workdir), "--view", "plain")
    finally:
        ended.set()
    status = read_status(Workdir(workdir)).status
    experiment = load(settings[0], settings[1:])
    rates = find_rates(experiment, [str(options.folder / "1")])
    system = system_of(experiment, rates, 1)
    if case == "slow":
        (both,) = system.nodes
        one = both._replace(number=1)
        slow = one._replace(moves_per_s=SLOW * one.moves_per_s, threads=SLOW * one.threads)
        system = system._replace(nodes=[one, slow])
    outcome = simulate(system, system.start_s + 60 * options.minutes)
    return {
        "measured": status.step / status.elapsed_s, "planned": outcome["steps_per_s"],
        "rates": rates._asdict(), "shares": status.shares,
    }  # fmt: skip


def slow_down(ended: threading.Event) -> None:
    """Stops one actor's process for a part of each period, once it plays, until `ended`."""
    slow = None
    while not ended.wait(SLOW * PERIOD_S):
        if slow is None or not slow.is_running():
            slow = next(iter(actors()), None)
            continue
        with suppress(psutil.NoSuchProcess):
            slow.suspend()
            time.sleep((1 - SLOW) * PERIOD_S)
            slow.resume()


def actors() -> list[psutil.Process]:
    """The processes of actors below this one."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any("ray::ActorProcess" in part for part in child.cmdline()):
                found.append(child)
    return found


def against_chip(options: argparse.Namespace) -> dict[str, Any]:
    """Moves/s of the loop whose programs sleep as long as the chip takes."""
    reports = []
    for program in ("learner", "device"):
        report = options.folder / f"{program}.json"
        report.write_text(
            podzero("compile", *CHIP, "--topology", SLICE, "--program", program, "--json"), encoding="utf-8"
        )
        reports += ["--rates", str(report)]
    plan = json.loads(podzero("plan", *CHIP, "--slice", SLICE, "--hours", "0.1", *reports, "--json"))
    overrides = ("--config", *CHIP, "--stand-in", SLICE, "--seconds", str(options.seconds), "--json")
    loop = json.loads(podzero("bench", "loop", *overrides))
    return {"measured": loop["moves_per_s"], "planned": plan["moves_per_s"], "cores": loop["cores"]}


if __name__ == "__main__":
    main()
