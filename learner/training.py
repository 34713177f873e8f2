"""From an experiment to the functions that train it: what the loop and the learner's bench are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding

from podzero.config import Experiment
from podzero.learner.objectives import make_objective
from podzero.learner.optimizers import make_optimizer
from podzero.learner.sharding import batch_sharding, check_batch, make_mesh, placed, put_batch, state_shardings
from podzero.learner.state import TrainState, init_state
from podzero.learner.step import Recipe, TrainStep, make_train_step
from podzero.samples import sample_like, with_axes
from podzero.types import Batch, EnvSpec, ModelNetwork, Network, Symmetry


class Training(NamedTuple):
    """How to train one experiment on the devices found."""

    init: Callable[[], TrainState]
    """Makes the state before the first step, from the experiment's seed, where it belongs on the mesh."""
    like: TrainState
    """Shape, dtype and sharding of each leaf of a state."""
    mesh: Mesh
    """All devices that train."""
    batch_sharding: NamedSharding
    """How dispatches `[K, B, ...]` lie."""
    put: Callable[[Batch], Batch]
    """Starts the transfer of a host dispatch `[K, B, ...]` to the devices."""
    step: TrainStep
    """Trains a state on such a dispatch."""


def make_training(
    experiment: Experiment,
    network: Network | ModelNetwork,
    spec: EnvSpec,
    symmetries: Sequence[Symmetry],
    devices: Sequence[jax.Device] | None = None,
) -> Training:
    """Lays the experiment's training out over `devices`, by default all that are found.

    Raises:
      ConfigError: the devices or the batch do not fit the mesh.
    """
    config = experiment.learner
    mesh = make_mesh(config.mesh, devices)
    check_batch(config, mesh)
    optimizer = make_optimizer(config.optimizer)
    objective = make_objective(experiment, network, spec, symmetries)
    init = partial(init_state, objective.init, optimizer, jax.random.key(experiment.seed))
    shapes = jax.eval_shape(init)
    one = Batch(with_axes(sample_like(experiment, spec), 1))
    parts = tuple(jax.eval_shape(objective.loss, shapes.params, one).parts)
    shardings, batches = state_shardings(mesh, shapes, config.mesh), batch_sharding(mesh)
    return Training(
        init=jax.jit(init, out_shardings=shardings),
        like=placed(shapes, shardings),
        mesh=mesh,
        batch_sharding=batches,
        put=partial(put_batch, sharding=batches),
        step=make_train_step(
            Recipe(objective, parts, optimizer, config.ema, config.microbatches),
            mesh,
            shardings,
        ),
    )
