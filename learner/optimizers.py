"""Optimizers, of optax and of the user, and the learning rate."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from podzero.config import AnyOptimizerConfig, OptimizerConfig, OwnOptimizerConfig
from podzero.config.section import own_code
from podzero.core.errors import ConfigError
from podzero.core.types import Array, Params
from podzero.learner.sharding import map_named

Rate = Callable[[Array, Array], jax.Array]
"""Maps a learner step `[]` int32 and the progress of the run `[]` float32, in [0, 1], to the learning rate."""


def make_rate(config: AnyOptimizerConfig) -> Rate:
    """The learning rate `learning_rate * min(1, (t + 1) / W) * shape(p)` at step t and progress p of the run.

    W is `warmup_steps`. With the final fraction f, `shape(p)` is `f + (1 - f) * (1 + cos(pi * p)) / 2` for `cosine`
    (Loshchilov & Hutter 2017, https://arxiv.org/abs/1608.03983), `1 - (1 - f) * p` for `linear`, and 1 for `constant`.
    With `decay_steps` D, p is `(t - W) / D`.
    """

    def rate(step: Array, progress: Array) -> jax.Array:
        t = jnp.asarray(step, jnp.float32)
        # t + 1, so that the first step has a positive rate.
        peak = config.learning_rate * jnp.minimum(1.0, (t + 1.0) / max(1, config.warmup_steps))
        if config.decay_steps is not None:
            progress = jnp.clip((t - config.warmup_steps) / config.decay_steps, 0.0, 1.0)
        p, final = jnp.asarray(progress, jnp.float32), config.final_fraction
        match config.schedule:
            case "constant":
                shape = jnp.ones_like(p)
            case "linear":
                shape = 1.0 - (1.0 - final) * p
            case "cosine":
                shape = final + (1.0 - final) * 0.5 * (1.0 + jnp.cos(jnp.pi * p))
        return peak * shape

    return rate


def make_optimizer(config: AnyOptimizerConfig, frozen: Sequence[str] = ()) -> optax.GradientTransformation:
    """Clips the gradient to a global norm, then applies the optimizer with a learning rate of 1.

    The caller multiplies its updates by the learning rate. Parameters whose paths match a regular expression of
    `frozen` get neither gradient nor weight decay.
    """
    inner = own_optimizer(config) if isinstance(config, OwnOptimizerConfig) else _optimizer(config)
    clipped = optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), inner)
    if not frozen:
        return clipped

    def matching(params: Params) -> Any:
        return map_named(lambda name, _: any(re.search(pattern, name) for pattern in frozen), params)

    # Twice: before clipping, so that frozen gradients do not count in the norm, and after weight decay.
    hold = optax.masked(optax.set_to_zero(), matching)
    return optax.chain(hold, clipped, hold)


def own_optimizer(config: OwnOptimizerConfig) -> optax.GradientTransformation:
    """The transformation that `config.name` names; an argument `learning_rate` is 1."""
    code = own_code(config, "learner.optimizer", offered=("learning_rate",))
    made = code.make({"learning_rate": 1.0})
    if not isinstance(made, optax.GradientTransformation):
        raise ConfigError(
            f"{code.where} is a {type(made).__name__}; expected a function that returns an "
            "optax.GradientTransformation, for example optax.chain(...)"
        )

    def init(params: Params) -> Any:
        with code.running("its init"):
            return made.init(params)

    def update(gradients: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        with code.running("its update"):
            updates, state = made.update(gradients, state, params)
        return updates, state

    return optax.GradientTransformation(init, update)


def _optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """A built-in optimizer with a learning rate of 1.

    AdamW, Lion and Muon decouple weight decay from the gradient (Loshchilov & Hutter 2019,
    https://arxiv.org/abs/1711.05101; Chen et al. 2023, https://arxiv.org/abs/2302.06675; Liu et al. 2025,
    https://arxiv.org/abs/2502.16982); SGD has momentum and adds it to the gradient, as AlphaZero did.
    """
    decay = config.weight_decay
    match config.name:
        case "adamw":
            return optax.adamw(1.0, weight_decay=decay, mask=decayed)
        case "lion":
            return optax.lion(1.0, weight_decay=decay, mask=decayed)
        case "sgd":
            return optax.chain(optax.add_decayed_weights(decay, mask=decayed), optax.sgd(1.0, momentum=0.9))
        case "muon":
            muon = optax.contrib.muon(1.0, muon_weight_dimension_numbers=matrices, consistent_rms=MUON_RMS)
            # Negative, since updates are added. Optax's own arguments decay biases too, or nothing that AdamW trains.
            return optax.chain(muon, optax.add_decayed_weights(-decay, mask=decayed))


MUON_RMS = 0.2
"""Root mean square of Muon's updates at a learning rate of 1: about that of AdamW's (Liu et al. 2025)."""


NOT_HIDDEN = re.compile(
    r"(^|\.)(stem|halving_0|embed|position|dense_0|(representation|dynamics)\.trunk\.hidden_0|heads"
    r"|(policy|value|reward)\w*)(\.|$)"
)
"""Paths of the first layers and the heads of podzero's networks, which Muon leaves to AdamW, as its author does (Jordan
et al. 2024, https://kellerjordan.github.io/posts/muon/). First layers read observations or actions."""


def matrices(params: Params) -> Any:
    """How Muon reads each parameter as a matrix, or as several: which dimensions are inputs, and which are outputs.

    Layouts are those of Flax and Haiku: outputs come last, also in convolutions. None for vectors, scalars, and paths
    that match `NOT_HIDDEN`.
    """

    def dimensions(name: str, leaf: Array) -> optax.contrib.MuonDimensionNumbers | None:
        if NOT_HIDDEN.search(name):
            return None
        if re.search(r"attention\.qkv\.kernel$", name):
            # [width, 3, heads, width / heads]: queries, keys and values are three matrices.
            return optax.contrib.MuonDimensionNumbers(0, (2, 3))
        ndim = jnp.ndim(leaf)
        return optax.contrib.MuonDimensionNumbers(tuple(range(ndim - 1)), ndim - 1) if ndim > 1 else None

    return map_named(dimensions, params)


def decayed(params: Any) -> Any:
    """The mask of weight decay: matrices and kernels, not biases or scales."""
    return jax.tree.map(lambda leaf: jnp.ndim(leaf) >= 2, params)
