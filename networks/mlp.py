"""A multilayer perceptron with policy and value heads, in Flax."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from podzero.config import MLPConfig
from podzero.core.types import EnvSpec, Network
from podzero.networks.layers import LAST_LAYER_SCALE, compute_dtype, flax_network, values_of


class MLP(nn.Module):
    """Dense layers, each followed by layer normalization and relu, then the heads."""

    config: MLPConfig
    num_actions: int
    values: int = 1
    """See `EnvSpec.values`."""

    @nn.compact
    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, ...]` of any real dtype or bool to float32 logits `[B, A]` and values, see `values_of`."""
        dtype = compute_dtype(self.config.compute_dtype)
        x = jnp.asarray(observation, dtype).reshape(observation.shape[0], -1)
        for index in range(self.config.layers):
            x = nn.Dense(
                self.config.width, dtype=dtype, kernel_init=nn.initializers.he_normal(), name=f"dense_{index}"
            )(x)
            x = nn.relu(nn.LayerNorm(dtype=dtype, name=f"norm_{index}")(x))
        last = nn.initializers.variance_scaling(LAST_LAYER_SCALE, "fan_in", "truncated_normal")
        assert x.shape == (observation.shape[0], self.config.width), x.shape
        # The heads compute in float32, whatever the dtype of the layers.
        features = x.astype(jnp.float32)
        logits = nn.Dense(self.num_actions, kernel_init=last, name="policy_logits")(features)
        return logits, values_of(nn.Dense(self.values, kernel_init=last, name="value")(features))


def mlp(config: MLPConfig, spec: EnvSpec) -> Network:
    """The network for observations of any shape, which it flattens."""
    return flax_network(MLP(config, spec.num_actions, spec.values), spec)
