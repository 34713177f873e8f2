"""What the networks have in common: the check of observations, the dtype, and Flax modules as pure functions."""

from __future__ import annotations

from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from podzero.errors import ConfigError
from podzero.types import Array, EnvSpec, Network, Params, Prediction


def check_boards(spec: EnvSpec, network: str) -> None:
    """Checks that the observations of `spec` are boards `[H, W, C]`.

    Raises:
      ConfigError: the observations are not boards.
    """
    if len(spec.observation_shape) != 3:
        raise ConfigError(
            f"network.name = '{network}' reads boards [height, width, planes], but the observations of "
            f"'{spec.name}' have shape {list(spec.observation_shape)}; choose an environment with board observations"
        )


def compute_dtype(name: str) -> np.dtype[np.generic]:
    """The dtype in which a network computes: `auto` is bfloat16 on accelerators and float32 on CPU.

    This initializes JAX's default backend. So call it while tracing, never at construction: a process that only builds
    a network must not acquire the chips.
    """
    if name == "auto":
        name = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    return jnp.dtype(name)


def flax_network(module: nn.Module, spec: EnvSpec, auxiliary: bool = False) -> Network:
    """Turns a Flax module that maps observations of `spec` to logits and values into pure functions.

    With `auxiliary` the module takes an argument of that name, and then has auxiliary heads.
    """

    def init(key: Array) -> Params:
        observation = jnp.zeros((1, *spec.observation_shape), spec.observation_dtype)
        options: dict[str, Any] = {"auxiliary": True} if auxiliary else {}
        return module.init(jnp.asarray(key), observation, **options)["params"]

    def apply(params: Params, observation: Array) -> tuple[jax.Array, jax.Array]:
        return cast(tuple[jax.Array, jax.Array], module.apply({"params": params}, observation))

    def apply_all(params: Params, observation: Array) -> tuple[jax.Array, jax.Array, Prediction]:
        outputs = module.apply({"params": params}, observation, auxiliary=True)
        return cast(tuple[jax.Array, jax.Array, Prediction], outputs)

    return Network(init, apply, apply_all if auxiliary else None)
