"""What MuZero's networks for vectors and images have in common (Schrittwieser et al. 2020, appendices F and G)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from podzero.config import ModelNetworkConfig
from podzero.networks.categorical import decode, encode
from podzero.networks.haiku_layers import Dense, layer_norm
from podzero.networks.heads import LAST_LAYER_SCALE
from podzero.types import Array, EnvSpec, ModelNetwork, Params

MEAN_BOUND = 3.0
"""Bound of the means of continuous policies before squashing: tanh(3) = 0.995."""
LOG_STD_BOUNDS = (-3.0, 0.5)
"""Bounds of the log standard deviations of continuous policies."""
START_STD = math.pi / (2.0 * math.sqrt(3.0))
"""Standard deviation of an untrained policy: that of the logistic distribution of scale one half, which tanh maps to
the uniform distribution on [-1, 1]."""
_MIN_RANGE = 1e-5


class Parts(NamedTuple):
    """The functions of a `ModelNetwork` that depend on the observations; `model_network` adds the projection."""

    represent: Callable[[Array], jax.Array]
    predict: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
    dynamics: Callable[[jax.Array, Array], tuple[jax.Array, jax.Array]]


class _AllParts(NamedTuple):
    """All functions that have parameters, as Haiku's `multi_transform` takes and returns them."""

    represent: Callable[..., jax.Array]
    predict: Callable[..., tuple[jax.Array, jax.Array]]
    dynamics: Callable[..., tuple[jax.Array, jax.Array]]
    project: Callable[..., jax.Array]


def model_network(
    build: Callable[[], Parts],
    config: ModelNetworkConfig,
    spec: EnvSpec,
    observe: Callable[[Params, Array], Params] | None = None,
) -> ModelNetwork:
    """Turns Haiku modules into the pure functions of a network.

    Args:
      build: makes the modules; called while tracing.
      config: of the network.
      spec: of the environment.
      observe: `ModelNetwork.observe`; by default the parameters hold no statistics.
    """

    def modules() -> tuple[Callable[[Array, Array], Any], _AllParts]:
        parts = _AllParts(*build(), Projection(config.projection))

        def all_of_them(observation: Array, action: Array) -> Any:
            latent = parts.represent(observation)
            return parts.predict(latent), parts.dynamics(latent, action), parts.project(latent, True)

        return all_of_them, parts

    transformed = hk.without_apply_rng(hk.multi_transform(modules))

    def init(key: Array) -> Params:
        observation = jnp.zeros((1, *spec.observation_shape), spec.observation_dtype)
        action = jnp.zeros((1, *spec.action_shape), jnp.float32 if spec.action_shape else jnp.int32)
        return transformed.init(key, observation, action)

    return ModelNetwork(
        init=init,
        **transformed.apply._asdict(),
        encode=partial(encode, support=config.support),
        decode=partial(decode, support=config.support),
        observe=observe or (lambda params, observations: params),
    )


@dataclass
class Projection(hk.Module):
    """Projector and predictor of the consistency loss (Chen & He 2021, SimSiam; Ye et al. 2021, EfficientZero)."""

    width: int

    def __call__(self, latent: jax.Array, predicted: bool) -> jax.Array:
        """Maps `[B, ...]` to `[B, width]`."""
        x = latent.reshape(latent.shape[0], -1)
        x = jax.nn.relu(layer_norm(Dense(self.width, 2.0, "projector_hidden")(x), "projector_norm"))
        x = Dense(self.width, 1.0, "projector")(x)
        if not predicted:
            return x
        x = jax.nn.relu(layer_norm(Dense(max(1, self.width // 2), 2.0, "predictor_hidden")(x), "predictor_norm"))
        return Dense(self.width, 1.0, "predictor")(x)


@dataclass
class PolicyLayer(hk.Module):
    """The last layer of a policy, computed in float32; untrained, the policy is nearly uniform over the actions."""

    spec: EnvSpec
    name: str = "policy"

    def __call__(self, features: jax.Array) -> jax.Array:
        """Maps `[B, width]` to logits `[B, A]`, or to bounded means and log standard deviations `[B, 2, D]`."""
        wide = features.astype(jnp.float32)
        if not self.spec.action_shape:
            return Dense(self.spec.num_actions, LAST_LAYER_SCALE, "logits")(wide)
        (dimensions,) = self.spec.action_shape
        raw = Dense(2 * dimensions, LAST_LAYER_SCALE, "gaussian")(wide).reshape(-1, 2, dimensions)
        mean = MEAN_BOUND * jnp.tanh(raw[:, 0] / MEAN_BOUND)
        low, high = LOG_STD_BOUNDS
        start = (math.log(START_STD) - low) / (high - low)
        log_std = low + (high - low) * jax.nn.sigmoid(raw[:, 1] + math.log(start / (1.0 - start)))
        return jnp.stack([mean, log_std], axis=1)


def bins_layer(bins: int, name: str) -> Callable[[jax.Array], jax.Array]:
    """The last layer of a value or reward, computed in float32. Its kernel starts at zero: so do values and rewards."""
    layer = Dense(bins, 0.0, name)
    return lambda features: layer(features.astype(jnp.float32))


def unit_range(x: jax.Array) -> jax.Array:
    """Rescales each latent state `[B, ...]` to the range [0, 1], in float32: `(s - min) / (max - min)`."""
    axes = tuple(range(1, x.ndim))
    wide = x.astype(jnp.float32)
    low, high = jnp.min(wide, axes, keepdims=True), jnp.max(wide, axes, keepdims=True)
    return (wide - low) / jnp.maximum(high - low, _MIN_RANGE)


def action_features(action: Array, spec: EnvSpec) -> jax.Array:
    """The input of the dynamics network for an action: `[B, A]` or `[B, D]` float32.

    Discrete actions become one-hot vectors times sqrt(A). Their mean square is then one, so that they weigh as much as
    the features of the latent state.
    """
    if spec.action_shape:
        return jnp.asarray(action, jnp.float32)
    return math.sqrt(spec.num_actions) * jax.nn.one_hot(action, spec.num_actions)
