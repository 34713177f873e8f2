"""The agent that a network learns from (distillation): its network and parameters, and what it predicts for a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from podzero.config import Experiment, LearnerConfig
from podzero.core.errors import ConfigError
from podzero.core.types import Array, Batch, EnvSpec, Network, Params, Sample, SoftTargets
from podzero.files.players import full_name, trained_player
from podzero.learner.losses import ILLEGAL_LOGIT
from podzero.networks import make_inference, make_network
from podzero.networks.snapshots import check_matches, load_snapshot

Teach = Callable[[Params | None, Array, Batch], Batch]
"""Takes the teacher's parameters, the learner step and an augmented batch `[B, ...]`; adds the soft targets."""


class Teacher(NamedTuple):
    """A trained agent of the experiment's game."""

    network: Network
    """Its network, in the form that players evaluate."""
    params: Params
    """The parameters of that form, host arrays."""


def read_teacher(experiment: Experiment, spec: EnvSpec) -> Teacher | None:
    """The agent that `experiment.teacher` names; None without one.

    Args:
      experiment: the experiment of the network that learns.
      spec: the specification of its environment.

    Raises:
      ConfigError: there is no such agent, or it cannot play the experiment's game.
      WorkdirError: its experiment cannot be read.
      SnapshotError: its snapshot is missing, damaged, or of other observations or actions.
    """
    who = experiment.teacher
    if who is None:
        return None
    player = trained_player("teacher", who).at_newest()
    own = player.workdir.experiment()
    if own.learns_model or not own.plays(experiment.env.title):
        raise ConfigError(
            f"teacher = '{who}' plays {own.env.title} with the network '{own.network.name}', and cannot judge the "
            f"positions of {experiment.env.title}; expected an agent trained on {experiment.env.title} whose network "
            "learns no model, or one with network.global_pooling and another board size"
        )
    snapshot = load_snapshot(player.workdir.snapshots, player.step)
    origin = f"teacher = '{full_name(who, player, snapshot.version)}'"
    check_matches(snapshot.params, make_network(own.network, spec), origin)
    fold, network = make_inference(own.network, spec)
    return Teacher(network, jax.device_get(jax.jit(fold)(snapshot.params)))


def soft_targets_of(network: Network, config: LearnerConfig) -> Teach:
    """Adds the policy over the legal actions and the value that a teacher's `network` predicts, with their weight."""

    def teach(params: Params | None, step: Array, batch: Batch) -> Batch:
        samples = batch.samples
        assert isinstance(samples, Sample)
        logits, value = network.apply(params, samples.observation)
        policy = jax.nn.softmax(jnp.where(samples.legal, logits, ILLEGAL_LOGIT), axis=-1)
        return batch._replace(soft_targets=SoftTargets(policy, value, teacher_weight_at(step, config)))

    return teach


def add_nothing(params: Params | None, step: Array, batch: Batch) -> Batch:
    """The batch as it is: there is no teacher."""
    return batch


def teacher_weight_at(step: Array, config: LearnerConfig) -> jax.Array:
    """`teacher_weight * max(0, 1 - t / teacher_steps)` at step t, `[]` float32; constant without `teacher_steps`."""
    if config.teacher_steps is None:
        return jnp.float32(config.teacher_weight)
    return config.teacher_weight * jnp.maximum(0.0, 1.0 - jnp.asarray(step, jnp.float32) / config.teacher_steps)
