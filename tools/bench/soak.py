"""The stage `soak`: a real run for a long time, of which memory, descriptors, threads, disk and time are recorded."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import psutil

from podzero.config import load
from podzero.runtime.monitoring.status import RunStatus
from podzero.tools.bench.child_run import ChildRun, closes
from podzero.tools.bench.faults import WORKERS, Disturber, Fault, summary

log = logging.getLogger(__name__)

MINUTES = 120.0
SAMPLE_S, MOST_SAMPLES = 5.0, 5_000
"""Time between two samples, more for a run that would have too many: two minutes for a week."""
PRODUCTIVE = ("training",)
"""Causes of `goodput.CAUSES` that count as goodput at any time: training that no restart took back."""
BY_DESIGN = ("wait_actors", "wait_replay")
"""Causes that count while no fault is open: a learner that is faster than its actors waits for them, as
`replay.samples_per_insert` asks for. While the run recovers from a kill they do not count."""
WARM_UP_S = 900.0
"""The longest time that is left out of slopes, a quarter of the run at most: programs are compiled, replay fills."""
_WEEK_H = 168.0
_MOST_FITTED = 400
"""Slopes are fitted to at most so many samples, evenly chosen."""
_KEPT = 60
"""Values of each series in the result."""
_PROGRESS_S = 60.0
_EARLY_S, _LATE_S = 60.0, 900.0
"""A run that ends so long before its limit has failed; one that has not ended so long after it is stopped."""
GROWING = ("metrics", "tensorboard", "logs", "games")
"""Parts of the disk that record the run and grow with it; slopes tell by how much."""


class Sample(NamedTuple):
    """What a run used at one moment: seconds since its start, quantities by name, and its status if it has one."""

    t: float
    values: Mapping[str, float]
    status: RunStatus | None
    open_faults: bool


def bench_soak(
    config: str, overrides: Sequence[str], workdir: Path, seed: int, minutes: float | None, kill_every: float | None
) -> dict[str, Any]:
    """Trains for `minutes`, by default `MINUTES`, and kills a random worker every `kill_every` minutes.

    Returns:
      `goodput`, the share of wall time, from the start of the command to its end, in `PRODUCTIVE` and `BY_DESIGN`;
      `training`, that in `PRODUCTIVE` alone; `pace`, the kept learner steps over what the median rate would have made
      in the whole time; `paid_s` as `podzero status` tells them; `slopes`, see `fit`; `flat`, whether all of them are;
      `recovery` by kind; the ledger; exit code, processes left behind, and the schedule of kills.
    """
    minutes = minutes or MINUTES
    faults = list(kills(minutes, kill_every, seed))
    limits = (
        f"stop.hours={minutes / 60:g}",
        f"stop.minutes={minutes:g}",
        "stop.steps=null",
        "evaluation.final_minutes=0",
    )
    log.info("training %s for %g minutes in %s", config, minutes, workdir)
    with closing(ChildRun(config, [*limits, *overrides], workdir)) as run:
        run.start()
        disturber = Disturber(run, load(config, overrides), faults, seed)
        samples = _watch(run, disturber, 60 * minutes)
        disturber.close()
        code = run.stop()
        wall_s, left = time.time() - disturber.start_t, run.left()
        final = run.final_status()
    return {
        **goodput(samples, final["paid_s"], wall_s),
        "step": final["step"],
        "wall_s": round(wall_s, 1),
        **slopes(samples),
        "kills": len(disturber.done),
        "not_done": len(disturber.undone) + len(disturber.waiting),
        "recovery": summary(disturber.done),
        "ledger": closes(final),
        "restarts": final["restarts"],
        "exit_code": code,
        "unexpected_exits": disturber.exits,
        "left_behind": left,
        "seed": seed,
        "minutes": minutes,
        "kill_every_minutes": kill_every,
        "schedule": [fault.to_json(disturber.began_t) for fault in disturber.done],
        "series": series(samples),
    }


def kills(minutes: float, every: float | None, seed: int) -> Iterable[Fault]:
    """A kill of a random worker every so many minutes, the first after this time."""
    rng = random.Random(seed)
    for number in range(1, math.ceil(minutes / every) if every else 1):
        yield Fault(60 * every * number if every else 0.0, rng.choice(WORKERS))


def _watch(run: ChildRun, disturber: Disturber, seconds: float) -> list[Sample]:
    """Samples a run until it ends by its limit of time."""
    samples, due, told, start_t = list[Sample](), 0.0, time.time(), disturber.start_t
    while (lasted := time.time() - disturber.start_t) < seconds + _LATE_S:
        if run.exit_code is not None and lasted > seconds - _EARLY_S:
            break
        disturber.advance()
        if disturber.start_t != start_t:  # the attempt before has failed
            start_t = disturber.start_t
            samples.clear()
        if (now := time.time()) >= due:
            due = now + max(SAMPLE_S, seconds / MOST_SAMPLES)
            samples.append(Sample(now - disturber.start_t, used(run), run.status(), bool(disturber.waiting)))
            write_sample(samples[-1], run.workdir.root.with_name(f"{run.workdir.root.name}.samples.jsonl"))
            if (status := samples[-1].status) is not None and now - told >= _PROGRESS_S:
                told = now
                log.info("%s, step %d, %d restarts", status.phase, status.step, status.restarts)
        time.sleep(0.5)
    return samples


def write_sample(sample: Sample, path: Path) -> None:
    """Appends a sample as a line of JSON, so that a soak that is cut off has not been in vain."""
    status = None if sample.status is None else json.loads(sample.status.to_json())
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(sample._asdict() | {"status": status}) + "\n")


def used(run: ChildRun) -> dict[str, float]:
    """What all processes of a kind use, and bytes of disk, by name: `KIND rss_bytes`, `workdir PART bytes`."""
    found: dict[str, float] = defaultdict(float)
    for kind, processes in run.processes().items():
        for process in processes:
            with suppress(psutil.Error), process.oneshot():
                memory, descriptors, threads = process.memory_info(), process.num_fds(), process.num_threads()
                found[f"{kind} processes"] += 1
                found[f"{kind} rss_bytes"] += memory.rss
                found[f"{kind} anonymous_bytes"] += memory.rss - memory.shared  # no pages of files, no object store
                found[f"{kind} descriptors"] += descriptors
                found[f"{kind} threads"] += threads
    for name in ("rss_bytes", "anonymous_bytes", "descriptors", "threads"):
        found[f"all {name}"] = sum(value for key, value in found.items() if key.endswith(f" {name}"))
    for path in [path for path in run.workdir.root.glob("*") if not path.name.startswith(".")]:
        found[f"workdir {part_of(path.name)} bytes"] += disk_bytes(path)
    logs = sum(disk_bytes(folder / "logs") for folder in run.ray_folders())
    found |= {"ray's logs bytes": logs, "ray's folder bytes": sum(map(disk_bytes, run.ray_folders())) - logs}
    return dict(found)


def part_of(name: str) -> str:
    """The part of a working directory to which a file or folder belongs."""
    if name in ("checkpoints", "snapshots", "published", "tensorboard", "games"):
        return name
    return "metrics" if name.startswith("metrics") else "logs" if name.startswith("train.log") else "rest"


def disk_bytes(path: Path) -> int:
    """Bytes of a file, or of all files below a folder, on disk. Files may vanish meanwhile."""
    total = 0
    with suppress(OSError):
        if not path.is_dir():
            return path.lstat().st_blocks * 512
        with os.scandir(path) as entries:
            for entry in entries:
                total += disk_bytes(Path(entry.path))
    return total


def goodput(samples: Sequence[Sample], paid_s: Mapping[str, float], wall_s: float) -> dict[str, Any]:
    """The shares of wall time; see `bench_soak`."""
    waited, in_faults, rates = 0.0, 0.0, list[float]()
    for sample in samples:
        if sample.status is None or not sample.status.paid_s:
            continue
        now = sum(sample.status.paid_s[cause] for cause in BY_DESIGN)
        in_faults += max(0.0, now - waited) if sample.open_faults else 0.0
        waited = now
        if sample.status.steps_per_s and not sample.open_faults:
            rates.append(sample.status.steps_per_s)
    trained = sum(paid_s[cause] for cause in PRODUCTIVE)
    by_design = max(0.0, sum(paid_s[cause] for cause in BY_DESIGN) - in_faults)
    step = max((sample.status.step for sample in samples if sample.status), default=0)
    return {
        "goodput": round((trained + by_design) / wall_s, 4),
        "goodput_of": f"wall time in {', '.join(PRODUCTIVE)}, and while no fault was open in {', '.join(BY_DESIGN)}",
        "training": round(trained / wall_s, 4),
        "pace": round(step / (median(rates) * wall_s), 4) if rates else None,
        "paid_s": {cause: round(seconds, 1) for cause, seconds in paid_s.items()},
    }


def slopes(samples: Sequence[Sample]) -> dict[str, Any]:
    """`slopes` after the warm-up by quantity, and `flat`, whether all are but those of `GROWING`."""
    warm_s = min(WARM_UP_S, samples[-1].t / 4) if samples else 0.0
    names = sorted({name for sample in samples for name in sample.values if not name.endswith(" processes")})
    found = {}
    for name in names:
        points = [(sample.t, sample.values[name]) for sample in samples if sample.t > warm_s and name in sample.values]
        if len(points) > 10:
            found[name] = fit(points)
    judged = {name: one for name, one in found.items() if not any(part in name for part in GROWING)}
    return {
        "flat": all(one["flat"] for one in judged.values()),
        "not_flat": [name for name, one in judged.items() if not one["flat"]],
        "warm_up_s": warm_s,
        "slopes": found,
    }


def fit(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """The Theil-Sen slope per hour with its 95% interval; `points` are times in seconds, and values.

    It is flat if a week at this slope adds less than the median `level`, or if the interval holds no growth at all.
    """
    from scipy.stats import theilslopes

    chosen = np.asarray(points)[:: max(1, math.ceil(len(points) / _MOST_FITTED))]
    slope, _, low, high = theilslopes(chosen[:, 1], chosen[:, 0] / 3600)
    level = float(np.median(chosen[:, 1]))
    flat = bool(low <= 0 or slope * _WEEK_H < level)
    return {"per_hour": float(slope), "low": float(low), "high": float(high), "level": level, "flat": flat}


def series(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """Each quantity at `_KEPT` evenly chosen times, which are `seconds`; 0 where it was missing."""
    chosen = samples[:: max(1, math.ceil(len(samples) / _KEPT))]
    names = sorted({name for sample in chosen for name in sample.values})
    rows = {name: [round(sample.values.get(name, 0.0)) for sample in chosen] for name in names}
    steps = [sample.status.step if sample.status else 0 for sample in chosen]
    return {"seconds": [round(sample.t, 1) for sample in chosen], "step": steps, **rows}
