"""Samples/s of the train step on a mesh of emulated devices, beside one device with the same global batch.

The devices share the machine's cores, so that a mesh can at best be as fast as one device: what is missing is the
price of the mesh itself, of smaller batches per device and of the collectives.
"""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, ExitStack
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import jax

from podzero.benchmarks.learner import train
from podzero.benchmarks.material import random_samples
from podzero.benchmarks.serving import Helper, answer, helper
from podzero.config import Experiment
from podzero.driver.build import learner_parts
from podzero.learner import make_training
from podzero.types import Batch

DEVICES = 8
_ROUND_S = 4.0
"""Wall seconds of a round; it ends with the dispatch that is under way."""
_ANSWER_S = 600.0


def bench_mesh(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures the experiment's own train step in two processes, one with a device, one with `DEVICES`.

    Both have all cores of the machine, and take turns: one waits while the other runs a round.

    Args:
      experiment: its network, global batch, steps per dispatch and `learner.mesh` are measured.
      seconds: how long to measure after compilation; at least two rounds of each are run.

    Returns:
      `ratio`, the median over pairs of neighbouring rounds of the mesh's rate over the single device's, the medians
      of both in samples/s, and the rates of all rounds.
    """
    sides = {"one": 1, "mesh": DEVICES}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    with ExitStack() as stack:
        helpers = {name: stack.enter_context(_trainer(experiment, count)) for name, count in sides.items()}
        for process in helpers.values():
            process.receive(_ANSWER_S)  # it has compiled
        until = time.perf_counter() + seconds
        while len(rates["mesh"]) < 2 or time.perf_counter() < until:
            for name in sorted(sides, reverse=len(rates["mesh"]) % 2 == 0):
                rates[name].append(helpers[name].ask(min(_ROUND_S, seconds), timeout_s=_ANSWER_S))
    return {
        "ratio": median(mesh / one for mesh, one in zip(rates["mesh"], rates["one"], strict=True)),
        "mesh_samples_per_s": median(rates["mesh"]),
        "one_device_samples_per_s": median(rates["one"]),
        "devices": DEVICES,
        "batch_size": experiment.learner.batch_size,
        "steps_per_dispatch": experiment.learner.steps_per_dispatch,
        "mesh_rounds": rates["mesh"],
        "one_device_rounds": rates["one"],
    }


def _trainer(experiment: Experiment, devices: int) -> AbstractContextManager[Helper]:
    """A process that sees `devices` CPU devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return helper(_serve, experiment, environment={"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags})


def _serve(experiment: Experiment, parent: Connection) -> None:
    """Compiles, says how many devices it trains on, then answers each request for a round of so many seconds."""
    network, spec, symmetries = learner_parts(experiment)
    training = make_training(experiment, network, spec, symmetries)
    leading = (experiment.learner.steps_per_dispatch, experiment.learner.batch_size)
    flat = random_samples(experiment, spec, leading[0] * leading[1])
    batch = training.put(Batch(jax.tree.map(lambda field: field.reshape(leading + field.shape[1:]), flat)))
    state, _ = train(training, training.init(), lambda: batch, 1)

    def round_of(seconds: float) -> float:
        """Samples/s of one round."""
        nonlocal state
        dispatches, elapsed = 0, 0.0
        while elapsed < seconds:
            state, took = train(training, state, lambda: batch, 2)
            dispatches, elapsed = dispatches + 2, elapsed + took
        return dispatches * leading[0] * leading[1] / elapsed

    parent.send(len(jax.devices()))
    answer(parent, round_of)
