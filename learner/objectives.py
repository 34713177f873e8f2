"""What is minimized: AlphaZero's loss or MuZero's, behind one signature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from podzero.config import Experiment, MuZeroConfig
from podzero.learner.augment import Augment, make_augment
from podzero.learner.losses import alphazero_loss
from podzero.learner.muzero import muzero_loss
from podzero.types import Array, Batch, EnvSpec, ModelNetwork, Network, Params, Sample, Symmetry, Window


class LossOutput(NamedTuple):
    """A loss and what is worth knowing of it."""

    total: jax.Array
    """`[]` float32, what is minimized: a mean over the batch."""
    parts: dict[str, jax.Array]
    """Figures by name, each `[]` float32, averaged over the batch."""
    errors: jax.Array
    """`[B]` float32, absolute error of each sample's value: its priority."""


class Objective(NamedTuple):
    """What a train step minimizes."""

    init: Callable[[Array], Params]
    """Takes a PRNG key, returns the parameters before the first step."""
    prepare: Callable[[Array, Batch], Batch]
    """Takes a PRNG key and a batch `[B, ...]`; returns it augmented."""
    loss: Callable[[Params, Batch], LossOutput]
    """The loss of a prepared batch `[B, ...]`."""
    observe: Callable[[Params, Batch], Params]
    """The parameters with the running statistics of observations that a batch changes."""


def make_objective(
    experiment: Experiment, network: Network | ModelNetwork, spec: EnvSpec, symmetries: Sequence[Symmetry]
) -> Objective:
    """The objective of an experiment; `network` is of the kind that `experiment.learns_model` asks for."""
    config = experiment.learner
    if isinstance(network, ModelNetwork):
        return muzero_objective(network, experiment.muzero, config.value_weight, experiment.env.discount)
    return alphazero_objective(
        network, config.value_weight, make_augment(symmetries if config.augment else (), spec.num_actions)
    )


def alphazero_objective(network: Network, value_weight: float, augment: Augment) -> Objective:
    """AlphaZero's loss on positions, each seen through a random symmetry."""

    def prepare(key: Array, batch: Batch) -> Batch:
        return batch._replace(samples=augment(key, _positions(batch)))

    def loss(params: Params, batch: Batch) -> LossOutput:
        of = alphazero_loss(network, value_weight, params, _positions(batch), batch.weight)
        parts = {"loss": of.total, "policy_loss": of.policy, "policy_kl": of.policy_kl, "value_loss": of.value}
        return LossOutput(of.total, parts, of.errors)

    return Objective(network.init, prepare, loss, observe=lambda params, batch: params)


def muzero_objective(network: ModelNetwork, config: MuZeroConfig, value_weight: float, discount: float) -> Objective:
    """MuZero's loss on windows."""

    def loss(params: Params, batch: Batch) -> LossOutput:
        of = muzero_loss(network, config, value_weight, discount, params, _windows(batch), batch.weight)
        parts = {
            "loss": of.total,
            "policy_loss": of.policy,
            "policy_kl": of.policy_kl,
            "policy_entropy": of.entropy,
            "value_loss": of.value,
            "reward_loss": of.reward,
        }
        if config.consistency_weight:
            parts["consistency_loss"] = of.consistency
        return LossOutput(of.total, parts, of.errors)

    def observe(params: Params, batch: Batch) -> Params:
        """Position 0 of windows is looked at: every step of an episode comes first in one, or every `stride`-th."""
        return network.observe(params, _windows(batch).observation[:, 0])

    return Objective(network.init, lambda key, batch: batch, loss, observe)


def _positions(batch: Batch) -> Sample:
    assert isinstance(batch.samples, Sample)
    return batch.samples


def _windows(batch: Batch) -> Window:
    assert isinstance(batch.samples, Window)
    return batch.samples
