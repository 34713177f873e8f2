"""What a network takes from a trained agent: its first parameters (warm start), or targets (distillation)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podzero.config import Experiment, LearnerConfig
from podzero.core.errors import ConfigError
from podzero.core.types import Array, EnvSpec, Network, Params, Sample, SoftTargets
from podzero.files.players import full_name, trained_player
from podzero.learner.losses import ILLEGAL_LOGIT
from podzero.learner.sharding import map_named, named_leaves, put_parameter
from podzero.networks import make_inference, make_network
from podzero.networks.snapshots import check_matches, load_snapshot


def read_warm_start(who: str, params: Params) -> tuple[dict[str, np.ndarray[Any, Any]], str]:
    """Reads the parameters of a trained agent (`DIR`, `DIR@STEP` or `zoo:NAME`) that fit a network, by name.

    Also returns a summary, with a line for each parameter of the network that the agent lacks or has in another shape.
    """
    player = trained_player("init_from", who)
    snapshot = load_snapshot(player.workdir.snapshots, player.step)
    trained, own = named_leaves(snapshot.params), named_leaves(params)
    taken = {
        name: found
        for name, found in trained.items()
        if name in own and (found.shape, found.dtype) == (own[name].shape, own[name].dtype)
    }
    if not taken:
        (name, leaf), found = next(iter(own.items())), ", ".join(list(trained)[:3])
        raise ConfigError(
            f"init_from = '{who}': none of its parameters fits this network, which has for example {name} of "
            f"shape {list(leaf.shape)}; it has {found} ..."
        )
    fresh = [
        f"fresh: {name} {list(leaf.shape)}, there {list(trained[name].shape) if name in trained else 'missing'}"
        for name, leaf in own.items()
        if name not in taken
    ]
    weights, total = (sum(math.prod(leaf.shape) for leaf in leaves.values()) for leaves in (taken, own))
    origin = full_name(who, player, snapshot.version)
    head = f"init_from {origin}: {weights:,} of {total:,} weights taken ({len(taken)} arrays)"
    return taken, "\n  ".join([head, *fresh])


def warm_started(params: Params, taken: Mapping[str, np.ndarray[Any, Any]]) -> Params:
    """Initial parameters (device arrays) with those taken from the agent in their places."""
    return map_named(lambda name, leaf: put_parameter(taken[name], leaf.sharding) if name in taken else leaf, params)


def read_teacher(experiment: Experiment, spec: EnvSpec) -> tuple[Network, Params] | None:
    """The network of the agent that `experiment.teacher` names, in the form that players evaluate, and the parameters
    of that form, host arrays; None without a teacher.
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
    return network, jax.device_get(jax.jit(fold)(snapshot.params))


Predict = Callable[[Params | None, Array, Sample], SoftTargets]
"""What a teacher predicts: takes its parameters, the learner step and augmented samples `[B, ...]`."""


def soft_targets(network: Network, config: LearnerConfig, params: Params, step: Array, samples: Sample) -> SoftTargets:
    """The policy over the legal actions and the value that a teacher predicts, with their weight at a learner step."""
    logits, value = network.apply(params, samples.observation)
    policy = jax.nn.softmax(jnp.where(samples.legal, logits, ILLEGAL_LOGIT), axis=-1)
    return SoftTargets(policy, value, teacher_weight_at(step, config))


def teacher_weight_at(step: Array, config: LearnerConfig) -> jax.Array:
    """`teacher_weight * max(0, 1 - t / teacher_steps)` at step t, `[]` float32; constant without `teacher_steps`."""
    if config.teacher_steps is None:
        return jnp.float32(config.teacher_weight)
    return config.teacher_weight * jnp.maximum(0.0, 1.0 - jnp.asarray(step, jnp.float32) / config.teacher_steps)
