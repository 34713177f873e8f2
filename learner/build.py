"""Builds the network that the learner trains, and the sharded functions that train it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding

from podzero.config import Experiment, ModelNetworkConfig, ResNetConfig
from podzero.config.samples import sample_like, with_axes
from podzero.core.errors import ConfigError, nearest
from podzero.core.types import Batch, EnvSpec, ModelNetwork, Network, Params, Symmetry
from podzero.envs import check_values, make_env, spec_of
from podzero.inference import has_bfloat16_instructions
from podzero.learner.objectives import make_objective
from podzero.learner.openvino_tower import host_resnet
from podzero.learner.optimizers import make_optimizer, make_rate
from podzero.learner.sharding import (
    batch_sharding,
    check_batch,
    leaf_names,
    make_mesh,
    placed,
    put_batch,
    put_parameter,
    state_shardings,
)
from podzero.learner.step import TrainState, TrainStep, TrainStepSpec, init_state, make_train_step
from podzero.networks import make_model_network, make_network

log = logging.getLogger(__name__)


def learner_parts(experiment: Experiment) -> tuple[Network | ModelNetwork, EnvSpec, Sequence[Symmetry]]:
    """The network of an experiment, and its environment's specification and symmetries.

    Raises:
      ConfigError: a setting needs one value per position and each player of the game has one, or OpenVINO, which
        computes the network's tower, is not installed.
    """
    if isinstance(experiment.network, ModelNetworkConfig):
        spec = spec_of(experiment.env)
        return make_model_network(experiment.network, spec), spec, ()
    env = make_env(experiment.env)
    check_values(experiment, env.spec)
    if experiment.learner.cpu_convolutions == "openvino" and experiment.cluster.tpu is None:
        assert isinstance(experiment.network, ResNetConfig)
        if has_bfloat16_instructions():
            return host_resnet(experiment.network, env.spec), env.spec, env.symmetries
        log.warning("this CPU has no bfloat16 instructions: learner.cpu_convolutions = openvino uses XLA here")
    return make_network(experiment.network, env.spec), env.spec, env.symmetries


class Training(NamedTuple):
    """The functions that train one experiment on a mesh."""

    init: Callable[[], TrainState]
    """Creates the sharded state before the first step, from the experiment's seed, with the teacher."""
    with_teacher: Callable[[TrainState], TrainState]
    """Adds the teacher's parameters to a state from a checkpoint."""
    like: TrainState
    """Shape, dtype and sharding of each leaf of a state."""
    mesh: Mesh
    """The devices."""
    batch_sharding: NamedSharding
    """The sharding of a dispatch's batches `[K, B, ...]`."""
    put: Callable[[Batch], Batch]
    """Starts the transfer of a dispatch's host batches `[K, B, ...]` to the devices."""
    step: TrainStep
    """Trains a state on these batches."""


def make_training(
    experiment: Experiment,
    network: Network | ModelNetwork,
    spec: EnvSpec,
    symmetries: Sequence[Symmetry],
    devices: Sequence[jax.Device] | None = None,
) -> Training:
    """Builds the functions that train an experiment on `devices`, by default on all that JAX finds.

    Raises:
      ConfigError: the devices or the batch do not fit the mesh, `learner.frozen` matches no parameter, or the teacher
        is refused (`read_teacher`).
      SnapshotError: see `read_teacher`.
    """
    config = experiment.learner
    mesh = make_mesh(config.mesh, devices)
    check_batch(config, mesh)
    optimizer, rate = make_optimizer(config.optimizer, config.frozen), make_rate(config.optimizer)
    objective = make_objective(experiment, network, spec, symmetries)
    init = partial(init_state, objective.init, optimizer, jax.random.key(experiment.seed))
    # Shapes of the state and names of the metrics are traced, so that nothing is computed or allocated here.
    shapes = replace(jax.eval_shape(init), teacher=jax.eval_shape(lambda: objective.teacher))
    _check_frozen(config.frozen, shapes.params)
    one = Batch(with_axes(sample_like(experiment, spec), 1))
    metric_names = tuple(jax.eval_shape(objective.taught_loss, shapes.params, shapes.teacher, shapes.step, one).metrics)
    shardings, batches = state_shardings(mesh, shapes, config.mesh), batch_sharding(mesh)
    jitted_init = jax.jit(init, out_shardings=replace(shardings, teacher=None))

    def with_teacher(state: TrainState) -> TrainState:
        return replace(state, teacher=jax.tree.map(put_parameter, objective.teacher, shardings.teacher))

    return Training(
        init=lambda: with_teacher(jitted_init()),
        with_teacher=with_teacher,
        like=placed(shapes, shardings),
        mesh=mesh,
        batch_sharding=batches,
        put=partial(put_batch, sharding=batches),
        step=make_train_step(
            TrainStepSpec(objective, metric_names, optimizer, rate, config.ema, config.microbatches), mesh, shardings
        ),
    )


def _check_frozen(patterns: Sequence[str], params: Params) -> None:
    """Refuses a pattern that matches no parameter."""
    names = leaf_names(params)
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in names):
            raise ConfigError(
                f"learner.frozen: '{pattern}' matches no parameter of the network{nearest(pattern, names)}; they are: "
                f"{', '.join(names)}"
            )
