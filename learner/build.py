"""Builds the network that the learner trains and the sharded functions that train it, and checks a user's optimizer and
loss: they must fulfil their contracts on the network.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from podzero.config import Experiment, ModelNetworkConfig, OwnOptimizerConfig, ResNetConfig
from podzero.config.samples import sample_like, window_steps, with_axes
from podzero.core.errors import ConfigError, nearest
from podzero.core.types import Array, Batch, EnvSpec, ModelNetwork, Network, PackedBatch, Params, Sample, Symmetry
from podzero.envs import SamplePacking, check_values, holds_states, make_env, pack_states, sample_packing, spec_of
from podzero.learner import sharding
from podzero.learner.hosts import HostSync
from podzero.learner.losses import LossOutput
from podzero.learner.objectives import Objective, make_objective
from podzero.learner.openvino_tower import host_resnet
from podzero.learner.optimizers import make_optimizer, make_rate, own_optimizer
from podzero.learner.step import TrainState, TrainStep, TrainStepSpec, init_state, make_train_step
from podzero.learner.trained_agents import read_teacher, read_warm_start
from podzero.networks import make_model_network, make_network, trainable_network

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
        return host_resnet(experiment.network, env.spec), env.spec, env.symmetries
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
    packing: SamplePacking
    """How replay holds its samples."""
    put: Callable[[PackedBatch], PackedBatch]
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
        cannot play the game.
      SnapshotError: the teacher's snapshot is missing, damaged, or of other observations or actions.
    """
    config = experiment.learner
    mesh = sharding.make_mesh(config.mesh, devices, experiment.cluster.slices)
    sharding.check_batch(config, mesh)
    optimizer, rate = make_optimizer(config.optimizer, config.frozen), make_rate(config.optimizer)
    objective = make_objective(experiment, network, spec, symmetries)
    packing = sample_packing(experiment, spec, make_env(experiment.env) if holds_states(experiment, spec) else None)
    init = partial(init_state, objective.init, optimizer, jax.random.key(experiment.seed))
    # Shapes of the state and names of the metrics are traced, so that nothing is computed or allocated here.
    shapes = replace(jax.eval_shape(init), teacher=jax.eval_shape(lambda: objective.teacher))
    names = list(sharding.named_leaves(shapes.params))
    for pattern in config.frozen:
        if not any(re.search(pattern, name) for name in names):
            raise ConfigError(
                f"learner.frozen: '{pattern}' matches no parameter of the network{nearest(pattern, names)}; they are: "
                f"{', '.join(names)}"
            )
    one = Batch(with_axes(sample_like(experiment, spec), 1))
    metric_names = tuple(jax.eval_shape(objective.taught_loss, shapes.params, shapes.teacher, shapes.step, one).metrics)
    shardings, batches = sharding.state_shardings(mesh, shapes, config.mesh), sharding.batch_sharding(mesh)
    unpack = partial(packing.unpack, xp=jnp)
    spec_of_step = TrainStepSpec(objective, unpack, metric_names, optimizer, rate, config.ema, config.microbatches)
    jitted_init = jax.jit(init, out_shardings=replace(shardings, teacher=None))

    def with_teacher(state: TrainState) -> TrainState:
        return replace(state, teacher=jax.tree.map(sharding.put_parameter, objective.teacher, shardings.teacher))

    return Training(
        init=lambda: with_teacher(jitted_init()),
        with_teacher=with_teacher,
        like=sharding.placed(shapes, shardings),
        mesh=mesh,
        packing=packing,
        put=partial(sharding.put_batch, sharding=batches),
        step=make_train_step(spec_of_step, mesh, shardings),
    )


_DISPATCHES = 5
"""Timed dispatches, after one that compiles."""


def timed(
    experiment: Experiment,
    network: Network | ModelNetwork,
    spec: EnvSpec,
    symmetries: Sequence[Symmetry],
    host_sync: HostSync | None = None,
) -> Experiment:
    """The experiment with the number that `learner.steps_per_dispatch: auto` stands for on these devices.

    Call it before reader and learner are built, on all hosts at once: they take the number that host 0 finds.
    """
    config = experiment.learner
    if config.steps_per_dispatch != "auto" or jax.default_backend() == "cpu":
        return experiment
    training = make_training(experiment, network, spec, symmetries)
    step_s = step_seconds(training, example_dispatch(experiment, spec, training.packing))
    steps = config.dispatch_steps(step_s)
    if host_sync is not None:
        steps = int(host_sync.told("steps per dispatch", str(steps)))
    log.info("learner.steps_per_dispatch = auto: %d, since a step takes %.2f ms on these devices", steps, 1e3 * step_s)
    return experiment.changed(learner={"steps_per_dispatch": steps})


def example_dispatch(experiment: Experiment, spec: EnvSpec, packing: SamplePacking) -> PackedBatch:
    """A dispatch of this host's batches `[K, B / hosts, ...]`, which repeat one sample: where replay holds states, that
    of a new game.
    """
    config = experiment.learner
    samples: Any = example_batch(experiment, spec, rows=1).samples
    if packing.holds_states:
        game = jax.jit(make_env(experiment.env).init)(jax.random.key(0))
        state = pack_states(jax.tree.map(lambda leaf: leaf[None], game))
        samples = samples._replace(state=jax.device_get(state))
    leading = (config.dispatch_steps(), config.batch_size // experiment.cluster.learner_hosts)
    return PackedBatch(np.resize(packing.pack(samples), (*leading, packing.row_bytes)))


def step_seconds(training: Training, dispatch: PackedBatch) -> float:
    """The time of a step, of dispatches one after the other."""
    batch, state = training.put(dispatch), training.init()
    state = jax.block_until_ready(training.step(state, batch).state)  # type: ignore[no-untyped-call]
    start = time.perf_counter()
    for _ in range(_DISPATCHES):
        state = training.step(state, batch).state
    jax.block_until_ready(state)  # type: ignore[no-untyped-call]
    return (time.perf_counter() - start) / (_DISPATCHES * len(dispatch.rows))


_STEPS = 3
"""Updates of the check."""


def check_own_learner(experiment: Experiment, spec: EnvSpec) -> None:
    """Checks what the user gives the learner: an optimizer, an objective, and the parameters of other agents."""
    optimizer, loss = experiment.learner.optimizer, experiment.learner.objective
    network = trainable_network(experiment.network, spec)
    initial = jax.jit(lambda: network.init(jax.random.key(0)))
    if isinstance(optimizer, OwnOptimizerConfig):
        check_optimizer(own_optimizer(optimizer), initial(), f"learner.optimizer.name = '{optimizer.name}'")
    if loss is not None:
        objective, batch = make_objective(experiment, network, spec, ()), example_batch(experiment, spec)
        check_objective(objective, initial(), batch, f"learner.objective.name = '{loss.name}'")
    if experiment.init_from is not None:
        read_warm_start(experiment.init_from, jax.eval_shape(network.init, jax.random.key(0)))
    if experiment.teacher is not None:
        read_teacher(experiment, spec)


def check_optimizer(optimizer: optax.GradientTransformation, params: Params, name: str) -> None:
    """Checks that updates have the form of the parameters, are finite, and point against the gradient."""
    faults = [*_faults_of_forms(optimizer, params)] or [*_faults_of_updates(optimizer, params)]
    if faults:
        raise ConfigError("\n  ".join([f"{name} violates the contract of optimizers (docs/own_parts.md):", *faults]))


def _faults_of_forms(optimizer: optax.GradientTransformation, params: Params) -> Iterator[str]:
    state = jax.eval_shape(optimizer.init, params)
    updates, after = jax.eval_shape(optimizer.update, params, state, params)
    trees: tuple[tuple[str, Any, str, Any], ...] = (
        ("updates", updates, "the parameters", params),
        ("the state after an update", after, "the state of init", state),
    )
    for what, found, like, expected in trees:
        structure: Any = jax.tree.structure(found)
        if structure != jax.tree.structure(expected):
            yield f"{what} have another structure than {like}: {structure}"
            continue
        for (path, one), two in zip(sharding.named_leaves(expected).items(), jax.tree.leaves(found), strict=True):
            if (one.shape, one.dtype) != (two.shape, two.dtype):
                yield f"{what}: {path} is {two.dtype} {list(two.shape)}; expected {one.dtype} {list(one.shape)}"


def _faults_of_updates(optimizer: optax.GradientTransformation, params: Params) -> Iterator[str]:
    gradient = optax.tree.random_like(jax.random.key(0), params)

    @jax.jit
    def step(state: Any) -> tuple[Any, jax.Array, jax.Array]:
        updates, state = optimizer.update(gradient, state, params)
        finite = jnp.isfinite(optax.tree.norm(updates))
        return state, finite, optax.tree.vdot(updates, gradient)

    state, slope = jax.jit(optimizer.init)(params), 0.0
    for number in range(1, _STEPS + 1):
        state, finite, change = step(state)
        if not finite:
            yield f"update {number} for a gradient of random numbers is not finite (NaN or infinity)"
            return
        slope += float(change)
    if slope > 0:
        yield (
            "updates point along the gradient, so the loss would rise; expected steps to be added to the parameters: "
            "end the chain with optax.scale_by_learning_rate(learning_rate)"
        )


def check_objective(objective: Objective, params: Params, batch: Batch, name: str) -> None:
    """Checks that loss and gradient are finite, and that the gradient is not zero."""

    def loss(params: Params) -> tuple[jax.Array, LossOutput]:
        output = objective.loss(params, batch)
        return output.total, output

    gradient, output = jax.device_get(jax.jit(jax.grad(loss, has_aux=True))(params))
    faults = [
        f"{where} is not finite (NaN or infinity)"
        for where, value in {**output.metrics, "total": output.total, "errors": output.errors}.items()
        if not np.isfinite(value).all()
    ]
    leaves = sharding.named_leaves(gradient)
    faults += [f"the gradient of {path} is not finite" for path, leaf in leaves.items() if not np.isfinite(leaf).all()]
    if not any(leaf.any() for leaf in leaves.values()):
        faults.append("the gradient is zero: total does not depend on the parameters")
    if faults:
        raise ConfigError("\n  ".join([f"{name} violates the contract of losses (docs/own_parts.md):", *faults]))


def example_batch(experiment: Experiment, spec: EnvSpec, rows: int = 8) -> Batch:
    """A batch of samples with random observations, in which all actions are legal and equally good."""
    rng = np.random.default_rng(0)
    like = with_axes(sample_like(experiment, spec), rows)
    samples = jax.tree.map(lambda leaf: np.full(leaf.shape, leaf.dtype == bool, leaf.dtype), like)
    observation = (rng.random(like.observation.shape) < 0.3).astype(like.observation.dtype)
    samples = samples._replace(observation=observation)
    if isinstance(samples, Sample):
        value = rng.uniform(-1, 1, samples.value_target.shape).astype(np.float32)
        return Batch(samples._replace(policy_target=_uniform(samples.policy_target), value_target=value))
    reward = rng.uniform(-1, 1, samples.reward.shape).astype(np.float32)
    length = np.full(rows, window_steps(experiment), np.int32)
    return Batch(samples._replace(policy=_uniform(samples.policy), reward=reward, length=length))


def _uniform(policy: Array) -> Array:
    return np.full(policy.shape, 1 / policy.shape[-1], np.float32)
