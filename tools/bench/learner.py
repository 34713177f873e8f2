"""Steps/s of the learner fed from Reverb, beside steps/s on a batch that stays on the device."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import jax

from podzero.config import Experiment
from podzero.learner import Prefetcher, Training, make_training
from podzero.replay import ReplayServer, make_reader, make_writer
from podzero.runtime.build import learner_parts
from podzero.tools.bench.child_processes import START_S, BenchError
from podzero.tools.bench.inputs import random_samples, with_replay, without_sample_limit
from podzero.tools.bench.rounds import Side, compare
from podzero.types import Batch, EnvSpec

log = logging.getLogger(__name__)


def bench_learner(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures the cost of input to the learner.

    Rounds of dispatches fed from a Reverb server (in another process, as in a run) take turns with rounds on one batch
    that stays on the device; both run the experiment's train step. A round has more dispatches than the reader
    prefetches, so that batches read during the other kind of round are not enough for it. With
    `learner.cpu_convolutions=openvino`, rounds of the same training by XLA in float32 take turns with them.

    Args:
      experiment: its network, batch size, steps per dispatch and prefetch are measured.
      seconds: how long to measure after compilation; one round in any case.

    Returns:
      what `compare` returns for `fed` and `device`, and perhaps `xla`, and samples/s of the first.
    """
    config = experiment.learner
    spec, training = _training(experiment)
    with _reverb(experiment, spec) as reader, Prefetcher(reader) as prefetcher:
        resident = training.put(_next(prefetcher))
        steps_per_s = _rounds(experiment, training, resident)
        sides: dict[str, Side] = {
            "fed": lambda _: steps_per_s(lambda: training.put(_next(prefetcher))),
            "device": lambda _: steps_per_s(lambda: resident),
        }
        if config.cpu_convolutions == "openvino":
            xla = config.model_copy(update={"cpu_convolutions": "xla"})
            by_xla = experiment.model_copy(update={"learner": xla})
            rounds = _rounds(by_xla, _training(by_xla)[1], resident)
            sides["xla"] = lambda _: rounds(lambda: resident)
        ratio_of = "steps/s, fed from Reverb over a batch on the device"
        found = compare(sides, "steps_per_s", ratio_of, seconds, longest_s=seconds, rounds=1)
    return found | {
        "fed_samples_per_s": found["fed_steps_per_s"] * config.batch_size,
        "batch_size": config.batch_size,
        "steps_per_dispatch": config.steps_per_dispatch,
        "devices": len(jax.devices()),
        "platform": jax.devices()[0].platform,
    }


def _training(experiment: Experiment) -> tuple[EnvSpec, Training]:
    network, spec, symmetries = learner_parts(experiment)
    return spec, make_training(experiment, network, spec, symmetries)


def _rounds(experiment: Experiment, training: Training, first: Batch) -> Callable[[Callable[[], Batch]], float]:
    """A function that trains for one round on the batches it is given and returns steps/s; it is compiled already."""
    config = experiment.learner
    dispatches = config.prefetch + 3
    log.info("compiling the train step")
    state, _ = train(training, training.init(), lambda: first, 1)

    def steps_per_s(batch: Callable[[], Batch]) -> float:
        nonlocal state
        state, elapsed = train(training, state, batch, dispatches)
        return dispatches * config.steps_per_dispatch / elapsed

    return steps_per_s


def train(training: Training, state: Any, batch: Callable[[], Batch], dispatches: int) -> tuple[Any, float]:
    """Runs the learner's loop for `dispatches`; returns the state and the wall time in seconds."""
    start = time.perf_counter()
    in_flight = None
    for _ in range(dispatches):
        state, sums, _ = training.step(state, batch())
        jax.device_get(in_flight)  # one dispatch behind, like the learner's loop
        in_flight = sums
    jax.device_get(in_flight)
    return state, time.perf_counter() - start


def _next(prefetcher: Prefetcher) -> Batch:
    batch = prefetcher.poll(START_S)
    if batch is None:
        raise BenchError(f"no batch came out of replay within {START_S:g} s")
    return batch


@contextmanager
def _reverb(experiment: Experiment, spec: EnvSpec) -> Iterator[Any]:
    """A reader of a server in another process that holds `replay.min_size` random samples."""
    experiment = with_replay(experiment)
    samples_per_item = experiment.replay.samples_per_item
    count = samples_per_item * math.ceil(experiment.replay.min_size / samples_per_item)
    with ReplayServer(without_sample_limit(experiment), spec, 0) as server:
        addresses = [server.address()]
        with closing(make_writer(addresses, spec, experiment)) as writer:
            writer.write(random_samples(experiment, spec, count))
            writer.flush()
        yield make_reader(addresses, spec, experiment)
