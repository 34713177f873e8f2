"""The contracts that an optimizer and a loss of one's own fulfil, checked on the network before a run starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from podzero.config import Experiment, OwnOptimizerConfig
from podzero.config.samples import sample_like, window_steps, with_axes
from podzero.core.errors import ConfigError
from podzero.core.types import Array, Batch, EnvSpec, ModelNetwork, Network, Params, Sample
from podzero.learner.losses import LossOutput
from podzero.learner.objectives import Objective, make_objective
from podzero.learner.optimizers import own_optimizer
from podzero.learner.sharding import leaf_names
from podzero.learner.trained_agents import read_teacher, read_warm_start
from podzero.networks import trainable_network

_STEPS = 3
"""Updates of the check."""


def check_own_learner(experiment: Experiment, spec: EnvSpec) -> None:
    """Checks what the user gives the learner: an optimizer, an objective, and the parameters of other agents.

    Raises:
      ConfigError: one of them violates its contract, or cannot be made or read.
    """
    optimizer, loss = experiment.learner.optimizer, experiment.learner.objective
    network = trainable_network(experiment.network, spec)
    if isinstance(optimizer, OwnOptimizerConfig):
        check_optimizer(own_optimizer(optimizer), _initial(network), f"learner.optimizer.name = '{optimizer.name}'")
    if loss is not None:
        objective, batch = make_objective(experiment, network, spec, ()), example_batch(experiment, spec)
        check_objective(objective, _initial(network), batch, f"learner.objective.name = '{loss.name}'")
    if experiment.init_from is not None:
        read_warm_start(experiment.init_from, jax.eval_shape(network.init, jax.random.key(0)))
    if experiment.teacher is not None:
        read_teacher(experiment, spec)


def _initial(network: Network | ModelNetwork) -> Params:
    params: Params = jax.jit(network.init)(jax.random.key(0))
    return params


def check_optimizer(optimizer: optax.GradientTransformation, params: Params, name: str) -> None:
    """Checks that updates have the form of the parameters, are finite, and point against the gradient.

    Raises:
      ConfigError: they do not; the message has a line for each fault.
    """
    faults = [*_faults_of_forms(optimizer, params)] or [*_faults_of_updates(optimizer, params)]
    if faults:
        raise ConfigError("\n  ".join([f"{name} violates the contract of optimizers (docs/own_parts.md):", *faults]))


def _faults_of_forms(optimizer: optax.GradientTransformation, params: Params) -> Iterator[str]:
    state = jax.eval_shape(optimizer.init, params)
    updates, after = jax.eval_shape(optimizer.update, params, state, params)
    for what, expected, found in (("updates", params, updates), ("the state after an update", state, after)):
        structures: list[Any] = [jax.tree.structure(tree) for tree in (expected, found)]
        if structures[0] != structures[1]:
            like = "the parameters" if expected is params else "the state of init"
            yield f"{what} have another structure than {like}: {structures[1]}"
            continue
        leaves = zip(leaf_names(expected), jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
        for path, one, two in leaves:
            if (one.shape, one.dtype) != (two.shape, two.dtype):
                yield f"{what}: {path} is {_form(two)}; expected {_form(one)}"


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
    """Checks that loss and gradient are finite, and that the gradient is not zero.

    Raises:
      ConfigError: they are not; the message has a line for each fault.
    """

    def loss(params: Params) -> tuple[jax.Array, LossOutput]:
        output = objective.loss(params, batch)
        return output.total, output

    gradient, output = jax.device_get(jax.jit(jax.grad(loss, has_aux=True))(params))
    faults = [
        f"{where} is not finite (NaN or infinity)"
        for where, value in {**output.metrics, "total": output.total, "errors": output.errors}.items()
        if not np.isfinite(value).all()
    ]
    leaves = dict(zip(leaf_names(gradient), jax.tree.leaves(gradient), strict=True))
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


def _form(leaf: Any) -> str:
    return f"{leaf.dtype} {list(leaf.shape)}"
