"""The measured parts of docs/performance.md about inference servers, and what a slice asks of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from podzero.markdown import Row, table

Json = Mapping[str, Any]


def machine(measured: Json) -> str:
    """The processor of a measurement, in few words; every one has two cores and no accelerator."""
    found = re.search(r"(AMD|Intel) (EPYC|Xeon)(?: \((Zen \d)\)| (with AMX))?", measured["hardware"])
    assert found is not None, measured["hardware"]
    return " ".join(word for word in found.groups() if word)


def serving(benches: Mapping[str, Json], transports: Json, placements: Mapping[str, Json]) -> list[str]:
    """The tables of servers and of training with each placement, and the ways between two processes.

    Args:
      benches: what `podzero bench server` printed, by name.
      transports: what `benchmarks/transports.py` printed.
      placements: what `benchmarks/placements.py` wrote.
    """
    header = ("experiment", "actors", "positions/s", "of the chip", "of the bare transport", "measured")
    ways = transports["result"]["ways"].items()
    carried = ", ".join(f"{way.replace('_', ' ')} {found['gb_per_s']:.2f}" for way, found in ways)
    return [
        *table(header, [row for bench in benches.values() for row in _server_rows(bench)]),
        "",
        f"An idle server adds {max(bench['result']['added_latency_ms'] for bench in benches.values()):.1f} ms. GB/s "
        f"between two processes: {carried} (`benchmarks/transports.py`; {machine(transports)}, {transports['date']}).",
        "",
        *_placements(placements),
    ]


def feeding(measured: Json, compiled: Mapping[str, Json]) -> list[str]:
    """How much play the learner of each game asks for on a slice, and how many cores a chip of a server asks for.

    Args:
      measured: `feeding` of `podzero compile CONFIG --topology SLICE --json`, by arguments.
      compiled: the results of `podzero compile --table`, from which the chips that play follow.
    """
    rows = [
        (
            f"`{arguments}`",
            f"{found['moves_per_s']:,.0f}",
            _chips_that_play(found["evaluations_per_s"], arguments, compiled),
            f"{found['server_chips']:,} and {found['server_cores']:,} cores",
        )
        for arguments, found in measured["experiments"].items()
    ]
    return [
        *table(("experiment", "moves/s", "chips that play", "or chips of servers"), rows),
        "",
        f"`{measured['command']}`: chips by the compiler's estimates, cores by moves/s that were measured "
        f"({machine(measured)}, {measured['date']}).",
    ]


def _chips_that_play(evaluations_per_s: float, config: str, compiled: Mapping[str, Json]) -> str:
    """How many chips reach so many evaluations/s with the number of games that is best for a chip, and that number."""
    rates = {
        report["programs"][-1]["batch"]: report["evaluations_per_s"]
        for key, result in compiled.items()
        if key.startswith(f"{config} ") and "int8" not in key and "evaluations_per_s" in (report := result["report"])
    }
    games = max(rates, key=lambda games: rates[games])
    return f"{math.ceil(evaluations_per_s / rates[games]):,} with {games:,} games each"


def _server_rows(bench: Json) -> list[Row]:
    (experiment,) = re.findall(r"--config (\S+)", bench["command"])
    return [
        (
            f"`{experiment}`",
            actors,
            f"{found['positions_per_s']:,.0f}",
            f"{found['share_of_device']:.2f}",
            f"{found['share_of_transport']:.2f}",
            f"{machine(bench)}, {bench['date']}",
        )
        for actors, found in bench["result"]["actors"].items()
    ]


def _placements(runs: Mapping[str, Json]) -> list[str]:
    rows = [
        (
            f"`{name}`",
            f"{run['seconds'] / 60:.1f} minutes",
            f"{run['keeps_value']:.1%} ({run['interval'][0]:.1%} to {run['interval'][1]:.1%})",
        )
        for name, run in runs.items()
    ]
    first = next(iter(runs.values()))
    return [
        "All placements learn alike within their intervals: "
        f"{first['steps']:,} learner steps of connect four with each, on two CPU cores "
        f"(`uv run --group dev python benchmarks/placements.py runs/placements`; {machine(first)}, {first['date']}).",
        "",
        *table(("`actors.inference`", "time", "moves that keep the game's value"), rows),
    ]
