"""The section `network`: one class per architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
from pydantic import PositiveInt

from podzero.config.section import ByName, OwnPart, Section


class _NetworkConfig(Section):
    """Fields of all networks."""

    name: str
    """The architecture."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of the computation: `auto` is bfloat16 on accelerators and float32 on CPUs. Parameters are float32."""


class _BlocksConfig(_NetworkConfig):
    """Fields of the networks for boards that are towers of blocks."""

    value_hidden: PositiveInt = 64
    """Width of the value head's hidden layer."""
    remat: bool = False
    """Rematerialization: the backward pass recomputes the activations inside each block instead of storing them."""


class _TowerConfig(_BlocksConfig):
    """Fields of the residual towers of convolutions."""

    channels: PositiveInt = 64
    """Channels of each block's input and output."""
    blocks: PositiveInt = 5
    """Residual blocks."""
    auxiliary: bool = False
    """Trains auxiliary heads to improve the features (Wu 2020, KataGo): they predict the outcome, the moves left, and
    the opponent's reply. Each of their losses has weight 0.15, the policy loss 1."""
    ownership: bool = False
    """Trains another auxiliary head, with the same weight, to predict who will own each square at the end, in games
    that tell it: Go, Othello, Hex, and own ones (`View.ownership`). Needs `auxiliary`."""

    @pydantic.model_validator(mode="after")
    def _ownership_is_auxiliary(self) -> _TowerConfig:
        if self.ownership and not self.auxiliary:
            raise ValueError("ownership is predicted by an auxiliary head; set auxiliary=true, or ownership=false")
        return self


class ResNetConfig(_TowerConfig):
    """A residual tower (He et al. 2016) with policy and value heads; one player's value is predicted over 129 bins."""

    name: Literal["resnet"] = "resnet"
    """Selects this architecture."""
    global_pooling: bool = False
    """Global pooling (Wu 2020, KataGo): every second block adds a bias computed from the means and maxima of its
    channels over the board. So do the heads if the actions are the squares and at most one more, as in Go; the
    parameters then fit boards of any size."""


class NestedConfig(_TowerConfig):
    """KataGo's tower of nested bottleneck blocks, for games of two players.

    Each block has two residual pairs of convolutions with half the channels. Every third block has global pooling, and
    so have the heads where `global_pooling` would give it to them. The value is the expectation of a predicted loss,
    draw or win. KataGo's b10c256nbt has 10 blocks of 256 channels.
    """

    name: Literal["nested"]
    """Selects this architecture."""


class TransformerConfig(_BlocksConfig):
    """A transformer with one token per square of the board."""

    name: Literal["transformer"]
    """Selects this architecture."""
    width: PositiveInt = 128
    """Width of the residual stream, a multiple of `heads`."""
    layers: PositiveInt = 4
    """Transformer blocks."""
    heads: PositiveInt = 4
    """Attention heads."""
    mlp_ratio: PositiveInt = 4
    """Width of a block's MLP as a multiple of `width`."""

    @pydantic.model_validator(mode="after")
    def _heads_divide_width(self) -> TransformerConfig:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} must be a multiple of heads {self.heads}")
        return self


class MLPConfig(_NetworkConfig):
    """A multilayer perceptron with policy and value heads, for vectors and small boards."""

    name: Literal["mlp"]
    """Selects this architecture."""
    width: PositiveInt = 256
    """Width of each hidden layer."""
    layers: PositiveInt = 2
    """Hidden layers."""


class _MuZeroConfig(_NetworkConfig):
    """Fields of all networks that learn a model (Schrittwieser et al. 2020)."""

    support: PositiveInt = 30
    """Values and rewards are categorical distributions over `2 * support + 1` bins, which after scaling cover about
    `-support**2` to `support**2`."""
    projection: PositiveInt = 128
    """Width of the projection for the consistency loss (Ye et al. 2021, EfficientZero)."""

    @property
    def bins(self) -> int:
        """The number of logits of a value or a reward."""
        return 2 * self.support + 1


class MuZeroMLPConfig(_MuZeroConfig):
    """Representation, dynamics and prediction networks as multilayer perceptrons, for vector observations."""

    name: Literal["muzero_mlp"]
    """Selects this architecture."""
    latent: PositiveInt = 64
    """Width of the latent state."""
    width: PositiveInt = 128
    """Width of each hidden layer."""
    layers: PositiveInt = 2
    """Hidden layers of each of the three networks."""
    normalize: bool = True
    """Normalizes observations with running statistics, which are part of the parameters."""


class MuZeroResNetConfig(_MuZeroConfig):
    """Representation, dynamics and prediction networks as residual towers, for images."""

    name: Literal["muzero_resnet"]
    """Selects this architecture."""
    channels: PositiveInt = 64
    """Channels of each convolution."""
    blocks: PositiveInt = 2
    """Residual blocks of the representation and of the dynamics network."""
    downsample: Literal[1, 2, 4, 8, 16] = 1
    """Factor by which each side of the latent state is smaller than the observation's."""
    hidden: PositiveInt = 64
    """Width of the heads' hidden layers."""
    channels_first: bool = False
    """Observations have the shape `[channels, height, width]`, for example stacked grey frames."""


class OwnNetworkConfig(OwnPart, _NetworkConfig, extra="allow"):
    """A network of your own, for games with known rules ([own_network.md](own_network.md)).

    All further fields are keyword arguments of the module or function.
    """


class OwnModelConfig(OwnPart, _MuZeroConfig, extra="allow"):
    """A network of your own that learns a model ([own_network.md](own_network.md#a-network-that-learns-a-model)).

    All further fields are keyword arguments of the module or function.
    """

    learns_model: Literal[True]
    """Distinguishes it from a network for games with known rules."""


ModelNetworkConfig = MuZeroMLPConfig | MuZeroResNetConfig | OwnModelConfig
"""Networks for MuZero, which learns a model."""


def learns_model(section: Mapping[Any, Any]) -> bool:
    """Whether a section `network`, as it is given, is of a network that learns a model."""
    return section.get("name") in ("muzero_mlp", "muzero_resnet") or bool(section.get("learns_model"))


NetworkConfig = Annotated[
    ResNetConfig | NestedConfig | TransformerConfig | MLPConfig | MuZeroMLPConfig | MuZeroResNetConfig |
    OwnNetworkConfig | OwnModelConfig,
    ByName(own=lambda section: OwnModelConfig if learns_model(section) else OwnNetworkConfig),
]  # fmt: skip
