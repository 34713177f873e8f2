"""Optimizers (optax) and the learning rate."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from podzero.config import OptimizerConfig
from podzero.learner.sharding import leaf_names
from podzero.types import Array

Rate = Callable[[Array, Array], jax.Array]
"""Maps a learner step `[]` int32 and the progress of the run `[]` float32, in [0, 1], to the learning rate."""


def make_rate(config: OptimizerConfig) -> Rate:
    """The learning rate `learning_rate * min(1, (t + 1) / W) * shape(p)` at step t and progress p of the run.

    W is `warmup_steps`. With the final fraction f, `shape(p)` is `f + (1 - f) * (1 + cos(pi * p)) / 2` for `cosine`
    (Loshchilov & Hutter 2017, https://arxiv.org/abs/1608.03983), `1 - (1 - f) * p` for `linear`, and 1 for `constant`.
    With `decay_steps` D, p is `(t - W) / D`.
    """

    def rate(step: Array, progress: Array) -> jax.Array:
        t = jnp.asarray(step, jnp.float32)
        # t + 1, so that the first step has a positive rate.
        rise = jnp.minimum(1.0, (t + 1.0) / max(1, config.warmup_steps))
        if config.decay_steps is not None:
            progress = jnp.clip((t - config.warmup_steps) / config.decay_steps, 0.0, 1.0)
        return config.learning_rate * rise * _shape(config, jnp.asarray(progress, jnp.float32))

    return rate


def _shape(config: OptimizerConfig, progress: jax.Array) -> jax.Array:
    final = config.final_fraction
    match config.schedule:
        case "constant":
            return jnp.ones_like(progress)
        case "linear":
            return 1.0 - (1.0 - final) * progress
        case "cosine":
            return final + (1.0 - final) * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))


def make_optimizer(config: OptimizerConfig, frozen: Sequence[str] = ()) -> optax.GradientTransformation:
    """The optimizer, with a learning rate of 1; the caller multiplies its updates by the learning rate.

    Args:
      config: the section `learner.optimizer`.
      frozen: regular expressions; parameters whose paths match one get neither gradient nor weight decay.
    """
    if not frozen:
        return _optimizer(config)
    hold = optax.masked(optax.set_to_zero(), partial(matching, patterns=frozen))
    return optax.chain(hold, _optimizer(config), hold)


def matching(params: Any, patterns: Sequence[str]) -> Any:
    """The mask of the parameters whose paths match one of the regular expressions."""
    found = [any(re.search(pattern, name) for pattern in patterns) for name in leaf_names(params)]
    return jax.tree.unflatten(jax.tree.structure(params), found)


def _optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Clips the gradient to a global norm, then applies the optimizer with a learning rate of 1.

    The caller multiplies its updates by the learning rate. AdamW and Lion decouple weight decay from the gradient
    (Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101; Chen et al. 2023, https://arxiv.org/abs/2302.06675);
    SGD adds it to the gradient, as AlphaZero did.
    """
    decay = config.weight_decay
    clip = optax.clip_by_global_norm(config.max_gradient_norm)
    match config.name:
        case "adamw":
            return optax.chain(clip, optax.adamw(1.0, weight_decay=decay, mask=decayed))
        case "lion":
            return optax.chain(clip, optax.lion(1.0, weight_decay=decay, mask=decayed))
        case "sgd":
            add_decay = optax.add_decayed_weights(decay, mask=decayed)
            return optax.chain(clip, add_decay, optax.sgd(1.0, momentum=config.momentum))


def decayed(params: Any) -> Any:
    """The mask of weight decay: matrices and kernels, not biases or scales."""
    return jax.tree.map(lambda leaf: jnp.ndim(leaf) >= 2, params)
