"""MuZero's networks in Haiku (Schrittwieser et al. 2020, https://arxiv.org/abs/1911.08265, appendices F and G).

First what they share: the layers, `model_network`, the categorical distribution of values and rewards, and the running
statistics of observations; then the networks for vectors (`muzero_mlp`) and for images (`muzero_resnet`).

Modules keep float32 parameters and compute in the dtype of their input. Haiku names parameters after modules and name
scopes: each has an explicit name, so that renaming a class or function does not break checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
from jax import lax

from podzero.config import ModelNetworkConfig, MuZeroMLPConfig, MuZeroResNetConfig
from podzero.core.errors import ConfigError
from podzero.core.types import Array, EnvSpec, ModelNetwork, Params
from podzero.networks.layers import LAST_LAYER_SCALE, POLICY_PLANES, VALUE_PLANES, compute_dtype, convolve, standardize
from podzero.networks.resnet import residual_start

MEAN_BOUND = 3.0
"""Bound of a continuous policy's means before squashing: tanh(3) = 0.995."""
LOG_STD_BOUNDS = (-3.0, 0.5)
"""Bounds of the log standard deviations of continuous policies."""
START_STD = math.pi / (2.0 * math.sqrt(3.0))
"""That of an untrained policy: of the logistic distribution with scale one half, which tanh maps to a uniform one."""
_MIN_RANGE = 1e-5


@dataclass
class Conv(hk.Module):
    """A 3x3 convolution with standardized weights."""

    features: int
    name: str
    start: float = 1.0
    """Initial gain."""
    stride: int = 1

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, H, W, in]` to `[B, ceil(H / stride), ceil(W / stride), features]`."""
        shape = (3, 3, x.shape[-1], self.features)
        kernel = hk.get_parameter("kernel", shape, init=_variance_scaling(1.0))
        bias = hk.get_parameter("bias", (self.features,), init=jnp.zeros)
        gain = hk.get_parameter("gain", (self.features,), init=hk.initializers.Constant(self.start))
        return convolve(x, standardize(kernel, gain), bias, self.stride)


@dataclass
class Block(hk.Module):
    """A pre-activation residual block: `x + conv(relu(conv(relu(x))))`."""

    start: float
    """Initial gain of the branch."""
    name: str

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, H, W, C]` to the same shape."""
        channels = x.shape[-1]
        y = Conv(channels, "conv_0")(jax.nn.relu(x))
        y = Conv(channels, "conv_1", self.start)(jax.nn.relu(y))
        return x + y


@dataclass
class Dense(hk.Module):
    """A dense layer with float32 parameters that computes in the dtype of its input, as Flax's does."""

    features: int
    scale: float
    """Variance scale of the initial kernel."""
    name: str

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[..., in]` to `[..., features]`."""
        kernel = hk.get_parameter("kernel", (x.shape[-1], self.features), init=_variance_scaling(self.scale))
        bias = hk.get_parameter("bias", (self.features,), init=jnp.zeros)
        return x @ kernel.astype(x.dtype) + bias.astype(x.dtype)


def trunk(x: jax.Array, width: int, layers: int) -> jax.Array:
    """Dense layers, each followed by layer normalization and relu: `[..., in]` to `[..., width]`."""
    with hk.name_scope("trunk"):
        for index in range(layers):
            x = Dense(width, 2.0, f"hidden_{index}")(x)
            x = jax.nn.relu(layer_norm(x, f"norm_{index}"))
    return x


def layer_norm(x: jax.Array, name: str) -> jax.Array:
    """Layer normalization over the last axis (Ba et al. 2016), computed in float32."""
    norm = hk.LayerNorm(axis=-1, create_scale=True, create_offset=True, name=name)
    return norm(x.astype(jnp.float32)).astype(x.dtype)


def _variance_scaling(scale: float) -> hk.initializers.Initializer:
    return hk.initializers.VarianceScaling(scale, "fan_in", "truncated_normal")  # type: ignore[no-untyped-call]


def model_network(
    represent: Callable[[Array], jax.Array],
    predict: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    dynamics: Callable[[jax.Array, Array], tuple[jax.Array, jax.Array]],
    config: ModelNetworkConfig,
    spec: EnvSpec,
    observe: Callable[[Params, Array], Params] | None = None,
) -> ModelNetwork:
    """Turns functions that call Haiku modules into the pure functions of a network.

    Each becomes a module: `representation`, `prediction` and `dynamics` in the names of parameters. `observe` updates
    statistics that are part of the parameters, as `ModelNetwork.observe`; None if there are none.
    """

    def modules() -> tuple[Callable[[Array, Array], Any], dict[str, Callable[..., Any]]]:
        parts: dict[str, Callable[..., Any]] = {
            "represent": hk.to_module(represent)("representation"),
            "predict": hk.to_module(predict)("prediction"),
            "dynamics": hk.to_module(dynamics)("dynamics"),
            "project": partial(projected, width=config.projection),
        }

        # `init` traces this function, so it must create every parameter.
        def all_of_them(observation: Array, action: Array) -> Any:
            latent = parts["represent"](observation)
            return parts["predict"](latent), parts["dynamics"](latent, action), parts["project"](latent, True)

        return all_of_them, parts

    transformed = hk.without_apply_rng(hk.multi_transform(modules))

    def init(key: Array) -> Params:
        observation = jnp.zeros((1, *spec.observation_shape), spec.observation_dtype)
        action = jnp.zeros((1, *spec.action_shape), jnp.float32 if spec.action_shape else jnp.int32)
        return transformed.init(key, observation, action)

    return ModelNetwork(
        init=init,
        **transformed.apply,
        encode=partial(encode, support=config.support),
        decode=partial(decode, support=config.support),
        observe=observe or (lambda params, observations: params),
    )


def projected(latent: jax.Array, predicted: bool, width: int) -> jax.Array:
    """Projector and predictor of the consistency loss (Chen & He 2021, SimSiam; Ye et al. 2021, EfficientZero).

    Maps `[B, ...]` to `[B, width]`.
    """
    x = latent.reshape(latent.shape[0], -1)
    with hk.name_scope("projection"):
        x = jax.nn.relu(layer_norm(Dense(width, 2.0, "projector_hidden")(x), "projector_norm"))
        x = Dense(width, 1.0, "projector")(x)
        # Only latents that the model predicted pass the predictor; the targets do not (SimSiam).
        if not predicted:
            return x
        x = jax.nn.relu(layer_norm(Dense(max(1, width // 2), 2.0, "predictor_hidden")(x), "predictor_norm"))
        return Dense(width, 1.0, "predictor")(x)


def policy_layer(features: jax.Array, spec: EnvSpec) -> jax.Array:
    """The last layer of a policy, in float32. An untrained policy is nearly uniform over the actions.

    Maps `[B, width]` to logits `[B, A]`, or to bounded means and log standard deviations `[B, 2, D]`.
    """
    wide = features.astype(jnp.float32)
    with hk.name_scope("policy"):
        if not spec.action_shape:
            return Dense(spec.num_actions, LAST_LAYER_SCALE, "logits")(wide)
        (dimensions,) = spec.action_shape
        raw = Dense(2 * dimensions, LAST_LAYER_SCALE, "gaussian")(wide).reshape(-1, 2, dimensions)
    mean = MEAN_BOUND * jnp.tanh(raw[:, 0] / MEAN_BOUND)
    low, high = LOG_STD_BOUNDS
    # The offset makes an untrained policy start with `START_STD`.
    start = (math.log(START_STD) - low) / (high - low)
    log_std = low + (high - low) * jax.nn.sigmoid(raw[:, 1] + math.log(start / (1.0 - start)))
    return jnp.stack([mean, log_std], axis=1)


def bin_logits(features: jax.Array, bins: int, name: str) -> jax.Array:
    """The last layer of values or rewards, in float32; both start at zero, because its kernel does."""
    return Dense(bins, 0.0, name)(features.astype(jnp.float32))


def unit_range(x: jax.Array) -> jax.Array:
    """Rescales each latent state `[B, ...]` to the range [0, 1], in float32: `(s - min) / (max - min)`."""
    axes = tuple(range(1, x.ndim))
    wide = x.astype(jnp.float32)
    low, high = jnp.min(wide, axes, keepdims=True), jnp.max(wide, axes, keepdims=True)
    return (wide - low) / jnp.maximum(high - low, _MIN_RANGE)


def action_features(action: Array, spec: EnvSpec) -> jax.Array:
    """The input of the dynamics network for an action: `[B, A]` or `[B, D]` float32."""
    if spec.action_shape:
        return jnp.asarray(action, jnp.float32)
    # The factor makes the mean square one, about as large as that of the latent state's features.
    return math.sqrt(spec.num_actions) * jax.nn.one_hot(action, spec.num_actions)


EPSILON = 1e-3
"""Coefficient of the linear term of the scaling (Pohlen et al. 2018, https://arxiv.org/abs/1805.11593). It keeps the
derivative of the inverse bounded."""


def scale(x: Array) -> jax.Array:
    """`h(x) = sign(x) * (sqrt(|x| + 1) - 1) + EPSILON * x`, elementwise."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1.0) - 1.0) + EPSILON * x


def unscale(y: Array) -> jax.Array:
    """The inverse of `scale`: `sign(y) * (((sqrt(1 + 4 e (|y| + 1 + e)) - 1) / (2 e)) ** 2 - 1)`, e = EPSILON."""
    shifted = jnp.abs(y) + 1.0 + EPSILON
    # With the root in the denominator: the difference above would cancel most of float32's digits.
    root = 2.0 * shifted / (jnp.sqrt(1.0 + 4.0 * EPSILON * shifted) + 1.0)
    return jnp.sign(y) * (root - 1.0) * (root + 1.0)


def encode(x: Array, support: int) -> jax.Array:
    """The two-hot distribution `[..., 2 * S + 1]` float32 of `x` `[...]`: its mean over the bins is `scale(x)`.

    As in MuZero (appendix F) there are `2 * S + 1` bins, at the integers from -S to S of the scaled axis; S is the
    `support`. All probability lies on the two bins next to the scaled value, which is clipped to the outermost ones.
    """
    position = jnp.clip(scale(jnp.asarray(x, jnp.float32)), -support, support)
    # The share of a bin falls linearly with its distance and is zero from the next bin on.
    return jnp.maximum(0.0, 1.0 - jnp.abs(position[..., None] - _bins(support)))


def decode(logits: Array, support: int) -> jax.Array:
    """The value `[...]` of logits over the bins `[..., 2 * S + 1]`: the inverse scaling of the distribution's mean."""
    assert logits.shape[-1] == 2 * support + 1, logits.shape
    probabilities = jax.nn.softmax(jnp.asarray(logits, jnp.float32), axis=-1)
    # A sum instead of a matrix product, for which some accelerators would round the probabilities to bfloat16.
    return unscale(jnp.sum(probabilities * _bins(support), axis=-1))


def _bins(support: int) -> jax.Array:
    """`[2 * S + 1]` float32, the positions of the bins on the scaled axis."""
    return jnp.arange(-support, support + 1, dtype=jnp.float32)


CLIP = 10.0
"""Normalized observations are clipped to this many standard deviations."""
# With a lower cap the statistics would follow the policy: as it improves, its observations narrow, and the network
# would see the same state ever more magnified.
MAX_COUNT = 1e7
"""Cap of the count of observations, within the exact integers of float32."""
_EPSILON = 1e-6


class Normalization(hk.Module):
    """`clip((x - mean) / sqrt(variance))` with running statistics, which start at mean 0 and variance 1."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[B, width]` float32 to the same shape."""
        # Statistics are parameters that no optimizer changes: their gradient is zero, and weight decay skips vectors.
        hk.get_parameter("count", (1,), init=jnp.zeros)
        mean = lax.stop_gradient(hk.get_parameter("mean", x.shape[-1:], init=jnp.zeros))
        variance = lax.stop_gradient(hk.get_parameter("variance", x.shape[-1:], init=jnp.ones))
        return jnp.clip((x - mean) * lax.rsqrt(variance + _EPSILON), -CLIP, CLIP)


def merge(statistics: Mapping[str, Array], x: Array) -> dict[str, jax.Array]:
    """Adds observations `[N, width]` to running statistics: `count` `[1]`, `mean` and `variance` `[width]`, float32.

    With count n, mean m and variance v so far, and N, M, V of the new observations: the count becomes n + N, the mean
    `m + (M - m) * N / (n + N)`, the variance `(n v + N V + (M - m)^2 n N / (n + N)) / (n + N)` (Chan et al. 1983).
    """
    # The cap of n keeps the influence of new observations.
    old, new = jnp.minimum(statistics["count"], MAX_COUNT), x.shape[0]
    assert x.shape[1:] == statistics["mean"].shape, (x.shape, statistics["mean"].shape)
    total = old + new
    shift = jnp.mean(x, axis=0) - statistics["mean"]
    squares = old * statistics["variance"] + new * jnp.var(x, axis=0) + shift**2 * old * new / total
    mean, variance = statistics["mean"] + shift * new / total, squares / total
    # A feature whose square overflows float32 keeps its old statistics.
    finite = jnp.isfinite(mean) & jnp.isfinite(variance)
    return {
        "count": total,
        "mean": jnp.where(finite, mean, statistics["mean"]),
        "variance": jnp.where(finite, variance, statistics["variance"]),
    }


_STATISTICS = "representation/normalization"
"""The Haiku module that holds the running statistics."""


def muzero_mlp(config: MuZeroMLPConfig, spec: EnvSpec) -> ModelNetwork:
    """The network for observations of any shape, which it flattens."""

    def represent(observation: Array) -> jax.Array:
        """Flattens and normalizes observations `[B, ...]`: to latent states `[B, latent]` float32 in [0, 1]."""
        x = _flat(observation)
        if config.normalize:
            x = Normalization("normalization")(x)
        x = x.astype(compute_dtype(config.compute_dtype))
        x = trunk(x, config.width, config.layers)
        return unit_range(Dense(config.latent, 1.0, "latent")(x))

    def predict(latent: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, latent]` to the policy and value logits `[B, bins]`."""
        x = latent.astype(compute_dtype(config.compute_dtype))
        x = trunk(x, config.width, config.layers)
        return policy_layer(x, spec), bin_logits(x, config.bins, "value")

    def dynamics(latent: jax.Array, action: Array) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, latent]` and actions to the next `[B, latent]` float32 in [0, 1] and reward logits `[B, bins]`."""
        x = jnp.concatenate([latent, action_features(action, spec)], axis=-1)
        x = x.astype(compute_dtype(config.compute_dtype))
        x = trunk(x, config.width, config.layers)
        # The network predicts the change of the latent state.
        change = Dense(config.latent, 1.0, "change")(x)
        assert change.shape == latent.shape, (change.shape, latent.shape)
        return unit_range(latent + change.astype(jnp.float32)), bin_logits(x, config.bins, "reward")

    def observe(params: Params, observations: Array) -> Params:
        return {**params, _STATISTICS: merge(params[_STATISTICS], _flat(observations))}

    return model_network(represent, predict, dynamics, config, spec, observe if config.normalize else None)


def _flat(observation: Array) -> jax.Array:
    """`[B, ...]` of any real dtype to `[B, width]` float32."""
    x = jnp.asarray(observation, jnp.float32)
    return x.reshape(x.shape[0], -1)


STRIDED_STAGES = 2
"""Downsampling stages that are convolutions of stride 2, the first with half of the channels; later stages average."""


def latent_tower(x: jax.Array, blocks: int) -> jax.Array:
    """Residual blocks, then relu: `[B, h, w, C]` to the same shape."""
    with hk.name_scope("tower"):
        for index in range(blocks):
            x = Block(residual_start(blocks), f"block_{index}")(x)
    return jax.nn.relu(x)


def muzero_resnet(config: MuZeroResNetConfig, spec: EnvSpec) -> ModelNetwork:
    """The network for images `[H, W, C]`, or `[C, H, W]` if `config.channels_first`.

    Latent states are `[B, h, w, channels]`; h is `ceil(H / downsample)`, w likewise. Sides that `downsample` does not
    divide are padded with zeros.
    """
    if len(spec.observation_shape) != 3:
        raise ConfigError(
            f"network.name = '{config.name}' reads images [height, width, channels], but the observations of "
            f"'{spec.name}' have shape {list(spec.observation_shape)}; set network.name=muzero_mlp, which accepts any"
        )

    def represent(observation: Array) -> jax.Array:
        """Maps images to latent states, float32 in [0, 1]: stages that halve both sides, each with a block; a tower."""
        pixels = jnp.asarray(observation)
        x = pixels.astype(compute_dtype(config.compute_dtype))
        if pixels.dtype == jnp.uint8:
            x = x / 255
        if config.channels_first:
            x = jnp.moveaxis(x, 1, -1)
        halvings = config.downsample.bit_length() - 1
        if halvings == 0:
            x = Conv(config.channels, "stem")(x)
        for stage in range(halvings):
            if stage < STRIDED_STAGES:
                narrow = stage == 0 and halvings > 1
                channels = max(1, config.channels // 2) if narrow else config.channels
                x = Conv(channels, f"halving_{stage}", stride=2)(x)
            else:
                x = nn.avg_pool(x, (3, 3), (2, 2), "SAME")  # type: ignore[no-untyped-call]
            x = Block(1.0, f"stage_{stage}")(x)
        return unit_range(latent_tower(x, config.blocks))

    def predict(latent: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps latent states to the policy and value logits `[B, bins]`."""
        x = latent.astype(compute_dtype(config.compute_dtype))
        policy = policy_layer(_head(x, POLICY_PLANES, config.hidden, "policy"), spec)
        return policy, bin_logits(_head(x, VALUE_PLANES, config.hidden, "value"), config.bins, "value")

    def dynamics(latent: jax.Array, action: Array) -> tuple[jax.Array, jax.Array]:
        """Maps latent states and actions, one plane per feature, to the next ones and reward logits `[B, bins]`."""
        features = action_features(action, spec)
        planes = jnp.broadcast_to(features[:, None, None, :], (*latent.shape[:3], features.shape[-1]))
        x = jnp.concatenate([latent, planes], axis=-1).astype(compute_dtype(config.compute_dtype))
        # As in `muzero_mlp`, it predicts the change of the latent state.
        x = latent.astype(x.dtype) + Conv(config.channels, "stem")(x)
        x = latent_tower(x, config.blocks)
        assert x.shape == latent.shape, (x.shape, latent.shape)
        return unit_range(x), bin_logits(_head(x, VALUE_PLANES, config.hidden, "reward"), config.bins, "reward")

    return model_network(represent, predict, dynamics, config, spec)


def _head(x: jax.Array, planes: int, hidden: int, name: str) -> jax.Array:
    """One hidden layer on a few features per pixel: `[B, h, w, C]` to `[B, hidden]`."""
    assert x.ndim == 4, x.shape
    x = jax.nn.relu(Dense(planes, 2.0, f"{name}_planes")(x))
    return jax.nn.relu(Dense(hidden, 2.0, f"{name}_hidden")(x.reshape(x.shape[0], -1)))
