"""Neural networks in Flax and Haiku: `make_network`, `make_inference` and `make_model_network` build them.

`check_network` and `check_model` are the contracts of networks of one's own.
"""

from collections.abc import Callable

import jax

from podzero.config import (
    MLPConfig,
    ModelNetworkConfig,
    MuZeroMLPConfig,
    MuZeroResNetConfig,
    NestedConfig,
    NetworkConfig,
    OwnModelConfig,
    OwnNetworkConfig,
    ResNetConfig,
    TransformerConfig,
)
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec, ModelNetwork, Network, Params
from podzero.networks import layers
from podzero.networks.contract import check_model as check_model
from podzero.networks.contract import check_network as check_network
from podzero.networks.nested import nested
from podzero.networks.resnet import resnet
from podzero.networks.transformer import transformer


def make_network(config: NetworkConfig, spec: EnvSpec) -> Network:
    """The network to train for a game with known rules.

    Raises:
      ConfigError: the network does not support such observations, or learns a model, or a user's own network cannot
        be imported or does not take its arguments.
    """
    match config:
        case ResNetConfig():
            return resnet(config, spec)
        case NestedConfig():
            return nested(config, spec)
        case TransformerConfig():
            return transformer(config, spec)
        case MLPConfig():
            return layers.mlp(config, spec)
        case OwnNetworkConfig():
            # It imports Haiku and all of NNX, which the others do not need.
            from podzero.networks.own import own_network

            return own_network(config, spec)
        case MuZeroMLPConfig() | MuZeroResNetConfig() | OwnModelConfig():
            raise ConfigError(
                f"network.name = '{config.name}' learns the rules of '{spec.name}', but they are known; set "
                "network.name to resnet, nested, transformer or mlp"
            )


def make_inference(config: NetworkConfig, spec: EnvSpec) -> tuple[Callable[[Params], Params], Network]:
    """Builds `fold`, which converts trained parameters into those for acting, and the network that takes them.

    `network.apply(fold(params), observation)` equals `make_network(...).apply(params, observation)` up to rounding.
    `fold` also gives each weight the dtype in which the network computes with it, so that evaluations convert none.
    """
    acting = network = make_network(config, spec)
    match config:
        case ResNetConfig():
            acting = resnet(config, spec, folded=True)
        case NestedConfig():
            acting = nested(config, spec, folded=True)

    def fold(params: Params) -> Params:
        plain = params if acting is network else layers.without_auxiliary(layers.fold(params))
        return layers.as_computed(acting.apply, spec, plain)

    return fold, acting._replace(init=lambda key: fold(network.init(key)))


def trainable_network(config: NetworkConfig, spec: EnvSpec) -> Network | ModelNetwork:
    """The network that is trained, of either kind, as `make_network` and `make_model_network` make it."""
    if isinstance(config, ModelNetworkConfig):
        return make_model_network(config, spec)
    return make_network(config, spec)


def check_own_network(config: NetworkConfig, spec: EnvSpec) -> None:
    """Makes the network, and checks one of the user's own."""
    network, name = trainable_network(config, spec), f"network.name = '{config.name}'"
    if isinstance(config, OwnModelConfig):
        assert isinstance(network, ModelNetwork)
        check_model(network, spec, name)
    elif isinstance(config, OwnNetworkConfig):
        assert isinstance(network, Network)
        check_network(network._replace(init=jax.jit(network.init), apply=jax.jit(network.apply)), spec, name)


def make_model_network(config: ModelNetworkConfig, spec: EnvSpec) -> ModelNetwork:
    """The network that learns a model of an environment; refuses observations and code of a user as `make_network`."""
    # Each process would spend 0.3 s on Haiku.
    from podzero.networks.muzero import muzero_mlp, muzero_resnet

    match config:
        case MuZeroMLPConfig():
            return muzero_mlp(config, spec)
        case MuZeroResNetConfig():
            return muzero_resnet(config, spec)
        case OwnModelConfig():
            from podzero.networks.own import own_model

            return own_model(config, spec)
