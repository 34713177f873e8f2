"""Steps/s of the learner fed from Reverb, beside steps/s on a batch that already lies on the device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import jax

from podzero.benchmarks.material import open_to_samples, random_samples, with_replay
from podzero.benchmarks.serving import START_S, served
from podzero.config import Experiment
from podzero.driver.build import learner_parts
from podzero.learner import Prefetcher, Training, make_training
from podzero.types import Batch, EnvSpec


def bench_learner(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures the cost of being fed.

    Rounds of dispatches fed from a Reverb server (in a process of its own, as in a run) take turns with rounds on one
    batch that stays on the device; both run the experiment's own train step. A round is longer than what the reader
    keeps prefetched, so that what it reads while the other kind of round runs cannot carry it.

    Args:
      experiment: its network, batch size, steps per dispatch and prefetch are measured.
      seconds: how long to measure after compilation; at least one round of each kind is run.

    Returns:
      `ratio`, the median over pairs of neighbouring rounds of fed over on-device (a machine whose speed drifts slows
      both of a pair), the medians of both rates in steps/s, and the rates of all rounds.
    """
    network, spec, symmetries = learner_parts(experiment)
    training = make_training(experiment, network, spec, symmetries)
    config = experiment.learner
    round_dispatches = config.prefetch + 3
    rates: dict[str, list[float]] = {"fed": [], "device": []}
    with _reverb(experiment, spec) as reader, Prefetcher(reader) as prefetcher:
        resident = training.put(_next(prefetcher))
        sources: dict[str, Callable[[], Batch]] = {
            "fed": lambda: training.put(_next(prefetcher)),
            "device": lambda: resident,
        }
        state, _ = train(training, training.init(), sources["fed"], 1)  # compiles
        until = time.perf_counter() + seconds
        while not rates["fed"] or time.perf_counter() < until:
            for kind in sorted(sources, reverse=len(rates["fed"]) % 2 == 0):
                state, elapsed = train(training, state, sources[kind], round_dispatches)
                rates[kind].append(round_dispatches * config.steps_per_dispatch / elapsed)
    fed, device = median(rates["fed"]), median(rates["device"])
    return {
        "ratio": median(a / b for a, b in zip(rates["fed"], rates["device"], strict=True)),
        "fed_steps_per_s": fed,
        "device_steps_per_s": device,
        "fed_samples_per_s": fed * config.batch_size,
        "batch_size": config.batch_size,
        "steps_per_dispatch": config.steps_per_dispatch,
        "devices": len(jax.devices()),
        "platform": jax.devices()[0].platform,
        "fed_rounds": rates["fed"],
        "device_rounds": rates["device"],
    }


def train(training: Training, state: Any, batch: Callable[[], Batch], dispatches: int) -> tuple[Any, float]:
    """Runs the learner's loop of `dispatches`; returns the state and the wall seconds."""
    start = time.perf_counter()
    in_flight = None
    for _ in range(dispatches):
        state, sums, _ = training.step(state, batch())
        jax.device_get(in_flight)  # as the loop does: one dispatch behind
        in_flight = sums
    jax.device_get(in_flight)
    return state, time.perf_counter() - start


def _next(prefetcher: Prefetcher) -> Batch:
    batch = prefetcher.poll(START_S)
    if batch is None:
        raise TimeoutError(f"no batch came out of replay within {START_S:g} s")
    return batch


@contextmanager
def _reverb(experiment: Experiment, spec: EnvSpec) -> Iterator[Any]:
    """A reader on a server, in a process of its own, with `replay.min_size` random samples."""
    from podzero.replay import make_reader, make_writer  # imports TensorFlow

    experiment = with_replay(experiment)
    with served(open_to_samples(experiment), spec) as address:
        writer = make_writer([address], spec, experiment)
        samples_per_item = experiment.replay.samples_per_item
        writer.write(
            random_samples(
                experiment, spec, samples_per_item * math.ceil(experiment.replay.min_size / samples_per_item)
            )
        )
        writer.flush()
        writer.close()
        yield make_reader([address], spec, experiment)
