"""How much the searches of self-play explore."""

from __future__ import annotations

import jax.numpy as jnp

from podzero.config import ActorsConfig
from podzero.types import Array, Exploration


def explore(config: ActorsConfig, age: Array) -> Exploration:
    """The exploration of B games or episodes after `age` `[B]` moves, on which only the temperature depends."""
    first = True if config.temperature_plies is None else age < config.temperature_plies
    temperature = jnp.broadcast_to(jnp.where(first, config.temperature, 0.0), jnp.shape(age))
    return Exploration(jnp.full(temperature.shape, config.noise, jnp.float32), temperature.astype(jnp.float32))
