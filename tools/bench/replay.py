"""Samples/s written and read through `podzero.replay`, beside Reverb's own client.

The bare client stores the same samples in two layouts: packed as `podzero.replay` packs them, and each sample as an
item of its fields, as is usual with Reverb. All write in confirmed pieces and read batches of equal shape. Servers and
the bare client have processes of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import jax

from podzero.config import Experiment
from podzero.envs import spec_of
from podzero.replay import ReplayServer, make_reader, make_writer
from podzero.tools.bench import bare_reverb
from podzero.tools.bench.inputs import random_samples, with_replay, without_insert_limit, without_sample_limit
from podzero.tools.bench.rounds import Side, compare
from podzero.types import EnvSpec, Sample, Window

_PIECE = 48
"""Items that are sent before they must be confirmed; with 50 or more Reverb's client floods the log."""
_FILL_S = 0.05
"""Turns of the bare client while a table is filled."""
_ROUND_S = 0.5
"""The longest turn of a side: much longer than its end, and short enough that both sides see the same machine."""
_ROUNDS = 2
"""Turns are shortened until so many rounds fit."""
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
    layouts = {
        "bare_packed": bare_reverb.packed_items(experiment, spec),
        "bare_unpacked": bare_reverb.one_sample_items(experiment, spec),
    }
    with (
        bare_reverb.bare_server(layouts.values(), experiment.replay.capacity) as address,
        closing(bare_reverb.BareClient(address)) as bare,
    ):
        written = _write(experiment, spec, bare, layouts, seconds / 2)
        read = _read(experiment, spec, bare, layouts, seconds / 2)
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


_Layouts = dict[str, bare_reverb.Layout]


def _write(
    experiment: Experiment, spec: EnvSpec, bare: bare_reverb.BareClient, layouts: _Layouts, seconds: float
) -> dict[str, Any]:
    unlimited = without_insert_limit(experiment)
    samples = random_samples(experiment, spec, _PIECE * experiment.replay.samples_per_item)
    with (
        ReplayServer(unlimited, spec, 0) as server,
        closing(make_writer([server.address()], spec, unlimited)) as writer,
    ):
        rounds = {"podzero": _writing(writer.write, writer.flush, samples)}
        for name, layout in layouts.items():
            few = random_samples(experiment, spec, _PIECE * layout.samples_per_item)
            rounds[name] = _bare_writing(bare, layout, few)
        return _compare(rounds, seconds)


def _read(
    experiment: Experiment, spec: EnvSpec, bare: bare_reverb.BareClient, layouts: _Layouts, seconds: float
) -> dict[str, Any]:
    sampling = without_sample_limit(experiment)
    with ReplayServer(sampling, spec, 0) as server:
        _fill(sampling, spec, server.address(), bare, layouts)
        with closing(make_reader([server.address()], spec, sampling)) as reader:
            rounds = {"podzero": _reading(reader, experiment)}
            for name, layout in layouts.items():
                rounds[name] = _bare_reading(bare, layout, experiment)
            return _compare(rounds, seconds)


def _compare(sides: dict[str, Side], seconds: float) -> dict[str, Any]:
    for measure in sides.values():
        measure(min(_ROUND_S, seconds / (_ROUNDS * len(sides))))  # the first turn of each is not counted
    ratio_of = f"samples/s, podzero.replay over {_LIMITS}"
    return compare(sides, "samples_per_s", ratio_of, seconds, longest_s=_ROUND_S, rounds=_ROUNDS)


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


def _bare_writing(bare: bare_reverb.BareClient, layout: bare_reverb.Layout, samples: Sample | Window) -> Side:
    rows = layout.rows(samples)

    def rate(seconds: float) -> float:
        table = f"{layout.table}-write"
        items = bare.ask("write", table, columns=layout.columns, rows=rows, seconds=seconds)
        return float(items) * layout.samples_per_item

    return rate


def _bare_reading(bare: bare_reverb.BareClient, layout: bare_reverb.Layout, experiment: Experiment) -> Side:
    dispatch = experiment.learner.batch_size * experiment.learner.steps_per_dispatch
    batch = dispatch // layout.samples_per_item

    def rate(seconds: float) -> float:
        items = bare.ask("read", f"{layout.table}-read", columns=layout.columns, items=batch, seconds=seconds)
        return float(items) * layout.samples_per_item

    return rate


def _fill(experiment: Experiment, spec: EnvSpec, address: str, bare: bare_reverb.BareClient, layouts: _Layouts) -> None:
    """Writes `replay.min_size` samples or a little more to each table that is read."""
    samples_per_item = experiment.replay.samples_per_item
    count = -(-experiment.replay.min_size // samples_per_item) * samples_per_item
    samples = random_samples(experiment, spec, count)
    with closing(make_writer([address], spec, experiment)) as writer:
        writer.write(samples)
        writer.flush()
    for layout in layouts.values():
        bare.ask("write", f"{layout.table}-read", columns=layout.columns, rows=layout.rows(samples), seconds=_FILL_S)
