"""The measured parts of docs/performance.md about inference servers, and what a slice asks of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from podzero.markdown import Row, table

Json = Mapping[str, Any]


def serving(benches: Mapping[str, Json], transports: Json, placements: Mapping[str, Json]) -> list[str]:
    """The tables of servers, of the ways between two processes, and of training with each placement.

    Args:
      benches: what `podzero bench server` printed, by name.
      transports: what `benchmarks/transports.py` printed.
      placements: what `benchmarks/placements.py` wrote.
    """
    shares = ("of the chip", "of the bare transport", "batches filled")
    header = ("bench", "actors", "positions/s", *shares, "GB/s", "messages/s")
    rows = [row for bench in benches.values() for row in _server_rows(bench)]
    return [
        *table(header, rows),
        "",
        *(_limits(bench) for bench in benches.values()),
        "",
        *_transports(transports),
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
            f"{found['server_chips']:,}",
            f"{found['server_cores']:,}",
            f"{found['server_cores'] / found['server_chips']:,.0f}",
            f"{found['core_moves_per_s']:,.0f}",
        )
        for arguments, found in measured["experiments"].items()
    ]
    header = (
        "experiment", "moves/s", "chips that play", "or chips of servers", "and cores", "cores a chip of a server",
        "moves/s of a core",
    )  # fmt: skip
    return [
        f"`{measured['command']}`. The chips are the compiler's estimates, the cores' moves/s were measured "
        f"({measured['hardware']}; {measured['date']}).",
        "",
        *table(header, rows),
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
    return [
        (
            f"`{bench['command']}`",
            actors,
            f"{found['positions_per_s']:,.0f}",
            f"{found['share_of_device']:.2f}",
            f"{found['share_of_transport']:.2f}",
            f"{found['fill']:.2f}",
            f"{found['gb_per_s']:.2f}",
            f"{found['messages_per_s']:,.0f}",
        )
        for actors, found in bench["result"]["actors"].items()
    ]


def _limits(bench: Json) -> str:
    result = bench["result"]
    return (
        f"- `{bench['command']}`: the chip could evaluate {result['device_positions_per_s']:,.0f} positions/s; a "
        f"request has {result['positions_per_request']:,} positions of {result['row_bytes']} bytes, and answers of "
        f"{result['answer_bytes']} bytes each. An idle server adds {result['added_latency_ms']:.2f} ms (median). "
        f"{bench['hardware']}; {bench['date']}."
    )


def _transports(measured: Json) -> list[str]:
    result = measured["result"]
    rows = [
        (
            way.replace("_", " "),
            f"{found['requests_per_s']:,.0f}",
            f"{found['gb_per_s']:.2f}",
            f"{found['latency_ms']:.2f} ms",
        )
        for way, found in result["ways"].items()
    ]
    return [
        f"`{measured['command']}`: requests of {result['request_bytes']:,} bytes and answers of "
        f"{result['answer_bytes']:,} between two processes, two in flight, answered at once. {measured['hardware']}; "
        f"{measured['date']}.",
        "",
        *table(("way", "requests/s", "GB/s", "latency of a single one (median)"), rows),
    ]


def _placements(runs: Mapping[str, Json]) -> list[str]:
    rows = [
        (
            f"`{name}`",
            f"`{run['command']}`" + (f" with `XLA_FLAGS={run['flags']}`" if run["flags"] else ""),
            f"{run['steps']:,}",
            f"{run['seconds'] / 60:.1f} minutes",
            f"{run['keeps_value']:.1%} ({run['interval'][0]:.1%} to {run['interval'][1]:.1%})",
            f"{run['hardware']}; {run['date']}",
        )
        for name, run in runs.items()
    ]
    header = ("placement", "training", "learner steps", "time", "moves that keep the value of the game", "measured")
    return [
        "The same number of learner steps with each placement, on the same machine, one after the other "
        "(`uv run --group dev python benchmarks/placements.py runs/placements`); a perfect solver judges:",
        "",
        *table(header, rows),
    ]
