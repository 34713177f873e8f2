"""The network of `resnet.py` in Haiku: it computes the same function of the same parameters."""

from __future__ import annotations

from dataclasses import dataclass

import haiku as hk
import jax
import jax.numpy as jnp

from podzero.config import ResNetConfig
from podzero.networks.boards import check_boards, compute_dtype
from podzero.networks.haiku_layers import Block, Conv, Dense
from podzero.networks.heads import LAST_LAYER_SCALE, POLICY_PLANES, VALUE_PLANES
from podzero.networks.resnet import residual_start
from podzero.networks.standardized import fold
from podzero.types import Array, EnvSpec, Network, Params


@dataclass
class Heads(hk.Module):
    """Policy and value heads, as `podzero.networks.heads.Heads`."""

    num_actions: int
    value_hidden: int

    def __call__(self, features: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, S, C]` to float32 logits `[B, A]` and values `[B]` in [-1, 1]."""
        batch = features.shape[0]
        planes = jax.nn.relu(Dense(POLICY_PLANES, 2.0, "policy_planes")(features))
        planes = planes.reshape(batch, -1).astype(jnp.float32)
        logits = Dense(self.num_actions, LAST_LAYER_SCALE, "policy_logits")(planes)

        planes = jax.nn.relu(Dense(VALUE_PLANES, 2.0, "value_planes")(features))
        planes = jax.nn.relu(Dense(self.value_hidden, 2.0, "value_hidden")(planes.reshape(batch, -1)))
        value = Dense(1, LAST_LAYER_SCALE, "value")(planes.astype(jnp.float32))
        return logits, jnp.tanh(value[:, 0])


@dataclass
class ResNet(hk.Module):
    """The tower with its heads."""

    config: ResNetConfig
    num_actions: int
    folded: bool
    name: str = "resnet"

    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, H, W, C]` of any real dtype or bool to float32 logits `[B, A]` and values `[B]` in [-1, 1]."""
        config = self.config
        x = jnp.asarray(observation, compute_dtype(config.compute_dtype))
        x = Conv(config.channels, self.folded, "stem")(x)
        start = residual_start(config.blocks)
        for index in range(config.blocks):
            block = Block(self.folded, start, f"block_{index}")
            x = hk.remat(block)(x) if config.remat else block(x)
        features = jax.nn.relu(x).reshape(x.shape[0], -1, config.channels)
        return Heads(self.num_actions, config.value_hidden)(features)


def haiku_resnet(config: ResNetConfig, spec: EnvSpec) -> Network:
    """The trainable network, for boards of `spec`.

    Raises:
      ConfigError: the observations are not boards.
    """
    check_boards(spec, config.name)
    network = _transform(config, spec, folded=False)

    def init(key: Array) -> Params:
        return network.init(key, jnp.zeros((1, *spec.observation_shape), spec.observation_dtype))

    return Network(init, network.apply)


def folded_haiku_resnet(config: ResNetConfig, spec: EnvSpec) -> Network:
    """The same network for parameters that `fold` returned: plain convolutions with biases."""
    trainable = haiku_resnet(config, spec)
    return Network(lambda key: fold(trainable.init(key)), _transform(config, spec, folded=True).apply)


def _transform(config: ResNetConfig, spec: EnvSpec, *, folded: bool) -> hk.Transformed:
    def forward(observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        return ResNet(config, spec.num_actions, folded)(observation)

    return hk.without_apply_rng(hk.transform(forward))
