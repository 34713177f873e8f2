"""Networks by name."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import pydantic
from pydantic import Field, PositiveInt

from podzero.config.section import Section


class ResNetConfig(Section):
    """A residual tower (He et al. 2016) with policy and value heads; `haiku_resnet` is the same net in Haiku."""

    name: Literal["resnet", "haiku_resnet"] = "resnet"
    channels: PositiveInt = 64
    blocks: PositiveInt = 5
    value_hidden: PositiveInt = 64
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` is bfloat16 on accelerators and float32 on CPU; parameters are float32 always."""
    remat: bool = False
    """Whether training computes the inside of each block a second time instead of keeping it (rematerialization)."""


class TransformerConfig(Section):
    """A transformer over the squares of the board."""

    name: Literal["transformer"]
    width: PositiveInt = 128
    layers: PositiveInt = 4
    heads: PositiveInt = 4
    mlp_ratio: PositiveInt = 4
    value_hidden: PositiveInt = 64
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    remat: bool = False

    @pydantic.model_validator(mode="after")
    def _heads_divide_width(self) -> TransformerConfig:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} must be a multiple of heads {self.heads}")
        return self


class MLPConfig(Section):
    """A multilayer perceptron with policy and value heads, for observations that are vectors or small."""

    name: Literal["mlp"]
    width: PositiveInt = 256
    layers: PositiveInt = 2
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"


class _MuZeroConfig(Section):
    """What all networks that learn a model have in common (Schrittwieser et al. 2020)."""

    support: PositiveInt = 30
    """Value and reward are spread over `2 * support + 1` bins of the invertible scaling, which reach about
    `+-support**2`."""
    projection: PositiveInt = 128
    """Width of the projection in which the consistency loss compares states (EfficientZero)."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"

    @property
    def bins(self) -> int:
        """Logits of a value or a reward."""
        return 2 * self.support + 1


class MuZeroMLPConfig(_MuZeroConfig):
    """Representation, dynamics and prediction as multilayer perceptrons, for observations that are vectors."""

    name: Literal["muzero_mlp"]
    latent: PositiveInt = 64
    """Width of the state that the model unrolls."""
    width: PositiveInt = 128
    layers: PositiveInt = 2
    """Hidden layers of each of the three networks."""
    normalize: bool = True
    """Whether observations are normalized by running statistics, which are part of the parameters."""


class MuZeroResNetConfig(_MuZeroConfig):
    """Representation, dynamics and prediction as residual towers, for images."""

    name: Literal["muzero_resnet"]
    channels: PositiveInt = 64
    blocks: PositiveInt = 2
    """Residual blocks of the representation and of the dynamics."""
    downsample: Literal[1, 2, 4, 8, 16] = 1
    """How many pixels of the observation, along each side, become one of the state."""
    hidden: PositiveInt = 64
    """Width of the heads' hidden layers."""
    channels_first: bool = False
    """Whether observations come as [channels, height, width], as stacks of grey frames do."""


BoardNetworkConfig = ResNetConfig | TransformerConfig | MLPConfig
"""Networks that judge states of which the rules are known."""
ModelNetworkConfig = MuZeroMLPConfig | MuZeroResNetConfig
"""Networks that learn the rules as well."""
LEARN_MODELS: tuple[str, ...] = tuple(
    name for kind in get_args(ModelNetworkConfig) for name in get_args(kind.model_fields["name"].annotation)
)
"""Their names."""
NetworkConfig = Annotated[
    ResNetConfig | TransformerConfig | MLPConfig | MuZeroMLPConfig | MuZeroResNetConfig, Field(discriminator="name")
]
