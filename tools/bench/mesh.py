"""Samples/s of the train step on a mesh of emulated devices, beside one device with the same global batch.

The devices share the machine's cores, so a mesh can at best be as fast as one device. The difference is the cost of
the mesh: smaller batches per device, and collectives.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import jax

from podzero.config import Experiment
from podzero.learner import make_training
from podzero.runtime.build import learner_parts
from podzero.tools.bench.child_processes import ChildProcess, answer, child_process
from podzero.tools.bench.inputs import random_samples
from podzero.tools.bench.learner import train
from podzero.tools.bench.rounds import Side, compare
from podzero.types import Batch

DEVICES = 8
_ROUND_S = 4.0
"""The longest turn of a side; its two dispatches in progress are finished."""
_ANSWER_S = 600.0
"""The longest wait for a round, or for compilation."""


def bench_mesh(experiment: Experiment, seconds: float) -> dict[str, Any]:
    """Measures the experiment's train step in two processes, one with one device, the other with `DEVICES`.

    Both have all cores of the machine and take turns: one waits while the other runs a round.

    Args:
      experiment: its network, global batch, steps per dispatch and `learner.mesh` are measured.
      seconds: how long to measure after compilation; one round in any case.

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
        "steps_per_dispatch": experiment.learner.steps_per_dispatch,
    }


def _trainer(experiment: Experiment, devices: int) -> AbstractContextManager[ChildProcess]:
    """A process that sees `devices` CPU devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return child_process(_serve, experiment, environment={"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags})


def _serve(experiment: Experiment, parent: Connection) -> None:
    """In the child: compiles, sends the number of its devices, then measures rounds of the requested lengths."""
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
