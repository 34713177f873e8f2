"""MuZero's networks as residual towers in Haiku, for images."""

from __future__ import annotations

from dataclasses import dataclass

import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from podzero.config import MuZeroResNetConfig
from podzero.errors import ConfigError
from podzero.networks.boards import compute_dtype
from podzero.networks.haiku_layers import Block, Conv, Dense
from podzero.networks.heads import POLICY_PLANES, VALUE_PLANES
from podzero.networks.muzero import Parts, PolicyLayer, action_features, bins_layer, model_network, unit_range
from podzero.networks.resnet import residual_start
from podzero.types import Array, EnvSpec, ModelNetwork

STRIDED_STAGES = 2
"""So many of the first downsampling stages are convolutions of stride 2, the first of them with half of the channels;
later stages average."""


@dataclass
class Tower(hk.Module):
    """Residual blocks, then relu."""

    blocks: int

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, h, w, C]` to the same shape."""
        for index in range(self.blocks):
            x = Block(False, residual_start(self.blocks), f"block_{index}")(x)
        return jax.nn.relu(x)


@dataclass
class Representation(hk.Module):
    """Images to latent states: stages that halve both sides, each with a residual block, then a tower."""

    config: MuZeroResNetConfig

    def __call__(self, observation: Array) -> jax.Array:
        """Maps `[B, H, W, C]`, or `[B, C, H, W]` where channels come first, to `[B, h, w, channels]` float32 in [0, 1].

        h is `ceil(H / downsample)`, w likewise.
        """
        config = self.config
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
                x = nn.avg_pool(x, (3, 3), (2, 2), "SAME")  # type: ignore[no-untyped-call]
            x = Block(False, 1.0, f"stage_{stage}")(x)
        return unit_range(Tower(config.blocks)(x))


@dataclass
class Dynamics(hk.Module):
    """A latent state and an action, one plane per feature, to the next latent state and the reward."""

    config: MuZeroResNetConfig
    spec: EnvSpec

    def __call__(self, latent: jax.Array, action: Array) -> tuple[jax.Array, jax.Array]:
        """Maps latent states `[B, h, w, channels]` and actions to the next ones and reward logits `[B, bins]`."""
        config = self.config
        features = action_features(action, self.spec)
        planes = jnp.broadcast_to(features[:, None, None, :], (*latent.shape[:3], features.shape[-1]))
        x = jnp.concatenate([latent, planes], axis=-1).astype(compute_dtype(config.compute_dtype))
        x = latent.astype(x.dtype) + Conv(config.channels, False, "stem")(x)
        x = Tower(config.blocks)(x)
        return unit_range(x), bins_layer(config.bins, "reward")(_head(x, VALUE_PLANES, config.hidden, "reward"))


@dataclass
class Prediction(hk.Module):
    """A latent state to policy and value."""

    config: MuZeroResNetConfig
    spec: EnvSpec

    def __call__(self, latent: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, h, w, channels]` to the policy and value logits `[B, bins]`."""
        config = self.config
        x = latent.astype(compute_dtype(config.compute_dtype))
        policy = PolicyLayer(self.spec)(_head(x, POLICY_PLANES, config.hidden, "policy"))
        return policy, bins_layer(config.bins, "value")(_head(x, VALUE_PLANES, config.hidden, "value"))


def muzero_resnet(config: MuZeroResNetConfig, spec: EnvSpec) -> ModelNetwork:
    """The network for images `[H, W, C]`, or `[C, H, W]` if `config.channels_first`.

    Sides that `downsample` does not divide are padded with zeros.

    Raises:
      ConfigError: the observations are not images.
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
    """Converts observations to `dtype`; bytes are scaled to [0, 1]."""
    x = jnp.asarray(observation)
    return x.astype(dtype) / 255 if x.dtype == jnp.uint8 else x.astype(dtype)


def _head(x: jax.Array, planes: int, hidden: int, name: str) -> jax.Array:
    """A few features of each pixel through one hidden layer: `[B, h, w, C]` to `[B, hidden]`."""
    x = jax.nn.relu(Dense(planes, 2.0, f"{name}_planes")(x))
    return jax.nn.relu(Dense(hidden, 2.0, f"{name}_hidden")(x.reshape(x.shape[0], -1)))
