"""How a network is trained."""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from podzero.config.section import Fraction, Section


class OptimizerConfig(Section):
    """optax optimizer with its schedule."""

    name: Literal["adamw", "sgd", "lion"] = "adamw"
    learning_rate: PositiveFloat = 1e-3
    schedule: Literal["constant", "cosine", "warmup_cosine", "linear"] = "constant"
    warmup_steps: NonNegativeInt = 0
    decay_steps: PositiveInt | None = None
    """Steps over which the schedule falls; needed by every schedule but `constant`."""
    final_fraction: Fraction = 0.05
    """Where the schedule ends, as a share of `learning_rate`."""
    momentum: Fraction = 0.9
    weight_decay: NonNegativeFloat = 1e-4
    max_gradient_norm: PositiveFloat = 5.0

    @pydantic.model_validator(mode="after")
    def _schedule_has_length(self) -> OptimizerConfig:
        if self.schedule != "constant" and self.decay_steps is None:
            raise ValueError(f"schedule '{self.schedule}' needs decay_steps")
        return self


class SplitRule(Section):
    """Which parameters are split along which of their dimensions."""

    match: str
    """A regular expression, searched in the dotted path of a parameter, as `layer_0.mlp.hidden.kernel`."""
    dimension: int
    """The dimension that is split; negative ones count from the last."""


class MeshConfig(Section):
    """The device mesh of the learner."""

    data: int = Field(default=-1, ge=-1)
    """Devices along the batch; -1 takes all that `model` leaves."""
    model: PositiveInt = 1
    """Devices among which single parameters are split (tensor parallelism)."""
    rules: tuple[SplitRule, ...] | None = None
    """What `model` splits; the first rule that matches decides. By default the rules for podzero's own networks."""
    fsdp: bool = False
    """Whether weights, averages and optimizer moments are split over `data` too (fully sharded data parallelism):
    each device holds a part and fetches the rest when it is needed."""

    @pydantic.field_validator("data")
    @classmethod
    def _not_zero(cls, data: int) -> int:
        if data == 0:
            raise ValueError("data must be -1 or at least 1")
        return data


class LearnerConfig(Section):
    """Training."""

    batch_size: PositiveInt = 512
    """Samples of one step over the whole mesh."""
    microbatches: PositiveInt = 1
    """Parts of a batch whose gradients are added up one after the other, which takes less memory than all at once."""
    steps_per_dispatch: PositiveInt = 8
    """Steps run on the device by one call."""
    publish_every: PositiveInt = 32
    """Steps between publications to the actors."""
    value_weight: NonNegativeFloat = 1.0
    ema: Fraction = 0.99
    """Decay per step of the averaged weights that act; 0 acts with the raw ones."""
    augment: bool = True
    """Whether each sample is put through a random symmetry of the game, on the device."""
    prefetch: PositiveInt = 4
    """Dispatches prepared ahead, the bound of the queue between reader and step."""
    calibrate: bool = False
    """Whether one chip is timed alone before training starts, for the figure of scaling efficiency; takes as long as
    compiling the step once more and needs a chip that can hold a whole train state."""
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = MeshConfig()

    @pydantic.model_validator(mode="after")
    def _publish_on_a_dispatch(self) -> LearnerConfig:
        if self.publish_every % self.steps_per_dispatch:
            raise ValueError(
                f"publish_every {self.publish_every} must be a multiple of steps_per_dispatch {self.steps_per_dispatch}"
            )
        return self


class MuZeroConfig(Section):
    """Learning a model by unrolling it along what was seen (Schrittwieser et al. 2020), for networks that learn one."""

    unroll_steps: PositiveInt = 5
    """K: steps that the model is unrolled from each position."""
    td_steps: PositiveInt = 10
    """n: rewards that a value target adds up before it takes the search's word for the rest."""
    stride: PositiveInt = 1
    """Steps between the beginnings of two windows of an episode: with K or less, every step is learned from."""
    reward_weight: NonNegativeFloat = 1.0
    consistency_weight: NonNegativeFloat = 0.0
    """Weight of the self-supervised consistency loss (Ye et al. 2021, EfficientZero); 0 leaves it, and the observations
    that it needs, out."""
    entropy_weight: NonNegativeFloat = 0.0
    """Weight of the policy's entropy, which keeps continuous policies from collapsing."""
