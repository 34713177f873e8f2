"""The ResNet to train on a CPU: its tower in bfloat16 by OpenVINO, everything else as in `podzero.networks`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast

import jax
import jax.numpy as jnp

from podzero.config import ResNetConfig
from podzero.inference.residual_tower import make_tower
from podzero.networks import make_network
from podzero.networks.heads import Heads, Outputs
from podzero.networks.standardized import convolve, fold
from podzero.types import Array, EnvSpec, Network, Params, Prediction


def host_resnet(config: ResNetConfig, spec: EnvSpec) -> Network:
    """The network `resnet` for training on a CPU.

    Parameters, results and gradients equal those of `make_network` up to the rounding of bfloat16. Where JAX has an
    accelerator, or several devices, XLA computes the whole network.

    Raises:
      ConfigError: OpenVINO is not installed, or the observations are not boards.
    """
    network, heads = make_network(config, spec), Heads(spec.num_actions, config.value_hidden)
    tower = make_tower(threads=len(os.sched_getaffinity(0)))

    def evaluate(params: Params, observation: Array, auxiliary: bool) -> Outputs:
        if jax.default_backend() != "cpu" or jax.device_count() > 1:
            return network.apply_all(params, observation) if network.apply_all else network.apply(params, observation)
        layers = cast(Mapping[str, Mapping[str, Params]], fold(params))
        x = convolve(jnp.asarray(observation, jnp.float32), layers["stem"]["kernel"], layers["stem"]["bias"])
        convolutions = [layers[f"block_{block}"][f"conv_{half}"] for block in range(config.blocks) for half in (0, 1)]
        x = tower(x, *(jnp.stack([layer[name] for layer in convolutions]) for name in ("kernel", "bias")))
        features = jax.nn.relu(x).reshape(x.shape[0], -1, config.channels)
        return cast(Outputs, heads.apply({"params": layers["heads"]}, features, auxiliary))

    def apply(params: Params, observation: Array) -> tuple[jax.Array, jax.Array]:
        logits, value, *_ = evaluate(params, observation, auxiliary=False)
        return logits, value

    def apply_all(params: Params, observation: Array) -> tuple[jax.Array, jax.Array, Prediction]:
        return cast(tuple[jax.Array, jax.Array, Prediction], evaluate(params, observation, auxiliary=True))

    return Network(network.init, apply, apply_all if config.auxiliary else None)
