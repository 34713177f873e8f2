"""The reference values of a learner's metrics: its devices, the FLOPs of a sample, and the speed of one chip alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from podzero.config import Experiment, LearnerConfig, MeshConfig, ModelNetworkConfig
from podzero.learner.devices import device_summary
from podzero.learner.flops import training_flops
from podzero.learner.metrics import ChipMetrics
from podzero.learner.objectives import make_objective
from podzero.learner.training import Training, make_training
from podzero.networks import make_network
from podzero.samples import sample_like, with_axes
from podzero.types import Batch, EnvSpec, ModelNetwork, Network, Symmetry

log = logging.getLogger(__name__)

DISPATCHES = 5
"""Timed dispatches, after one that compiles."""


def chip_metrics(
    experiment: Experiment, network: Network | ModelNetwork, spec: EnvSpec, symmetries: Sequence[Symmetry], mesh: Mesh
) -> ChipMetrics:
    """The chip metrics of a learner on `mesh`.

    With `learner.calibrate` and several chips, host 0, which reports for all hosts, also times one chip alone.
    """
    counted = network
    if experiment.learner.cpu_convolutions == "openvino":  # its callbacks do not say how many operations they are
        assert not isinstance(experiment.network, ModelNetworkConfig)
        counted = make_network(experiment.network, spec)
    config, devices = experiment.learner, device_summary(list(mesh.devices.flat))
    calibrate = config.calibrate and devices.chips > 1 and jax.process_index() == 0
    return ChipMetrics(
        devices,
        config.batch_size,
        config.steps_per_dispatch,
        training_flops(
            make_objective(experiment, counted, spec, symmetries), sample_like(experiment, spec), config.batch_size
        ),
        one_chip_samples_per_s(experiment, network, spec, symmetries, devices.chips) if calibrate else None,
    )


def one_chip_samples_per_s(
    experiment: Experiment, network: Network | ModelNetwork, spec: EnvSpec, symmetries: Sequence[Symmetry], chips: int
) -> float | None:
    """Training speed of one local device alone, on the share of the batch that each of `chips` gets.

    The batch is on the device already, so only the train step is timed. The device must have room for a whole train
    state: call this before the learner allocates its own.

    Returns:
      Samples/s, or None, with a warning in the log, if one chip cannot hold a whole train state.
    """
    config = one_chip_config(experiment.learner, chips)
    training = make_training(
        experiment.model_copy(update={"learner": config}), network, spec, symmetries, jax.local_devices()[:1]
    )
    shapes = with_axes(sample_like(experiment, spec), config.steps_per_dispatch, config.batch_size)
    batch = Batch(jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes))
    try:
        seconds = _seconds(training, training.put(batch))
    except jax.errors.JaxRuntimeError as error:
        log.warning("scaling efficiency is not reported: one chip alone cannot train this network: %s", error)
        return None
    rate = config.batch_size * config.steps_per_dispatch * DISPATCHES / seconds
    log.info("one chip alone trains on %.0f samples/s in batches of %d", rate, config.batch_size)
    return rate


def one_chip_config(config: LearnerConfig, chips: int) -> LearnerConfig:
    """The config of one of `chips` alone: its share of the batch, in whole microbatches, and an unsharded mesh."""
    share = config.batch_size // chips // config.microbatches * config.microbatches
    return config.model_copy(update={"batch_size": max(share, config.microbatches), "mesh": MeshConfig()})


def _seconds(training: Training, batch: Batch) -> float:
    """Wall-clock seconds of `DISPATCHES` dispatches."""
    state = training.step(training.init(), batch).state
    jax.block_until_ready(state)  # type: ignore[no-untyped-call]
    start = time.perf_counter()
    for _ in range(DISPATCHES):
        state = training.step(state, batch).state
    jax.block_until_ready(state)  # type: ignore[no-untyped-call]
    return time.perf_counter() - start
