"""Samples/s written and read through `podzero.replay`, beside Reverb's own client.

The bare client stores the same samples in two layouts: packed as `podzero.replay` packs them, and each sample as an
item of its fields, as is usual with Reverb. All write in confirmed pieces and read batches of equal shape, from servers
in one other process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any

import jax

from podzero.actors.shuffling import rows_of
from podzero.benchmarks import bare_reverb
from podzero.benchmarks.child_processes import child_process
from podzero.benchmarks.inputs import random_samples, with_replay, without_insert_limit, without_sample_limit
from podzero.benchmarks.rounds import Side, compare
from podzero.config import Experiment
from podzero.envs import spec_of
from podzero.replay import make_reader, make_writer
from podzero.types import EnvSpec, Sample, Window

_PIECE = 48
"""Items that the bare client sends before they must be confirmed; with 50 or more Reverb floods the log."""
_ROUND_S = 0.5
"""The longest turn of a side: much longer than its end, and short enough that both sides see the same machine."""
_LIMITS = "bare Reverb client with the same packed items"


def bench_replay(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures the cost of `podzero.replay` over Reverb's own client.

    A round of reading begins with as many batches as may have been prefetched, which are not counted.

    Args:
      experiment: its samples, `replay.samples_per_item`, batch size, steps per dispatch and prefetch are measured, on
        one shard whose limiter never blocks.
      seconds: how long to measure, half of it writing; one round of each kind in any case.

    Returns:
      `ratio`, the lower of the ratios of writing and reading to the bare client with packed items; and for each of
      `write` and `read` what `compare` returns for `podzero`, `bare_packed` and `bare_unpacked`.
    """
    spec = spec_of(experiment.env)
    experiment = with_replay(experiment, sampler="uniform")
    with child_process(_serve, experiment, spec) as servers:
        addresses = servers.receive()
        written = _write(experiment, spec, addresses, seconds / 2)
        read = _read(experiment, spec, addresses, seconds / 2)
    return {
        "ratio": min(written["ratio"], read["ratio"]),
        "ratio_of": f"samples/s, podzero.replay over {_LIMITS}, the lower of writing and reading",
        "write": written,
        "read": read,
        "sample_bytes": sum(field.nbytes for field in jax.tree.leaves(random_samples(experiment, spec, 1))),
        "samples_per_item": experiment.replay.samples_per_item,
        "batch_size": experiment.learner.batch_size,
        "steps_per_dispatch": experiment.learner.steps_per_dispatch,
    }


def _write(experiment: Experiment, spec: EnvSpec, addresses: dict[str, str], seconds: float) -> dict[str, Any]:
    many = random_samples(experiment, spec, _PIECE * experiment.replay.samples_per_item)
    few = random_samples(experiment, spec, _PIECE)
    with closing(make_writer([addresses["write"]], spec, without_insert_limit(experiment))) as writer:
        rounds = {"podzero": _writing(writer.write, writer.flush, many)}
        for (name, layout), samples in zip(_layouts(experiment, spec).items(), (many, few), strict=True):
            write, flush = bare_reverb.make_writer(addresses["bare"], layout, "-write")
            rounds[name] = _writing(write, flush, samples)
        return _compare(rounds, seconds)


def _read(experiment: Experiment, spec: EnvSpec, addresses: dict[str, str], seconds: float) -> dict[str, Any]:
    sampling, layouts = without_sample_limit(experiment), _layouts(experiment, spec)
    _fill(sampling, spec, addresses, layouts)
    with closing(make_reader([addresses["read"]], spec, sampling)) as reader:
        rounds = {"podzero": _reading(reader, experiment)}
        for name, layout in layouts.items():
            rounds[name] = _reading(bare_reverb.make_reader(addresses["bare"], layout, experiment), experiment)
        return _compare(rounds, seconds)


def _layouts(experiment: Experiment, spec: EnvSpec) -> dict[str, bare_reverb.Layout]:
    return {
        "bare_packed": bare_reverb.packed_items(experiment, spec),
        "bare_unpacked": bare_reverb.one_sample_items(experiment, spec),
    }


def _compare(sides: dict[str, Side], seconds: float) -> dict[str, Any]:
    for measure in sides.values():
        measure(min(_ROUND_S, seconds))  # the first turn of each is not counted
    ratio_of = f"samples/s, podzero.replay over {_LIMITS}"
    return compare(sides, "samples_per_s", ratio_of, seconds, longest_s=_ROUND_S, rounds=2)


def _round(
    move: Callable[[], int], prepare: Callable[[], None] = lambda: None, finish: Callable[[], None] = lambda: None
) -> Side:
    """Calls `move` and returns samples/s; `finish` is timed, `prepare` is not."""

    def rate(seconds: float) -> float:
        prepare()
        moved, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            moved += move()
        finish()
        return moved / (time.perf_counter() - start)

    return rate


def _writing(write: Callable[[Sample | Window], None], flush: Callable[[], None], samples: Sample | Window) -> Side:
    def move() -> int:
        write(samples)
        return len(samples.version)

    return _round(move, finish=flush)


def _reading(batches: Iterator[Any], experiment: Experiment) -> Side:
    config = experiment.learner

    def read() -> int:
        next(batches)
        return config.batch_size * config.steps_per_dispatch

    def drain() -> None:
        for _ in range(config.prefetch + 2):
            next(batches)

    return _round(read, prepare=drain)


def _fill(
    experiment: Experiment, spec: EnvSpec, addresses: dict[str, str], layouts: dict[str, bare_reverb.Layout]
) -> None:
    """Writes `replay.min_size` samples or a little more to each table that is read."""
    samples_per_item = experiment.replay.samples_per_item
    count = -(-experiment.replay.min_size // samples_per_item) * samples_per_item
    samples = random_samples(experiment, spec, count)
    with closing(make_writer([addresses["read"]], spec, experiment)) as writer:
        writer.write(samples)
        writer.flush()
    for layout in layouts.values():
        write, _ = bare_reverb.make_writer(addresses["bare"], layout, "-read")
        step = _PIECE * layout.samples_per_item
        for start in range(0, count, step):
            write(rows_of(samples, slice(start, start + step)))


def _serve(experiment: Experiment, spec: EnvSpec, parent: Connection) -> None:
    """In the child: runs all servers until the parent closes its end of the pipe or dies."""
    from podzero.replay import ReplayServer

    bare = bare_reverb.make_server(_layouts(experiment, spec).values(), experiment.replay.capacity)
    servers = {
        "write": ReplayServer(without_insert_limit(experiment), spec, 0),
        "read": ReplayServer(without_sample_limit(experiment), spec, 0),
    }
    host = servers["write"].address().partition(":")[0]
    parent.send({"bare": f"{host}:{bare.port}"} | {name: server.address() for name, server in servers.items()})
    try:
        parent.recv()
    except EOFError:
        bare.stop()
        for server in servers.values():
            server.stop()
