"""MuZero's networks as residual towers in Haiku, for images."""

from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from podzero.config import MuZeroResNetConfig
from podzero.errors import ConfigError
from podzero.networks.boards import compute_dtype
from podzero.networks.haiku_layers import Block, Conv, Dense
from podzero.networks.heads import POLICY_PLANES, VALUE_PLANES
from podzero.networks.muzero import (
    Parts,
    PolicyLayer,
    action_features,
    bins_layer,
    model_network,
    unit_range,
)
from podzero.networks.resnet import residual_start
from podzero.types import Array, EnvSpec, ModelNetwork

STRIDED_STAGES = 2
"""The first halvings are convolutions of stride 2, the first of them with half of the channels; later ones average."""


class Tower(hk.Module):
    """Residual blocks, then relu."""

    def __init__(self, blocks: int) -> None:
        super().__init__(name="tower")
        self._blocks = blocks

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, h, w, C]` to the same shape."""
        for index in range(self._blocks):
            x = Block(False, residual_start(self._blocks), f"block_{index}")(x)
        return jax.nn.relu(x)


class Representation(hk.Module):
    """Images to latent states: halved as often as `downsample` says, a residual block after each time, then a tower."""

    def __init__(self, config: MuZeroResNetConfig) -> None:
        super().__init__(name="representation")
        self._config = config

    def __call__(self, observation: Array) -> jax.Array:
        """Maps `[B, H, W, C]`, or `[B, C, H, W]` where channels come first, to `[B, h, w, channels]` float32 in [0, 1].

        h is `ceil(H / downsample)`, w likewise.
        """
        config = self._config
        x = _pixels(observation, compute_dtype(config.compute_dtype))
        if config.channels_first:
            x = jnp.moveaxis(x, 1, -1)
        halvings = config.downsample.bit_length() - 1
        if halvings == 0:
            x = Conv(config.channels, False, "stem")(x)
        for stage in range(halvings):
            if stage < STRIDED_STAGES:
                narrow = stage == 0 and halvings > 1
                channels = max(1, config.channels // 2) if narrow else config.channels
                x = Conv(channels, False, f"halving_{stage}", stride=2)(x)
            else:
                x = _average(x)
            x = Block(False, 1.0, f"stage_{stage}")(x)
        return unit_range(Tower(config.blocks)(x))


class Dynamics(hk.Module):
    """A latent state and an action, one plane for each of its features, to the next latent state and the reward."""

    def __init__(self, config: MuZeroResNetConfig, spec: EnvSpec) -> None:
        super().__init__(name="dynamics")
        self._config = config
        self._spec = spec

    def __call__(self, latent: jax.Array, action: Array) -> tuple[jax.Array, jax.Array]:
        """Maps latent states `[B, h, w, channels]` and actions to the next ones and reward logits `[B, bins]`."""
        config = self._config
        features = action_features(action, self._spec)
        planes = jnp.broadcast_to(features[:, None, None, :], (*latent.shape[:3], features.shape[-1]))
        x = jnp.concatenate([latent, planes], axis=-1).astype(compute_dtype(config.compute_dtype))
        x = latent.astype(x.dtype) + Conv(config.channels, False, "stem")(x)
        x = Tower(config.blocks)(x)
        return unit_range(x), bins_layer(config.bins, "reward")(_head(x, VALUE_PLANES, config.hidden, "reward"))


class Prediction(hk.Module):
    """A latent state to policy and value."""

    def __init__(self, config: MuZeroResNetConfig, spec: EnvSpec) -> None:
        super().__init__(name="prediction")
        self._config = config
        self._spec = spec

    def __call__(self, latent: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, h, w, channels]` to the policy and value logits `[B, bins]`."""
        hidden = self._config.hidden
        x = latent.astype(compute_dtype(self._config.compute_dtype))
        policy = PolicyLayer(self._spec)(_head(x, POLICY_PLANES, hidden, "policy"))
        return policy, bins_layer(self._config.bins, "value")(_head(x, VALUE_PLANES, hidden, "value"))


def muzero_resnet(config: MuZeroResNetConfig, spec: EnvSpec) -> ModelNetwork:
    """The network for images `[H, W, C]` of `spec`, or `[C, H, W]` as the config says.

    Sides that `downsample` does not divide are padded with zeros.

    Raises:
      ConfigError: the observations are no images.
    """
    if len(spec.observation_shape) != 3:
        raise ConfigError(
            f"network.name = '{config.name}' reads images [height, width, channels], but the observations of "
            f"'{spec.name}' have shape {list(spec.observation_shape)}; set network.name=muzero_mlp, which reads any"
        )

    def build() -> Parts:
        return Parts(Representation(config), Prediction(config, spec), Dynamics(config, spec))

    return model_network(build, config, spec)


def _pixels(observation: Array, dtype: np.dtype[np.generic]) -> jax.Array:
    """Observations in the dtype of computation; bytes are scaled to [0, 1]."""
    x = jnp.asarray(observation)
    return x.astype(dtype) / 255 if x.dtype == jnp.uint8 else x.astype(dtype)


def _average(x: jax.Array) -> jax.Array:
    """Means over 3x3 pixels, at every second one: `[B, H, W, C]` to `[B, ceil(H / 2), ceil(W / 2), C]`."""
    # A constant of NumPy's: while tracing, JAX has a derivative of sums over windows only where it can see the zero.
    zero = np.zeros((), x.dtype)
    total: jax.Array = lax.reduce_window(x, zero, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    return total / 9


def _head(x: jax.Array, planes: int, hidden: int, name: str) -> jax.Array:
    """A few features of each pixel through one hidden layer: `[B, h, w, C]` to `[B, hidden]`."""
    x = jax.nn.relu(Dense(planes, 2.0, f"{name}_planes")(x))
    return jax.nn.relu(Dense(hidden, 2.0, f"{name}_hidden")(x.reshape(x.shape[0], -1)))
