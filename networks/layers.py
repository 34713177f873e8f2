"""The multilayer perceptron, and what the networks share: checks, dtypes, standardized convolutions, pooling, heads.

Scaled weight standardization normalizes weights instead of activations. Batch statistics would make a network stateful,
and layer normalization cannot be folded away. A convolution whose kernel is standardized (Brock, De and Smith 2021,
"Characterizing signal propagation to close the performance gap in unnormalized ResNets") needs neither: the normalized
kernel is a function of the parameters alone. `fold` computes it once, and inference runs a plain convolution with bias.
The networks in Flax and those in Haiku share these functions. Their convolutions have the parameters
`kernel [h, w, in, out]`, `gain [out]` and `bias [out]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from podzero.config import MLPConfig
from podzero.core.errors import ConfigError
from podzero.core.types import Array, EnvSpec, Network, Params, Prediction, ValuesFrom


def check_boards(spec: EnvSpec, network: str) -> None:
    """Checks that the observations of `spec` are boards `[H, W, C]`."""
    if len(spec.observation_shape) != 3:
        raise ConfigError(
            f"network.name = '{network}' reads boards [height, width, planes], but the observations of "
            f"'{spec.name}' have shape {list(spec.observation_shape)}; choose an environment with board observations"
        )


def compute_dtype(name: str) -> np.dtype[np.generic]:
    """The dtype in which a network computes: `auto` is bfloat16 on accelerators and float32 on CPU.

    Call it only while tracing: it initializes JAX's backend and takes chips, which merely building must not.
    """
    if name == "auto":
        name = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    return jnp.dtype(name)


def flax_network(module: nn.Module, spec: EnvSpec, auxiliary: bool = False, values_from: ValuesFrom = None) -> Network:
    """Turns a Flax module that maps observations to logits and values into pure functions.

    With `auxiliary` the module takes an argument of that name, which switches its auxiliary heads on. With
    `values_from`, see `Network`, it returns a `Prediction` in any case.
    """
    # The parameters must include those of the auxiliary heads, which `apply` leaves out.
    options: dict[str, Any] = {"auxiliary": True} if auxiliary else {}

    def init(key: Array) -> Params:
        observation = jnp.zeros((1, *spec.observation_shape), spec.observation_dtype)
        return module.init(jnp.asarray(key), observation, **options)["params"]

    def apply(params: Params, observation: Array) -> tuple[jax.Array, jax.Array]:
        logits, value, *_ = cast(HeadOutputs, module.apply({"params": params}, observation))
        return logits, value

    def apply_all(params: Params, observation: Array) -> tuple[jax.Array, jax.Array, Prediction]:
        outputs = module.apply({"params": params}, observation, **options)
        return cast(tuple[jax.Array, jax.Array, Prediction], outputs)

    return Network(init, apply, apply_all if auxiliary or values_from else None, values_from)


RELU_GAIN = math.sqrt(2.0 / (1.0 - 1.0 / math.pi))
"""About 1.71: with this gain, relu of a standard normal variable has variance one."""

_EPSILON = 1e-4


def standardize(kernel: jax.Array, gain: jax.Array) -> jax.Array:
    """Standardizes the kernel `[h, w, in, out]` of a convolution with the gain `[out]`.

    `RELU_GAIN * gain * (W - mean) / sqrt(max(fan_in * var, 1e-4))`, with mean and variance per output channel. With
    gain one each output channel has zero mean and squared norm `RELU_GAIN ** 2`.
    """
    assert gain.shape == kernel.shape[-1:], (kernel.shape, gain.shape)
    fan_in = math.prod(kernel.shape[:-1])
    mean = jnp.mean(kernel, axis=(0, 1, 2), keepdims=True)
    variance = jnp.var(kernel, axis=(0, 1, 2), keepdims=True)
    # The lower bound keeps a constant kernel from dividing by zero.
    scale = lax.rsqrt(jnp.maximum(fan_in * variance, _EPSILON))
    return (kernel - mean) * (RELU_GAIN * scale * gain)


def fold(params: Params) -> Params:
    """The tree of dicts in which every standardized convolution (a mapping with `kernel` and `gain`) is a plain one."""
    if not isinstance(params, Mapping):
        return params
    if "gain" in params and "kernel" in params:
        rest: dict[str, Any] = {name: leaf for name, leaf in params.items() if name != "gain"}
        return rest | {"kernel": standardize(params["kernel"], params["gain"])}
    return {name: fold(child) for name, child in params.items()}


def as_computed(apply: Callable[[Params, Array], Any], spec: EnvSpec, params: Params) -> Params:
    """The parameters in the dtypes in which `apply` computes with them.

    Those that it only converts to one smaller dtype are converted here, once, with the same results; the others, such
    as the scale of a layer normalization in float32, stay as they are. Traces `apply`, which may be any function.
    """
    observation: Any = jax.ShapeDtypeStruct((1, *spec.observation_shape), spec.observation_dtype)  # type: ignore[no-untyped-call]
    program: Any = jax.make_jaxpr(apply)(params, observation).jaxpr
    leaves, structure = jax.tree.flatten(params)

    def converted(leaf: Any, variable: Any) -> Any:
        dtypes = set(_dtypes_of_uses(program, variable))
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        return leaf if dtype is None or dtype.itemsize >= leaf.dtype.itemsize else jnp.asarray(leaf, dtype)

    return jax.tree.unflatten(structure, map(converted, leaves, program.invars[: len(leaves)]))


_CALLS = ("jit", "closed_call", "remat2", "custom_jvp_call", "custom_vjp_call")
"""Operations whose operands are those of a program inside them, one for one."""


def _dtypes_of_uses(program: Any, variable: Any) -> Iterator[Any]:
    """For each use of a variable in a jaxpr the dtype that it is converted to, or None for any other use."""
    for operation in program.eqns:
        for place, operand in enumerate(operation.invars):
            if operand is not variable:
                continue
            name, parameters = operation.primitive.name, operation.params
            if name == "convert_element_type":
                yield parameters["new_dtype"]
            elif name in _CALLS:
                inner = parameters.get("jaxpr") or parameters["call_jaxpr"]
                inner = getattr(inner, "jaxpr", inner)
                yield from _dtypes_of_uses(inner, inner.invars[place])
            else:
                yield None
    if any(result is variable for result in program.outvars):
        yield None


def convolve(x: jax.Array, kernel: jax.Array, bias: jax.Array, stride: int = 1) -> jax.Array:
    """A same-padded convolution plus bias, in the dtype of `x` `[B, H, W, in]`.

    Maps it to `[B, ceil(H / stride), ceil(W / stride), out]` by a kernel `[h, w, in, out]` and a bias `[out]`.
    """
    assert x.ndim == 4, x.shape
    assert kernel.shape[2:] == (x.shape[-1], *bias.shape), (x.shape, kernel.shape, bias.shape)
    strides, layout = (stride, stride), ("NHWC", "HWIO", "NHWC")
    # Parameters are float32; the convolution computes in the dtype of its input.
    y = lax.conv_general_dilated(x, kernel.astype(x.dtype), strides, "SAME", dimension_numbers=layout)
    return y + bias.astype(x.dtype)


def pooled(features: jax.Array) -> jax.Array:
    """Mean, mean scaled by the size of the board, and maximum of each channel: `[B, S, C]` to `[B, 3 * C]`.

    Global pooling (Wu 2020, KataGo, section 3.3) lets the parameters fit boards of any size. The scaled mean is the
    mean times `(b - 14) / 10`, where b is the root of S; with it, later layers can depend on sums as well as on means.
    """
    assert features.ndim == 3, features.shape
    mean = jnp.mean(features, axis=1)
    return jnp.concatenate([mean, side_factor(features.shape[1]) * mean, jnp.max(features, axis=1)], axis=-1)


def side_factor(squares: int) -> float:
    """The factor of the scaled mean on a board with this number of squares; zero on one of 14 x 14."""
    return 0.1 * (math.sqrt(squares) - 14.0)


def actions_are_squares(spec: EnvSpec) -> bool:
    """Whether the actions are the squares of the board and at most one more (a pass)."""
    return spec.num_actions - math.prod(spec.observation_shape[:2]) in (0, 1)


POLICY_PLANES = 16
"""Features per square that enter the policy's dense layer."""
VALUE_PLANES = 8
"""Features per square that enter the value's hidden layer."""
POOLED_PLANES = 32
"""Features per square in both heads, if they are pooled."""
LAST_LAYER_SCALE = 1e-2
"""Variance scale of both last layers, small: search would only amplify the noise of an untrained network."""
LAST = nn.initializers.variance_scaling(LAST_LAYER_SCALE, "fan_in", "truncated_normal")
"""Initializer of both last layers."""
HIDDEN = nn.initializers.he_normal()
"""Initializer of the layers before them."""

HeadOutputs = tuple[jax.Array, jax.Array] | tuple[jax.Array, jax.Array, Prediction]
"""Logits and values, and the auxiliary predictions if requested."""


class Heads(nn.Module):
    """Policy and value heads of the Flax networks.

    A few features per square give the policy logits and, through one hidden layer and tanh, the value. By default they
    are flattened, and each logit depends on all of them. With `pooled` the logit of a square depends on that square's
    features and on pooled features of the board, so that the parameters fit boards of any size.
    """

    num_actions: int
    value_hidden: int
    pooled: bool = False
    """Requires `actions_are_squares`."""
    values: int = 1
    """See `EnvSpec.values`."""
    values_from: ValuesFrom = None
    """What the value is: the expectation of a predicted outcome, win minus loss, or of a predicted distribution over
    the bins of `encode_value`; None: a tanh."""
    ownership: bool = False
    """Whether the auxiliary heads predict who will own each square."""

    @nn.compact
    def __call__(self, features: jax.Array, auxiliary: bool = False) -> HeadOutputs:
        """Maps features `[B, S, C]` of S squares to float32 logits `[B, A]` and values in [-1, 1], see `values_of`.

        With `auxiliary` or `values_from` it returns a `Prediction` as well; without `auxiliary`, of the values alone.
        """
        assert features.ndim == 3, features.shape
        policy_planes = self._planes(features, POOLED_PLANES if self.pooled else POLICY_PLANES, "policy_planes")
        logits = self._logits(policy_planes, "policy")

        planes = self._planes(features, POOLED_PLANES if self.pooled else VALUE_PLANES, "value_planes")
        board = pooled(planes) if self.pooled else planes.reshape(planes.shape[0], -1)
        hidden = nn.relu(nn.Dense(self.value_hidden, dtype=board.dtype, kernel_init=HIDDEN, name="value_hidden")(board))
        # The last layers compute in float32, whatever the tower's dtype.
        hidden = hidden.astype(jnp.float32)
        size, to_values = {
            None: (self.values, values_of), "outcome": (3, expected_outcome),
            "distribution": (len(VALUE_BINS), decode_value),
        }[self.values_from]  # fmt: skip
        last = nn.Dense(size, kernel_init=LAST, name="value")(hidden)
        value = to_values(last)
        assert logits.shape == (features.shape[0], self.num_actions), logits.shape
        predicted = Prediction(**({} if self.values_from is None else {self.values_from: last}))
        if not auxiliary:
            return (logits, value, predicted) if self.values_from else (logits, value)
        outcome = predicted.outcome
        prediction = predicted._replace(
            outcome=nn.Dense(3, kernel_init=LAST, name="auxiliary_outcome")(hidden) if outcome is None else outcome,
            moves_left=nn.softplus(nn.Dense(1, kernel_init=LAST, name="auxiliary_moves_left")(hidden)[:, 0]),
            reply=self._logits(policy_planes, "auxiliary_reply"),
            ownership=nn.Dense(3, kernel_init=LAST, name="auxiliary_ownership")(features.astype(jnp.float32))
            if self.ownership
            else None,
        )
        return logits, value, prediction

    def _planes(self, features: jax.Array, count: int, name: str) -> jax.Array:
        """`count` features per square, `[B, S, count]`."""
        return nn.relu(nn.Dense(count, dtype=features.dtype, kernel_init=HIDDEN, name=name)(features))

    def _logits(self, planes: jax.Array, name: str) -> jax.Array:
        """Logits of the actions, `[B, A]` float32."""
        planes = planes.astype(jnp.float32)
        if not self.pooled:
            flat = planes.reshape(planes.shape[0], -1)
            return nn.Dense(self.num_actions, kernel_init=LAST, name=f"{name}_logits")(flat)
        board, (_, squares, channels) = pooled(planes), planes.shape
        # The board's pooled features enter as a bias that all squares share.
        bias = nn.Dense(channels, kernel_init=HIDDEN, name=f"{name}_pooled")(board)
        logits = nn.Dense(1, kernel_init=LAST, name=f"{name}_squares")(nn.relu(planes + bias[:, None]))[..., 0]
        if self.num_actions == squares:
            return logits
        other = nn.Dense(1, kernel_init=LAST, name=f"{name}_other")(board)
        return jnp.concatenate([logits, other], axis=-1)


def values_of(outputs: jax.Array) -> jax.Array:
    """The last layer's outputs `[B, V]` as values in [-1, 1]: `[B]` if V is 1, else `[B, V]`."""
    return jnp.tanh(outputs[:, 0] if outputs.shape[1] == 1 else outputs)


def expected_outcome(logits: jax.Array) -> jax.Array:
    """The values `[B]` of logits `[B, 3]` of loss, draw and win: the probability of a win minus that of a loss."""
    probabilities = jax.nn.softmax(logits)
    return probabilities[:, 2] - probabilities[:, 0]


VALUE_BINS = np.array([math.copysign((place / 64) ** 2, place) for place in range(-64, 65)], np.float32)
"""`[129]`, the values over which a value's distribution is predicted: narrow near zero, where sums of rewards begin."""


def encode_value(values: Array) -> jax.Array:
    """The distribution `[..., 129]` of values in [-1, 1], on the two bins around each, with the value as its mean."""
    passed = (values[..., None] - VALUE_BINS[:-1]) / np.diff(VALUE_BINS)
    return -jnp.diff(jnp.clip(passed, 0.0, 1.0), prepend=1.0, append=0.0)


def decode_value(logits: jax.Array) -> jax.Array:
    """The values `[...]` of logits over the bins `[..., 129]`."""
    # A sum instead of a matrix product, for which some accelerators would round the probabilities to bfloat16.
    return jnp.sum(jax.nn.softmax(logits) * VALUE_BINS, axis=-1)


def without_auxiliary(params: Params) -> Params:
    """Removes the parameters of auxiliary heads from nested mappings."""
    if not isinstance(params, Mapping):
        return params
    return {name: without_auxiliary(child) for name, child in params.items() if not name.startswith("auxiliary_")}


class MLP(nn.Module):
    """Dense layers, each followed by layer normalization and relu, then the heads."""

    config: MLPConfig
    num_actions: int
    values: int = 1
    """See `EnvSpec.values`."""

    @nn.compact
    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps `[B, ...]` of any real dtype or bool to float32 logits `[B, A]` and values, see `values_of`."""
        dtype = compute_dtype(self.config.compute_dtype)
        x = jnp.asarray(observation, dtype).reshape(observation.shape[0], -1)
        for index in range(self.config.layers):
            x = nn.Dense(self.config.width, dtype=dtype, kernel_init=HIDDEN, name=f"dense_{index}")(x)
            x = nn.relu(nn.LayerNorm(dtype=dtype, name=f"norm_{index}")(x))
        assert x.shape == (observation.shape[0], self.config.width), x.shape
        # The heads compute in float32, whatever the dtype of the layers.
        features = x.astype(jnp.float32)
        logits = nn.Dense(self.num_actions, kernel_init=LAST, name="policy_logits")(features)
        return logits, values_of(nn.Dense(self.values, kernel_init=LAST, name="value")(features))


def mlp(config: MLPConfig, spec: EnvSpec) -> Network:
    """The network for observations of any shape, which it flattens."""
    return flax_network(MLP(config, spec.num_actions, spec.values), spec)
