"""The train state as one pytree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from podzero.types import Array, Params


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The state that a train step updates and a checkpoint contains."""

    step: Array
    """`[]` int32, optimizer steps so far, including those that the NaN guard skipped."""
    params: Params
    """The weights that the optimizer updates, float32."""
    ema: Params
    """Their exponential moving average, which actors use."""
    opt_state: Any
    """The state of the optax optimizer."""
    key: Array
    """`[]` typed PRNG key of the augmentation."""


def init_state(init: Callable[[Array], Params], optimizer: optax.GradientTransformation, key: Array) -> TrainState:
    """The state before the first step, with parameters from `init`; `key` is consumed."""
    init_key, train_key = jax.random.split(key)
    params = init(init_key)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        ema=jax.tree.map(jnp.copy, params),
        opt_state=optimizer.init(params),
        key=train_key,
    )
