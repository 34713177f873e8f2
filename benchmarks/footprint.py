"""What a run costs: disk, time to import and to the first finished game, memory of each process.

uv run --group dev python benchmarks/footprint.py
uv run --group dev python benchmarks/footprint.py --config cartpole --minutes 3

Trains in a temporary directory and prints JSON. Run it twice, in an environment without the development tools: the
first run may create the environment of the replay server, and reads all files from disk.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import psutil

PROCESSES = {
    "driver": "podzero train",
    "learner": "ray::LearnerProcess",
    "actor": "ray::ActorProcess",
    "evaluator": "ray::EvaluatorProcess",
    "replay": "ray::ReplayProcess",
    "replay server": "reverb_server",
}
"""A part of the command line of each process of a run."""
IMPORTS = {
    "driver": "podzero.runtime.train",
    "learner": "podzero.learner",
    "actor": "podzero.actors",
    "evaluator": "podzero.evaluation",
}
"""The module that each process imports, or most of it."""
LOOK_EVERY_S = 0.05
MIB = 2**20


def main() -> None:
    """Runs the measurements that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="connect_four", help="the experiment")
    parser.add_argument(
        "--minutes", type=float, default=2.0, help="minutes of training; memory is measured near the end"
    )
    parser.add_argument("--server", type=Path, help="the environment of the replay server, to measure its size")
    options = parser.parse_args()
    disk = {"run": disk_mib(Path(sys.prefix))} | ({"replay server": disk_mib(options.server)} if options.server else {})
    with tempfile.TemporaryDirectory() as folder:
        found = _run(options.config, options.minutes, Path(folder) / "run")
    print(json.dumps(
        {"config": options.config, "python": platform.python_version(), "jax": version("jax"), "disk_mib": disk}
        | {"import_s": {name: _import_s(module) for name, module in IMPORTS.items()}} | found,
        indent=1,
    ))  # fmt: skip


def disk_mib(folder: Path) -> float:
    """MiB of a folder on disk; a file with several names counts once."""
    files = {(found.st_dev, found.st_ino): found.st_blocks * 512 for found in map(os.lstat, folder.rglob("*"))}
    return round(sum(files.values()) / MIB, 1)


def _import_s(module: str) -> float:
    """Seconds until a new interpreter has imported a module: the median of three, after one that is not counted."""
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True, env=_compiling())
        seconds.append(time.perf_counter() - start)
    return round(median(seconds[1:]), 2)


def _compiling() -> Mapping[str, str]:
    """The environment of this process, in which Python keeps compiled modules."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _run(config: str, minutes: float, workdir: Path) -> dict[str, Any]:
    """Seconds until the first games are finished, and MiB of each process near the end."""
    podzero = Path(sys.executable).with_name("podzero")
    command: list[str | Path] = [
        podzero, "train", config, "--view", "plain", f"stop.minutes={minutes:g}", "evaluation.final_minutes=0",
        "--workdir", workdir,
    ]  # fmt: skip
    start, first = time.monotonic(), None
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_compiling()) as run:
        while first is None or time.monotonic() - start < 60 * minutes - 10:
            if run.poll() is not None:
                raise SystemExit(f"the run ended too early, with exit code {run.returncode}")
            time.sleep(LOOK_EVERY_S)
            if first is None and _has_games(workdir):
                first = time.monotonic() - start
        memory = _memory(psutil.Process(run.pid))
        run.wait()
    return {"first_games_s": round(first, 1), "memory_mib": memory}


def _has_games(workdir: Path) -> bool:
    """Whether an actor has reported a finished game; they report every two seconds."""
    try:
        lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return False
    return any(json.loads(line)["metrics"].get("count/games") for line in lines if line.endswith("\n"))


def _memory(driver: psutil.Process) -> dict[str, dict[str, int]]:
    """MiB of each process: resident, and not shared with another process."""
    found: dict[str, dict[str, int]] = {}
    for process in (driver, *driver.children(recursive=True)):
        try:
            command, memory = " ".join(process.cmdline()), process.memory_full_info()
        except psutil.NoSuchProcess:
            continue
        for name, part in PROCESSES.items():
            if part in command:
                found[name] = {"resident": round(memory.rss / MIB), "own": round(memory.uss / MIB)}
    return found


if __name__ == "__main__":
    main()
