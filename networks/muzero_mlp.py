"""MuZero's networks as multilayer perceptrons in Haiku, for vector observations."""

from __future__ import annotations

from dataclasses import dataclass

import haiku as hk
import jax
import jax.numpy as jnp

from podzero.config import MuZeroMLPConfig
from podzero.networks.boards import compute_dtype
from podzero.networks.haiku_layers import MLP, Dense
from podzero.networks.muzero import Parts, PolicyLayer, action_features, bins_layer, model_network, unit_range
from podzero.networks.normalization import Normalization, merge
from podzero.types import Array, EnvSpec, ModelNetwork, Params

_STATISTICS = "representation/normalization"
"""The Haiku module that holds the running statistics."""


@dataclass
class Representation(hk.Module):
    """Observations, flattened and normalized, to latent states."""

    config: MuZeroMLPConfig

    def __call__(self, observation: Array) -> jax.Array:
        """Maps `[B, ...]` to `[B, latent]` float32 in [0, 1]."""
        config, x = self.config, _flat(observation)
        if config.normalize:
            x = Normalization("normalization")(x)
        x = x.astype(compute_dtype(config.compute_dtype))
        x = MLP(config.width, config.layers, "trunk")(x)
        return unit_range(Dense(config.latent, 1.0, "latent")(x))


@dataclass
class Dynamics(hk.Module):
    """A latent state and an action to the next latent state, as a change of the old one, and the reward."""

    config: MuZeroMLPConfig
    spec: EnvSpec

    def __call__(self, latent: jax.Array, action: Array) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, latent]` and actions to `[B, latent]` float32 in [0, 1] and reward logits `[B, bins]`."""
        config = self.config
        x = jnp.concatenate([latent, action_features(action, self.spec)], axis=-1)
        x = x.astype(compute_dtype(config.compute_dtype))
        x = MLP(config.width, config.layers, "trunk")(x)
        change = Dense(config.latent, 1.0, "change")(x)
        return unit_range(latent + change.astype(jnp.float32)), bins_layer(config.bins, "reward")(x)


@dataclass
class Prediction(hk.Module):
    """A latent state to policy and value."""

    config: MuZeroMLPConfig
    spec: EnvSpec

    def __call__(self, latent: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, latent]` to the policy and value logits `[B, bins]`."""
        x = latent.astype(compute_dtype(self.config.compute_dtype))
        x = MLP(self.config.width, self.config.layers, "trunk")(x)
        return PolicyLayer(self.spec)(x), bins_layer(self.config.bins, "value")(x)


def muzero_mlp(config: MuZeroMLPConfig, spec: EnvSpec) -> ModelNetwork:
    """The network for observations of any shape, which it flattens."""

    def build() -> Parts:
        return Parts(Representation(config), Prediction(config, spec), Dynamics(config, spec))

    def observe(params: Params, observations: Array) -> Params:
        return {**params, _STATISTICS: merge(params[_STATISTICS], _flat(observations))}

    return model_network(build, config, spec, observe if config.normalize else None)


def _flat(observation: Array) -> jax.Array:
    """`[B, ...]` of any real dtype to `[B, width]` float32."""
    x = jnp.asarray(observation, jnp.float32)
    return x.reshape(x.shape[0], -1)
