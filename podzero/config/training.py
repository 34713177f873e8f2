"""Sections for training: learner, optimizer, mesh, MuZero."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

import pydantic
from pydantic import AfterValidator, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from podzero.config.section import ByName, Fraction, OwnPart, Section


class _OptimizerConfig(Section):
    """Fields of all optimizers."""

    name: str
    """The optimizer."""
    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """Shape of the learning rate. `cosine` and `linear` decay over the whole run, until the first limit of section
    `stop` is reached. Without a limit the rate stays at `learning_rate`, unless
    `decay_steps` is given. A run that is resumed with other limits continues at its rate and spreads the rest of the
    decay over the rest of the run."""
    warmup_steps: NonNegativeInt = 0
    """Learner steps over which the rate rises linearly at the start."""
    decay_steps: PositiveInt | None = None
    """Learner steps after the warm-up over which the rate decays, instead of over the run."""
    final_fraction: Fraction = 0.05
    """Learning rate at the end of the decay, as a fraction of `learning_rate`."""
    max_gradient_norm: PositiveFloat = 5.0
    """Global norm to which gradients are clipped."""


class OptimizerConfig(_OptimizerConfig):
    """An optimizer of optax, and its learning rate schedule."""

    name: Literal["adamw", "sgd", "lion", "muon"] = "adamw"
    """The optimizer. `sgd` has a momentum of 0.9. `muon` (Jordan et al. 2024) orthogonalizes the updates of hidden
    matrices and kernels, scaled to the size of AdamW's (Liu et al. 2025) so that the same learning rates suit both;
    AdamW trains biases, scales, first layers, embeddings and heads, which it knows by their names in podzero's
    networks (`stem`, `embed`, `position`, `heads`, `policy...`, `value...`, `reward...`)."""
    weight_decay: NonNegativeFloat = 1e-4
    """Weight decay of matrices and kernels: part of the gradient for `sgd`, decoupled for the others."""


class OwnOptimizerConfig(OwnPart, _OptimizerConfig, extra="allow"):
    """An optimizer of your own or of any library ([own_parts.md](own_parts.md)): a function that returns an
    `optax.GradientTransformation`.

    All further fields are keyword arguments of the function.
    """


AnyOptimizerConfig = Annotated[
    OptimizerConfig | OwnOptimizerConfig, ByName(own=lambda _: OwnOptimizerConfig, default="adamw")
]


class OwnObjectiveConfig(OwnPart):
    """A loss of your own ([own_parts.md](own_parts.md)).

    All further fields are keyword arguments of the function.
    """


def _regular_expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"'{pattern:.200}' is no regular expression: {error}") from None
    return pattern


_Pattern = Annotated[str, AfterValidator(_regular_expression)]


class SplitRule(Section):
    """A sharding rule: which parameters are split, and along which dimension."""

    match: _Pattern
    """A regular expression to search in a parameter's path, for example `layer_0.mlp.hidden.kernel`."""
    dimension: int
    """The dimension that is split; negative numbers count from the last."""


class MeshConfig(Section):
    """The learner's device mesh, with the axes `data` and `model`."""

    model: PositiveInt = 1
    """Devices along the axis `model`, which splits parameters (tensor parallelism). All other devices are along `data`,
    which splits the batch."""
    rules: tuple[SplitRule, ...] | None = None
    """Which parameters `model` splits; the first matching rule applies. By default the rules of podzero's networks."""
    fsdp: bool = False
    """Fully sharded data parallelism: splits parameters, their averages and the optimizer state over `data` too, and
    gathers them when needed."""


_DISPATCH_S = 0.015
"""A dispatch that takes accelerators so long hides what the host does for the next one."""
_CPU_STEPS = 4
"""Steps of a dispatch on CPUs, which execute them one by one."""


class LearnerConfig(Section):
    """Training of the network."""

    batch_size: PositiveInt = 512
    """Samples per step over the whole mesh."""
    microbatches: PositiveInt = 1
    """Parts into which a batch is split to save memory (gradient accumulation)."""
    steps_per_dispatch: PositiveInt | Literal["auto"] = "auto"
    """Learner steps per dispatch: one program (`lax.scan`) on accelerators, one call per step on CPUs. `auto` takes the
    smallest divisor or multiple of `publish_every` whose dispatch takes accelerators 15 ms, timed whenever a learner
    starts; on CPUs the largest divisor up to 4."""
    publish_every: PositiveInt = 32
    """Learner steps between two publications of parameters to the actors; a multiple of `steps_per_dispatch`, unless
    that is `auto` and more."""
    value_weight: NonNegativeFloat = 1.0
    """Weight of the value loss."""
    teacher_weight: NonNegativeFloat = 1.0
    """Weight of the loss of the `teacher`'s policy and value, beside that of the search's policy and the outcome."""
    teacher_steps: PositiveInt | None = None
    """Learner steps over which `teacher_weight` falls to zero, linearly; by default it stays."""
    objective: OwnObjectiveConfig | None = None
    """A loss of your own, in place of AlphaZero's or MuZero's."""
    frozen: tuple[_Pattern, ...] = ()
    """Parameters that are not trained: regular expressions to search in their paths, for example `block_0`. For a
    network that `init_from` has given trained parts."""
    ema: Fraction = 0.99
    """Decay per step of the moving average of the parameters that actors use; 0 for the parameters themselves."""
    augment: bool = True
    """Applies a random symmetry of the game to each sample."""
    cpu_convolutions: Literal["xla", "openvino"] = "xla"
    """What computes the tower of `resnet` if the learner runs on a single CPU device: `xla` in float32, or `openvino`
    in bfloat16 on CPUs with AMX or AVX-512 BF16 instructions, and in float32 on others."""
    optimizer: AnyOptimizerConfig = OptimizerConfig()
    """The optimizer."""
    mesh: MeshConfig = MeshConfig()
    """The device mesh."""

    @pydantic.field_validator("steps_per_dispatch", mode="before")
    @classmethod
    def _number_or_auto(cls, steps: object) -> object:
        if steps != "auto" and (not isinstance(steps, int) or steps < 1):
            raise ValueError(f"must be an integer above 0 or auto, not {steps!r}")
        return steps

    @pydantic.model_validator(mode="after")
    def _publish_after_whole_dispatches(self) -> LearnerConfig:
        if (steps := self.steps_per_dispatch) != "auto" and self.publish_every % steps:
            raise ValueError(f"publish_every {self.publish_every} must be a multiple of steps_per_dispatch {steps}")
        return self

    def dispatch_steps(self, step_s: float | None = None) -> int:
        """The number that `steps_per_dispatch` stands for: `auto` for that of an accelerator whose steps take `step_s`
        seconds, or without a time for that of a CPU.
        """
        if self.steps_per_dispatch != "auto":
            return self.steps_per_dispatch
        small = [steps for steps in range(1, math.isqrt(self.publish_every) + 1) if self.publish_every % steps == 0]
        divisors = [*small, *(self.publish_every // steps for steps in reversed(small))]
        if step_s is None:
            return max(steps for steps in divisors if steps <= _CPU_STEPS)
        multiple = self.publish_every * math.ceil(_DISPATCH_S / (self.publish_every * step_s))
        return next((steps for steps in divisors if steps * step_s >= _DISPATCH_S), multiple)


class MuZeroConfig(Section):
    """Training of a learned model, for the networks `muzero_mlp` and `muzero_resnet` (Schrittwieser et al. 2020)."""

    # K and n are those of MuZero in Atari.
    unroll_steps: PositiveInt = 5
    """K, the number of steps for which the model is unrolled from each position."""
    td_steps: PositiveInt = 10
    """n, the number of rewards in the n-step value target before the search value that follows them."""
    stride: PositiveInt = 1
    """Steps between the starts of two windows of an episode. Up to K, every step is learned from."""
    reward_weight: NonNegativeFloat = 1.0
    """Weight of the reward loss."""
    consistency_weight: NonNegativeFloat = 0.0
    """Weight of the self-supervised consistency loss (Ye et al. 2021, EfficientZero). At 0 the observations that it
    needs are not stored."""
    entropy_weight: NonNegativeFloat = 0.0
    """Weight of the entropy bonus, which keeps continuous policies from collapsing."""
