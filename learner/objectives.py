"""The training objectives of AlphaZero, MuZero and the user behind one signature, and the augmentation of samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config import Experiment, LearnerConfig, MuZeroConfig, OwnObjectiveConfig
from podzero.config.section import own_code
from podzero.core.errors import ConfigError
from podzero.core.types import Array, Batch, EnvSpec, ModelNetwork, Network, Params, Sample, Symmetry, Window
from podzero.learner.losses import LossOutput, alphazero_loss, muzero_loss
from podzero.learner.trained_agents import Predict, read_teacher, soft_targets


class Objective(NamedTuple):
    """The pure functions of a train step that depend on the algorithm."""

    init: Callable[[Array], Params]
    """Takes a PRNG key, returns the initial parameters."""
    augment: Callable[[Array, Batch], Batch]
    """Takes a PRNG key and a batch `[B, ...]`; returns it augmented."""
    loss: Callable[[Params, Batch], LossOutput]
    """The loss of an augmented batch `[B, ...]`."""
    observe: Callable[[Params, Batch], Params]
    """Updates the parameters' running statistics of observations from a batch."""
    teacher: Params | None = None
    """The teacher's parameters, host arrays; None without a teacher."""
    soft_targets: Predict | None = None

    def taught_loss(self, params: Params, teacher: Params | None, step: Array, batch: Batch) -> LossOutput:
        """The loss of an augmented batch at a learner step, with the soft targets of the `teacher` parameters."""
        if self.soft_targets is not None:
            batch = batch._replace(soft_targets=self.soft_targets(teacher, step, _samples_of(batch, Sample)))
        return self.loss(params, batch)


def make_objective(
    experiment: Experiment, network: Network | ModelNetwork, spec: EnvSpec, symmetries: Sequence[Symmetry]
) -> Objective:
    """The objective of an experiment; `network` is a `ModelNetwork` if `experiment.learns_model`."""
    config = experiment.learner
    if isinstance(network, ModelNetwork):
        objective = muzero_objective(network, experiment.muzero, config.value_weight, experiment.env.discount)
    else:
        augment = make_augment(symmetries if config.augment else (), spec.num_actions)
        objective = alphazero_objective(network, config, augment)
        if (teacher := read_teacher(experiment, spec)) is not None:
            predictor, params = teacher
            objective = objective._replace(teacher=params, soft_targets=partial(soft_targets, predictor, config))
    return objective if config.objective is None else own_objective(config.objective, objective, network)


def alphazero_objective(network: Network, config: LearnerConfig, augment: Augment) -> Objective:
    """AlphaZero's loss on augmented positions."""

    def loss(params: Params, batch: Batch) -> LossOutput:
        samples = _samples_of(batch, Sample)
        output = alphazero_loss(network, config, params, samples, batch.weight, batch.soft_targets)
        # XLA merges this evaluation with that of the loss, whose operations it repeats.
        more = network.metrics(params, samples.observation) if network.metrics else {}
        return output._replace(metrics=output.metrics | more)

    return Objective(
        network.init,
        augment=lambda key, batch: batch._replace(samples=augment(key, _samples_of(batch, Sample))),
        loss=loss,
        observe=lambda params, batch: params,
    )


def muzero_objective(network: ModelNetwork, config: MuZeroConfig, value_weight: float, discount: float) -> Objective:
    """MuZero's loss on windows."""

    def loss(params: Params, batch: Batch) -> LossOutput:
        return muzero_loss(network, config, value_weight, discount, params, _samples_of(batch, Window), batch.weight)

    def observe(params: Params, batch: Batch) -> Params:
        # Position 0 only: windows overlap, but each begins at another step of its episode.
        return network.observe(params, _samples_of(batch, Window).observation[:, 0])

    return Objective(network.init, lambda key, batch: batch, loss, observe)


def own_objective(config: OwnObjectiveConfig, objective: Objective, network: Network | ModelNetwork) -> Objective:
    """`objective` with the loss that `config.name` names."""
    offered = {"objective": objective, "network": network}
    code = own_code(config, "learner.objective", offered)
    made = code.make_function(offered, "loss(params, batch), see podzero.learner.objectives.Objective")

    def loss(params: Params, batch: Batch) -> LossOutput:
        with code.running("its loss"):
            output = made(params, batch)
        return _of_form(output, batch, code.where)

    return objective._replace(loss=loss)


def _of_form(output: object, batch: Batch, where: str) -> LossOutput:
    """The output in float32."""
    if not isinstance(output, LossOutput):
        raise ConfigError(f"{where}: its loss returned a {type(output).__name__}; expected a LossOutput")
    shapes = {"total": (), "errors": jnp.shape(batch.samples.version)} | dict.fromkeys(output.metrics, ())
    found = output.metrics | {"total": output.total, "errors": output.errors}
    for name, shape in shapes.items():
        if (given := jnp.shape(found[name])) != shape:
            raise ConfigError(f"{where}: {name} of its LossOutput has shape {list(given)}; expected {list(shape)}")
    converted: LossOutput = jax.tree.map(partial(jnp.asarray, dtype=jnp.float32), output)
    return converted


def _samples_of[Kind: (Sample, Window)](batch: Batch, kind: type[Kind]) -> Kind:
    assert isinstance(batch.samples, kind)
    return batch.samples


Augment = Callable[[Array, Sample], Sample]
"""Maps a PRNG key and a batch of samples to a batch of the same shapes."""


def make_augment(symmetries: Sequence[Symmetry], num_actions: int) -> Augment:
    """Transforms each sample by a symmetry drawn uniformly, the identity included."""
    if not symmetries:
        return lambda key, batch: batch
    observations = [lambda observation: observation, *(symmetry.observation for symmetry in symmetries)]
    actions = np.stack([np.arange(num_actions), *(symmetry.actions for symmetry in symmetries)])
    # The new index of each old action: the inverse permutations.
    moved_to = np.argsort(actions, axis=1)

    def one(choice: jax.Array, sample: Sample) -> Sample:
        order, reply, ownership = jnp.asarray(actions)[choice], sample.reply, sample.ownership
        return sample._replace(
            reply=None if reply is None else jnp.where(reply < 0, reply, jnp.asarray(moved_to)[choice, reply]),
            ownership=None if ownership is None else ownership[order[: ownership.shape[0]]],
            observation=jax.lax.switch(choice, observations, sample.observation),
            legal=sample.legal[order],
            policy_target=sample.policy_target[order],
        )

    def augment(key: Array, batch: Sample) -> Sample:
        choices = jax.random.randint(key, (batch.legal.shape[0],), 0, len(observations))
        return jax.vmap(one)(choices, batch)

    return augment
