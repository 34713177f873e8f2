"""Samples/s written and read through `podzero.replay`, beside the bare Reverb client.

The bare client gets the same samples, each an item of the same five fields, checks nothing, and its best settings as
measured: StructuredWriter (two to three times as fast as TrajectoryWriter from Python) and TrajectoryDataset with
three batches in flight. Both sides write in confirmed pieces and read batches of equal shape, from
servers in one other process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from podzero.benchmarks.material import open_to_inserts, open_to_samples, random_samples, with_replay
from podzero.benchmarks.serving import hosted
from podzero.config import Experiment
from podzero.envs import spec_of
from podzero.replay import make_reader, make_writer
from podzero.samples import sample_like
from podzero.types import EnvSpec, Sample, Window

_PIECE = 48
"""Items that the bare client sends before they must be confirmed; from 50 on Reverb floods the log. One `write` takes
as many samples, or as many as make whole bundles."""
_ROUND_S = 0.5
"""Wall seconds of one round: long enough to hide its end, short enough that neighbours see the same machine."""
_TABLE = {"read": "bare-read", "write": "bare-write"}


def bench_replay(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures the cost of `podzero.replay` over Reverb's own client.

    Rounds through podzero take turns with rounds of the bare client; each round starts by taking what its reader had
    prefetched meanwhile, untimed, so that nobody is credited with work done during the other's round.

    Args:
      experiment: its samples' sizes, batch size, steps per dispatch and prefetch are measured, on one shard with a
        limiter that holds nobody.
      seconds: how long to measure, half of it writing; at least two rounds of each kind are run.

    Returns:
      `ratio`, the lesser of the ratios written and read, and for each of `write` and `read` the medians in samples/s,
      their ratio (the median over neighbouring rounds), and the rates of all rounds.
    """
    spec = spec_of(experiment.env)
    experiment = with_replay(experiment, sampler="uniform")
    filling, sampling = open_to_inserts(experiment), open_to_samples(experiment)
    stored = experiment.replay.min_size
    with ExitStack() as stack:
        addresses = stack.enter_context(hosted(_serve, filling, sampling, spec))
        game = random_samples(experiment, spec, _PIECE - _PIECE % experiment.replay.samples_per_item)
        writer = stack.enter_context(closing(make_writer([addresses["write"]], spec, filling)))

        def write() -> int:
            writer.write(game)
            return len(game.version)

        bare_write, bare_flush = _bare_writer(addresses["bare"], game, _TABLE["write"])
        written = _compare(seconds / 2, _Side(write, writer.flush), _Side(bare_write, bare_flush))

        _fill(addresses, spec, sampling, game, stored)
        reader = stack.enter_context(closing(make_reader([addresses["read"]], spec, sampling)))
        batches = _bare_reader(addresses["bare"], game, sampling)
        items = experiment.learner.batch_size * experiment.learner.steps_per_dispatch
        ahead = experiment.learner.prefetch + 2
        read = _compare(seconds / 2, _reading(reader, items, ahead), _reading(batches, items, ahead))
    return {
        "ratio": min(written["ratio"], read["ratio"]),
        "write": written,
        "read": read,
        "sample_bytes": sum(field.nbytes for field in game) // len(game.version),
        "batch_size": experiment.learner.batch_size,
        "steps_per_dispatch": experiment.learner.steps_per_dispatch,
    }


class _Side:
    """One of two ways to move items."""

    def __init__(self, move: Callable[[], int], settle: Callable[[], None], prepare: Callable[[], None] = lambda: None):
        self._move = move
        self._settle = settle
        self._prepare = prepare

    def rate(self) -> float:
        """Items/s of one round; `settle` (waiting for what is on its way) counts, `prepare` does not."""
        self._prepare()
        moved, start = 0, time.perf_counter()
        while time.perf_counter() - start < _ROUND_S:
            moved += self._move()
        self._settle()
        return moved / (time.perf_counter() - start)


def _reading(batches: Iterator[Any], items: int, ahead: int) -> _Side:
    def read() -> int:
        next(batches)
        return items

    def drain() -> None:
        for _ in range(ahead):
            next(batches)

    return _Side(read, lambda: None, drain)


def _compare(seconds: float, podzero: _Side, bare: _Side) -> dict[str, Any]:
    """Rounds of both sides in turn, the order reversed every time, after one uncounted round of each."""
    sides = {"podzero": podzero, "bare": bare}
    for side in sides.values():
        side.rate()
    rates: dict[str, list[float]] = {name: [] for name in sides}
    until = time.perf_counter() + seconds
    while len(rates["bare"]) < 2 or time.perf_counter() < until:
        for name in sorted(sides, reverse=len(rates["bare"]) % 2 == 0):
            rates[name].append(sides[name].rate())
    return {
        "ratio": median(ours / theirs for ours, theirs in zip(rates["podzero"], rates["bare"], strict=True)),
        "podzero_samples_per_s": median(rates["podzero"]),
        "bare_samples_per_s": median(rates["bare"]),
        "podzero_rounds": rates["podzero"],
        "bare_rounds": rates["bare"],
    }


def _bare_writer(address: str, game: Sample | Window, table: str) -> tuple[Callable[[], int], Callable[[], None]]:
    """Reverb's StructuredWriter: (writes one game in a confirmed piece, waits for the rest)."""
    from reverb import Client, structured_writer

    reference = structured_writer.create_reference_step(dict.fromkeys(Sample._fields))
    pattern = {name: reference[name][-1] for name in Sample._fields}
    writer = Client(address).structured_writer([structured_writer.create_config(pattern, table)])

    def write() -> int:
        for row in zip(*game, strict=True):
            writer.append(dict(zip(Sample._fields, row, strict=True)))
        writer.flush(0, timeout_ms=60_000)
        return len(game.version)

    return write, lambda: writer.flush(0, timeout_ms=60_000)


def _bare_reader(address: str, game: Sample | Window, experiment: Experiment) -> Iterator[Any]:
    """Reverb's TrajectoryDataset in batches of a whole dispatch, with their fields in the shape the learner takes."""
    import tensorflow as tf
    from reverb import TrajectoryDataset

    config = experiment.learner
    dataset = TrajectoryDataset(
        address,
        _TABLE["read"],
        dtypes={name: field.dtype for name, field in game._asdict().items()},
        shapes={name: tf.TensorShape(field.shape[1:]) for name, field in game._asdict().items()},
        max_in_flight_samples_per_worker=3 * config.batch_size,
        num_workers_per_iterator=1,
        rate_limiter_timeout_ms=60_000,
    )
    batched = dataset.batch(config.steps_per_dispatch * config.batch_size, drop_remainder=True)
    leading = (config.steps_per_dispatch, config.batch_size)
    for batch in batched.prefetch(2).as_numpy_iterator():
        yield {name: field.reshape(leading + field.shape[1:]) for name, field in batch.data.items()}


def _fill(addresses: dict[str, str], spec: EnvSpec, experiment: Experiment, game: Sample | Window, stored: int) -> None:
    """Puts the same number of samples into both tables that are read."""
    bare_write, _ = _bare_writer(addresses["bare"], game, _TABLE["read"])
    with closing(make_writer([addresses["read"]], spec, experiment)) as writer:
        for _ in range(0, stored, len(game.version)):
            writer.write(game)
            bare_write()
        writer.flush()


def _serve(filling: Experiment, sampling: Experiment, spec: EnvSpec, parent: Connection) -> None:
    """Runs all servers until the parent closes its end of the pipe or dies."""
    import reverb
    import tensorflow as tf

    from podzero.replay import ReplayServer

    signature = {
        name: tf.TensorSpec(field.shape, field.dtype) for name, field in sample_like(filling, spec)._asdict().items()
    }
    tables = [
        reverb.Table(
            name,
            reverb.selectors.Uniform(),
            reverb.selectors.Fifo(),
            filling.replay.capacity,
            reverb.rate_limiters.MinSize(1),
            signature=signature,
        )
        for name in _TABLE.values()
    ]
    bare = reverb.Server(tables)
    servers = {"write": ReplayServer(filling, spec, 0), "read": ReplayServer(sampling, spec, 0)}
    host = servers["write"].address().partition(":")[0]
    parent.send({"bare": f"{host}:{bare.port}"} | {name: server.address() for name, server in servers.items()})
    try:
        parent.recv()
    except EOFError:
        bare.stop()
        for server in servers.values():
            server.stop()
