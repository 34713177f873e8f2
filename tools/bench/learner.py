"""Stages of training: the learner fed from Reverb, and the train step on a mesh of emulated devices."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import jax

from podzero.config import Experiment
from podzero.core.types import EnvSpec, PackedBatch
from podzero.learner import make_training
from podzero.learner.build import Training, learner_parts, timed
from podzero.learner.publishing import Prefetcher
from podzero.replay import ReplayServer, make_reader
from podzero.tools.bench.measuring import (
    START_S,
    BenchError,
    ChildProcess,
    Side,
    answer,
    child_process,
    compare,
    fill,
    random_batch,
    with_replay,
    without_sample_limit,
)

log = logging.getLogger(__name__)

_DISPATCHES = 7
"""Dispatches of a round: more than the two that were read ahead while the other side ran."""
_FEWEST = 2
"""Dispatches after which training on a resident batch looks at the time."""


def bench_learner(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures the cost of input to the learner.

    Training on batches from a Reverb server (in another process, as in a run) takes turns with training on one batch
    that stays on the device. With `learner.cpu_convolutions=openvino`, training by XLA in float32 is the third side.

    Returns:
      what `compare` returns for `fed`, `device` and perhaps `xla`, and samples/s of `fed`.
    """
    experiment = timed(experiment, *learner_parts(experiment))
    config = experiment.learner
    spec, training = _training(experiment)
    with _reverb(experiment, spec) as reader, Prefetcher(reader) as prefetcher:
        steps, resident = _DISPATCHES * config.dispatch_steps(), training.put(_next(prefetcher))
        train = _trained(training, resident)
        sides: dict[str, Side] = {
            "fed": lambda _: steps / train(lambda: training.put(_next(prefetcher)), _DISPATCHES),
            "device": lambda _: steps / train(lambda: resident, _DISPATCHES),
        }
        if config.cpu_convolutions == "openvino":
            by_xla = _trained(_training(experiment.changed(learner={"cpu_convolutions": "xla"}))[1], resident)
            sides["xla"] = lambda _: steps / by_xla(lambda: resident, _DISPATCHES)
        ratio_of = "steps/s, fed from Reverb over a batch on the device"
        found = compare(sides, "steps_per_s", ratio_of, seconds, longest_s=seconds, rounds=1)
    return found | {
        "fed_samples_per_s": found["fed_steps_per_s"] * config.batch_size,
        "batch_size": config.batch_size,
        "steps_per_dispatch": config.dispatch_steps(),
        "devices": len(jax.devices()),
        "platform": jax.devices()[0].platform,
    }


def _training(experiment: Experiment) -> tuple[EnvSpec, Training]:
    network, spec, symmetries = learner_parts(experiment)
    return spec, make_training(experiment, network, spec, symmetries)


def _trained(training: Training, first: PackedBatch) -> Callable[[Callable[[], PackedBatch], int], float]:
    """Compiles the train step on a batch `[K, B, ...]` that is on the devices.

    Returns:
      a function that runs the learner's loop on given batches for a number of dispatches, and returns the seconds.
    """
    log.info("compiling the train step")
    state = training.init()

    def train(batch: Callable[[], PackedBatch], dispatches: int) -> float:
        nonlocal state
        start, in_flight = time.perf_counter(), None
        for _ in range(dispatches):
            state, sums, _ = training.step(state, batch())
            jax.device_get(in_flight)  # one dispatch behind, like the learner's loop
            in_flight = sums
        jax.device_get(in_flight)
        return time.perf_counter() - start

    train(lambda: first, 1)
    return train


def resident_side(training: Training, batch: PackedBatch) -> Side:
    """Training on a host batch `[K, B, ...]` that is on the devices, in steps/s; compiled already."""
    resident = training.put(batch)
    train = _trained(training, resident)

    def steps_per_s(seconds: float) -> float:
        dispatches, elapsed = 0, 0.0
        while elapsed < seconds:
            dispatches, elapsed = dispatches + _FEWEST, elapsed + train(lambda: resident, _FEWEST)
        return dispatches * len(batch.rows) / elapsed

    return steps_per_s


def _next(prefetcher: Prefetcher) -> PackedBatch:
    batch = prefetcher.poll(START_S)
    if batch is None:
        raise BenchError(f"replay gave no batch within {START_S:g} s")
    return batch


@contextmanager
def _reverb(experiment: Experiment, spec: EnvSpec) -> Iterator[Any]:
    """A reader of a server in another process that holds `replay.min_size` random samples."""
    experiment = with_replay(experiment)
    with ReplayServer(without_sample_limit(experiment), spec, 0) as server:
        fill(experiment, spec, server.address())
        yield make_reader(lambda: [server.address()], spec, experiment)


# The mesh.

DEVICES = 8
"""The number of emulated devices."""
_ROUND_S = 4.0
"""The longest turn of a side, which then finishes two dispatches."""
_ANSWER_S = 600.0
"""The longest wait for a round, or for compilation."""


def bench_mesh(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures the train step with one device and with `DEVICES`, in two processes that take turns.

    All devices share the machine's cores, so a mesh can at best be as fast as one device. The difference is the cost of
    the mesh: smaller batches per device, and collectives.

    Returns:
      what `compare` returns for `mesh` and `one_device`.
    """
    with ExitStack() as stack:
        trainers = {
            name: stack.enter_context(_trainer(experiment, devices))
            for name, devices in {"mesh": DEVICES, "one_device": 1}.items()
        }
        for trainer in trainers.values():
            trainer.receive(_ANSWER_S)  # it has compiled
        sides: dict[str, Side] = {name: partial(trainer.ask, timeout_s=_ANSWER_S) for name, trainer in trainers.items()}
        ratio_of = f"samples/s, {DEVICES} emulated devices over one device"
        found = compare(sides, "samples_per_s", ratio_of, seconds, longest_s=_ROUND_S, rounds=2)
    return found | {
        "devices": DEVICES,
        "batch_size": experiment.learner.batch_size,
        "steps_per_dispatch": experiment.learner.dispatch_steps(),
    }


def _trainer(experiment: Experiment, devices: int) -> AbstractContextManager[ChildProcess]:
    """A process that sees `devices` CPU devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return child_process(_serve, experiment, environment={"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags})


def _serve(experiment: Experiment, parent: Connection) -> None:
    """In the child: compiles, sends the number of its devices, then measures samples/s for the requested times."""
    spec, training = _training(experiment)
    steps_per_s = resident_side(training, random_batch(experiment, spec))
    parent.send(len(jax.devices()))
    answer(parent, lambda seconds: steps_per_s(seconds) * experiment.learner.batch_size)
