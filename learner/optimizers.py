"""optax optimizers and schedules from the experiment's words."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from podzero.config import OptimizerConfig


def make_schedule(config: OptimizerConfig) -> optax.Schedule:
    """The learning rate as a function of the optimizer step.

    Over the first `warmup_steps` W it rises linearly, `rate(t) = learning_rate * (t + 1) / W` (the first step
    already learns). Then, for s = t - W steps, `constant` stays, `linear` and both cosines fall over `decay_steps`
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
    """Clips the gradient to a global norm, then takes an optimizer step.

    Weight decay pulls on matrices and kernels only, never on biases or scales. AdamW and Lion decay decoupled from the
    gradient (Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101; Chen et al. 2023,
    https://arxiv.org/abs/2302.06675); SGD takes it as part of the gradient, as AlphaZero did.
    """
    rate, decay = make_schedule(config), config.weight_decay
    clip = optax.clip_by_global_norm(config.max_gradient_norm)
    match config.name:
        case "adamw":
            return optax.chain(clip, optax.adamw(rate, weight_decay=decay, mask=decayed))
        case "lion":
            return optax.chain(clip, optax.lion(rate, weight_decay=decay, mask=decayed))
        case "sgd":
            pull = optax.add_decayed_weights(decay, mask=decayed)
            return optax.chain(clip, pull, optax.sgd(rate, momentum=config.momentum))


def decayed(params: Any) -> Any:
    """Which leaves weight decay pulls on: those of two dimensions and more."""
    return jax.tree.map(lambda leaf: jnp.ndim(leaf) >= 2, params)
