"""What every board network asks of its configuration and its environment."""

from __future__ import annotations

from typing import cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from podzero.errors import ConfigError
from podzero.types import Array, EnvSpec, Network, Params


def check_boards(spec: EnvSpec, network: str) -> None:
    """Makes sure that the observations of `spec` are boards `[H, W, C]`.

    Raises:
      ConfigError: the observations are no boards `[H, W, C]`.
    """
    if len(spec.observation_shape) != 3:
        raise ConfigError(
            f"network.name = '{network}' reads boards [height, width, planes], but the observations of "
            f"'{spec.name}' have shape {list(spec.observation_shape)}; choose an environment with board observations"
        )


def compute_dtype(name: str) -> np.dtype[np.generic]:
    """The dtype in which a network computes: `auto` is bfloat16 on accelerators and float32 on CPU.

    Asks for the default backend, so call it while tracing, never at construction: whoever only builds a network
    must not take hold of the chips.
    """
    if name == "auto":
        name = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    return jnp.dtype(name)


def flax_network(module: nn.Module, spec: EnvSpec) -> Network:
    """A Flax module that maps boards of `spec` to logits and values, as a pair of pure functions."""

    def init(key: Array) -> Params:
        return module.init(jnp.asarray(key), jnp.zeros((1, *spec.observation_shape), spec.observation_dtype))["params"]

    def apply(params: Params, observation: Array) -> tuple[jax.Array, jax.Array]:
        return cast(tuple[jax.Array, jax.Array], module.apply({"params": params}, observation))

    return Network(init, apply)
