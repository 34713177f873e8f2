"""Builds the functions that train an experiment, for the learner and its benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding

from podzero.config import Experiment
from podzero.learner.objectives import make_objective
from podzero.learner.optimizers import make_optimizer, make_rate
from podzero.learner.sharding import batch_sharding, check_batch, make_mesh, placed, put_batch, state_shardings
from podzero.learner.step import TrainState, TrainStep, TrainStepSpec, init_state, make_train_step
from podzero.samples import sample_like, with_axes
from podzero.types import Batch, EnvSpec, ModelNetwork, Network, Symmetry


class Training(NamedTuple):
    """The functions that train one experiment on a mesh."""

    init: Callable[[], TrainState]
    """Creates the sharded state before the first step, from the experiment's seed."""
    like: TrainState
    """Shape, dtype and sharding of each leaf of a state."""
    mesh: Mesh
    """The devices."""
    batch_sharding: NamedSharding
    """The sharding of the batches `[K, B, ...]` of one dispatch."""
    put: Callable[[Batch], Batch]
    """Starts the transfer of the host batches `[K, B, ...]` of one dispatch to the devices."""
    step: TrainStep
    """Trains a state on such batches."""


def make_training(
    experiment: Experiment,
    network: Network | ModelNetwork,
    spec: EnvSpec,
    symmetries: Sequence[Symmetry],
    devices: Sequence[jax.Device] | None = None,
) -> Training:
    """Builds the training of an experiment over `devices`, by default all that JAX finds.

    Raises:
      ConfigError: the devices or the batch do not fit the mesh.
    """
    config = experiment.learner
    mesh = make_mesh(config.mesh, devices)
    check_batch(config, mesh)
    optimizer, rate = make_optimizer(config.optimizer), make_rate(config.optimizer)
    objective = make_objective(experiment, network, spec, symmetries)
    init = partial(init_state, objective.init, optimizer, jax.random.key(experiment.seed))
    shapes = jax.eval_shape(init)
    one = Batch(with_axes(sample_like(experiment, spec), 1))
    metric_names = tuple(jax.eval_shape(objective.loss, shapes.params, one).metrics)
    shardings, batches = state_shardings(mesh, shapes, config.mesh), batch_sharding(mesh)
    return Training(
        init=jax.jit(init, out_shardings=shardings),
        like=placed(shapes, shardings),
        mesh=mesh,
        batch_sharding=batches,
        put=partial(put_batch, sharding=batches),
        step=make_train_step(
            TrainStepSpec(objective, metric_names, optimizer, rate, config.ema, config.microbatches), mesh, shardings
        ),
    )
