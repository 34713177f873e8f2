"""The train state as one pytree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from podzero.learner.sharding import put_batch
from podzero.types import Array, Params


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The state that a train step updates and a checkpoint contains."""

    step: Array
    """`[]` int32, optimizer steps so far, including those that the NaN guard skipped."""
    progress: Array
    """`[]` float32 in [0, 1], how far the run has come towards its end, as of the newest dispatch."""
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
        progress=jnp.zeros((), jnp.float32),
        params=params,
        ema=jax.tree.map(jnp.copy, params),
        opt_state=optimizer.init(params),
        key=train_key,
    )


def with_progress(state: TrainState, progress: float) -> TrainState:
    """The state on the devices with another progress, which must be the same on all hosts."""
    assert isinstance(state.progress, jax.Array)
    return replace(state, progress=put_batch(np.float32(progress), state.progress.sharding))
