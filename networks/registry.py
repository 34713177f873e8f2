"""The networks podzero knows, by the `name` of their configuration."""

from __future__ import annotations

from collections.abc import Callable

from podzero.config import NetworkConfig, TransformerConfig
from podzero.networks.haiku_resnet import folded_haiku_resnet, haiku_resnet
from podzero.networks.resnet import folded_resnet, resnet
from podzero.networks.standardized import fold
from podzero.networks.transformer import transformer
from podzero.types import EnvSpec, Network, Params


def make_network(config: NetworkConfig, spec: EnvSpec) -> Network:
    """The network to train on the observations of `spec`.

    Raises:
      ConfigError: the network cannot read such observations.
    """
    if isinstance(config, TransformerConfig):
        return transformer(config, spec)
    return haiku_resnet(config, spec) if config.name == "haiku_resnet" else resnet(config, spec)


def make_inference(config: NetworkConfig, spec: EnvSpec) -> tuple[Callable[[Params], Params], Network]:
    """What acting needs: `fold`, which prepares trained parameters once, and the network for what it returns.

    `network.apply(fold(params), observation)` equals `make_network(...).apply(params, observation)` up to rounding.
    A network with nothing to fold gets the identity.

    Raises:
      ConfigError: the network cannot read such observations.
    """
    if isinstance(config, TransformerConfig):
        return _as_it_is, transformer(config, spec)
    folded = folded_haiku_resnet if config.name == "haiku_resnet" else folded_resnet
    return fold, folded(config, spec)


def _as_it_is(params: Params) -> Params:
    return params
