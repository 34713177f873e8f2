"""Builds optax optimizers and learning rate schedules from the config."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from podzero.config import OptimizerConfig


def make_schedule(config: OptimizerConfig) -> optax.Schedule:
    """The learning rate as a function of the optimizer step.

    Over the first `warmup_steps` W it rises linearly: `rate(t) = learning_rate * (t + 1) / W`, so that the first step
    has a positive rate. Then `constant` stays constant. `linear`, `cosine` and `warmup_cosine` fall over `decay_steps`
    to `final_fraction * learning_rate` and stay there.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    main = _main_schedule(config)
    if warmup == 0:
        return main
    rise = optax.linear_schedule(peak / warmup, peak + peak / warmup, warmup)
    return optax.join_schedules([rise, main], [warmup])


def _main_schedule(config: OptimizerConfig) -> optax.Schedule:
    if config.decay_steps is None:
        return optax.constant_schedule(config.learning_rate)
    match config.schedule:
        case "constant":
            return optax.constant_schedule(config.learning_rate)
        case "linear":
            end = config.final_fraction * config.learning_rate
            return optax.linear_schedule(config.learning_rate, end, config.decay_steps)
        case "cosine" | "warmup_cosine":
            return optax.cosine_decay_schedule(config.learning_rate, config.decay_steps, alpha=config.final_fraction)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Clips the gradient to a global norm, then applies the optimizer.

    Weight decay applies to matrices and kernels only, not to biases or scales. AdamW and Lion decouple it from the
    gradient (Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101; Chen et al. 2023,
    https://arxiv.org/abs/2302.06675); SGD adds it to the gradient, as AlphaZero did.
    """
    rate, decay = make_schedule(config), config.weight_decay
    clip = optax.clip_by_global_norm(config.max_gradient_norm)
    match config.name:
        case "adamw":
            return optax.chain(clip, optax.adamw(rate, weight_decay=decay, mask=decayed))
        case "lion":
            return optax.chain(clip, optax.lion(rate, weight_decay=decay, mask=decayed))
        case "sgd":
            add_decay = optax.add_decayed_weights(decay, mask=decayed)
            return optax.chain(clip, add_decay, optax.sgd(rate, momentum=config.momentum))


def decayed(params: Any) -> Any:
    """The mask of weight decay: leaves of two or more dimensions."""
    return jax.tree.map(lambda leaf: jnp.ndim(leaf) >= 2, params)
