"""The stage `chaos`: kills and stops of every kind of process at random times in one real run."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from podzero.config import load
from podzero.tools.bench.child_run import ChildRun, closes
from podzero.tools.bench.faults import Disturber, schedule, summary

log = logging.getLogger(__name__)

KILLS = {
    "actor": 100, "replay": 20, "learner": 20, "server": 10, "evaluator": 10, "store": 10, "directory": 5, "raylet": 5,
    "head": 5, "driver": 10,
}  # fmt: skip
"""Kills by kind, of two hours."""
STOPS = {
    "actor": (3, 60.0), "replay": (3, 60.0), "learner": (3, 60.0), "server": (3, 60.0), "evaluator": (2, 60.0),
    "store": (2, 60.0), "directory": (2, 60.0), "driver": (2, 60.0), "raylet": (1, 8.0), "head": (1, 8.0),
}  # fmt: skip
"""The number of stops by kind, and the seconds of the longest. Ray gives up a silent node after some 15 s."""
QUICK = {"actor": 2, "server": 1, "learner": 1, "store": 1, "driver": 1}
"""Kills of the quick schedule."""
FULL_MINUTES, QUICK_MINUTES = 120.0, 1.0
SMALL = (
    "network.channels=4", "network.blocks=1", "search.simulations=4", "actors.count=2", "actors.games=16",
    "actors.cpus=1", "replay.min_size=64", "replay.capacity=2000", "replay.samples_per_insert=8",
    "replay.tolerance=128", "learner.batch_size=16", "learner.publish_every=8", "checkpoint.learner_minutes=0.25",
    "checkpoint.every_minutes=0.5", "evaluation.every_minutes=0.2", "evaluation.games=2", "evaluation.final_minutes=0",
    "stop.minutes=6000",
)  # fmt: skip
"""Settings of the run, which the user's follow: small programs, and often a checkpoint and an evaluation."""
_LONGER = 3.0
"""Faults wait for the recovery of their kind: the schedule may take so many times its length."""
_QUIET_S = 10.0
"""Training after the last recovery."""


def bench_chaos(
    config: str, overrides: Sequence[str], workdir: Path, seed: int, minutes: float | None, quick: bool
) -> dict[str, Any]:
    """Trains while processes are killed and stopped at random times.

    `minutes` shortens the schedule of `KILLS` and `STOPS`, with fewer faults in proportion, at least one of each kind.

    Returns:
      Whether the run `survived` all faults, with a closed ledger, more steps than at the last fault, and no process
      left behind; `recovery` of kills and `after_stops`, by kind; exit codes; the ledger; the schedule.
    """
    minutes = minutes or (QUICK_MINUTES if quick else FULL_MINUTES)
    share = minutes / FULL_MINUTES
    counts = QUICK if quick else {kind: max(1, round(count * share)) for kind, count in KILLS.items()}
    stops = {} if quick else {kind: (max(1, round(count * share)), s) for kind, (count, s) in STOPS.items()}
    faults, began = schedule(counts, stops, 60 * minutes, seed), time.time()
    log.info("%d faults in %g minutes, with seed %d, in %s", len(faults), minutes, seed, workdir)
    with closing(ChildRun(config, [*SMALL, *overrides], workdir)) as run:
        run.start()
        disturber = Disturber(run, load(config, [*SMALL, *overrides]), faults, seed)
        end = began + 60 * minutes * _LONGER + 600
        while time.time() < end:
            disturber.advance()
            if disturber.over:
                end = min(end, time.time() + _QUIET_S)
            time.sleep(0.5)
        disturber.close()
        stopping = time.time()
        code = run.stop()
        stop_s, left = time.time() - stopping, run.left()
        final = run.final_status()
    done = [*disturber.done, *disturber.waiting]
    last = max((fault.step for fault in done), default=0)
    ledger = closes(final)
    unexpected = [end for end in disturber.exits if end["after"] not in ("raylet", "head")]
    survived = sum(fault.survived for fault in done)
    return {
        "survived": survived == len(faults) and ledger == "closes" and not unexpected and not left,
        "faults": len(faults),
        "survived_faults": survived,
        "not_done": len(disturber.undone),
        "recovery": summary([fault for fault in done if not fault.stop_s]),
        "after_stops": summary([fault for fault in done if fault.stop_s]),
        "ledger": ledger,
        "step": final["step"],
        "step_at_last_fault": last,
        "exit_code": code,
        "stop_s": round(stop_s, 1),
        "exits": disturber.exits,
        "unexpected_exits": unexpected,
        "left_behind": left,
        "restarts": final["restarts"],
        "wall_s": round(time.time() - began, 1),
        "seed": seed,
        "minutes": minutes,
        "settings": [*SMALL, *overrides],
        "schedule": [fault.to_json(disturber.began_t) for fault in done],
    }
