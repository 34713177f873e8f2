"""What a learner's figures are measured by: its devices, the work of a sample, and how fast one chip trains alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from podzero.config import Experiment, LearnerConfig, MeshConfig
from podzero.learner.devices import machine_of
from podzero.learner.flops import training_flops
from podzero.learner.metrics import ChipFigures
from podzero.learner.objectives import make_objective
from podzero.learner.training import Training, make_training
from podzero.samples import sample_like, with_axes
from podzero.types import Batch, EnvSpec, ModelNetwork, Network, Symmetry

log = logging.getLogger(__name__)

DISPATCHES = 5
"""Timed, after one that compiles."""


def chip_figures(
    experiment: Experiment, network: Network | ModelNetwork, spec: EnvSpec, symmetries: Sequence[Symmetry], mesh: Mesh
) -> ChipFigures:
    """The figures of a learner on `mesh`; times one chip alone if there are several and `learner.calibrate` says so.

    Only host 0, which reports for all, takes that time.
    """
    config, machine = experiment.learner, machine_of(list(mesh.devices.flat))
    calibrate = config.calibrate and machine.chips > 1 and jax.process_index() == 0
    return ChipFigures(
        machine,
        config.batch_size,
        config.steps_per_dispatch,
        training_flops(
            make_objective(experiment, network, spec, symmetries), sample_like(experiment, spec), config.batch_size
        ),
        one_chip_samples_per_s(experiment, network, spec, symmetries, machine.chips) if calibrate else None,
    )


def one_chip_samples_per_s(
    experiment: Experiment, network: Network | ModelNetwork, spec: EnvSpec, symmetries: Sequence[Symmetry], chips: int
) -> float | None:
    """Samples/s of one local device that trains alone on as many samples as each of `chips` gets.

    The batch lies on the device already, so what is timed is the train step itself. The device must have room for a
    whole train state: call this before the learner makes its own.

    Returns:
      the rate; None when one chip cannot hold a whole train state, which a warning says.
    """
    config = alone(experiment.learner, chips)
    training = make_training(
        experiment.model_copy(update={"learner": config}), network, spec, symmetries, jax.local_devices()[:1]
    )
    shapes = with_axes(sample_like(experiment, spec), config.steps_per_dispatch, config.batch_size)
    batch = Batch(jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes))
    try:
        seconds = _seconds(training, training.put(batch))
    except jax.errors.JaxRuntimeError as error:
        log.warning("no figure of scaling efficiency: one chip alone cannot train this network: %s", error)
        return None
    rate = config.batch_size * config.steps_per_dispatch * DISPATCHES / seconds
    log.info("one chip alone learns %.0f samples/s in batches of %d", rate, config.batch_size)
    return rate


def alone(config: LearnerConfig, chips: int) -> LearnerConfig:
    """Training on one of `chips`: its share of the batch, in whole microbatches, and nothing split."""
    share = config.batch_size // chips // config.microbatches * config.microbatches
    return config.model_copy(update={"batch_size": max(share, config.microbatches), "mesh": MeshConfig()})


def _seconds(training: Training, batch: Batch) -> float:
    """Wall seconds of `DISPATCHES` dispatches one behind the other."""
    state = training.step(training.init(), batch).state
    jax.block_until_ready(state)  # type: ignore[no-untyped-call]
    began = time.perf_counter()
    for _ in range(DISPATCHES):
        state = training.step(state, batch).state
    jax.block_until_ready(state)  # type: ignore[no-untyped-call]
    return time.perf_counter() - began
