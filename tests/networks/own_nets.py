"""Networks of a user's own: one of each kind that works, and one for each fault."""

import math
from itertools import count
from typing import Any, NamedTuple

import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
from flax import nnx

SMALL = nn.initializers.variance_scaling(0.01, "fan_in", "truncated_normal")
CALLS = count()


class Linen(nn.Module):
    num_actions: int
    num_values: int
    width: int = 8
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, observation):
        x = observation.reshape(observation.shape[0], -1)
        x = nn.relu(nn.Dense(self.width, dtype=self.dtype, name="hidden")(x)).astype(jnp.float32)
        logits = nn.Dense(self.num_actions, kernel_init=SMALL, name="logits")(x)
        values = jnp.tanh(nn.Dense(self.num_values, kernel_init=SMALL, name="value")(x))
        return logits, values if self.num_values > 1 else values[:, 0]


class Nnx(nnx.Module):
    def __init__(self, num_actions, num_values, observation_shape, width=8, *, dtype=jnp.float32, rngs):
        size = math.prod(observation_shape)
        self.layers = nnx.List([nnx.Linear(size, width, dtype=dtype, rngs=rngs)])
        self.logits = nnx.Linear(width, num_actions, kernel_init=SMALL, rngs=rngs)
        self.value = nnx.Linear(width, num_values, kernel_init=SMALL, rngs=rngs)

    def __call__(self, observation):
        x = observation.reshape(observation.shape[0], -1)
        for layer in self.layers:
            x = nnx.relu(layer(x))
        x = x.astype(jnp.float32)
        values = jnp.tanh(self.value(x))
        return self.logits(x), values if values.shape[1] > 1 else values[:, 0]


class Haiku(hk.Module):
    def __init__(self, num_actions, width=8, name=None):
        super().__init__(name)
        self.num_actions, self.width = num_actions, width

    def __call__(self, observation):
        x = jax.nn.relu(hk.Linear(self.width)(hk.Flatten()(observation)))
        return hk.Linear(self.num_actions)(x), jnp.tanh(hk.Linear(1)(x)[:, 0])


def transformed(num_actions, width=8):
    def evaluate(observation):
        return Haiku(num_actions, width)(observation)

    return hk.transform(evaluate)


def stateful(num_actions, width=8):
    def evaluate(observation):
        return Haiku(num_actions, width)(observation)

    return hk.transform_with_state(evaluate)


class Functions(NamedTuple):
    init: Any
    apply: Any


def outputs(logits_and_value):
    return logits_and_value[:, :-1], jnp.tanh(logits_and_value[:, -1])


def pair(num_actions, observation_shape, width=8):
    def init(key, observation):
        one, two = jax.random.split(key)
        size = math.prod(observation_shape)
        first = jax.random.normal(one, (size, width)) / size
        return {"first": first, "second": jax.random.normal(two, (width, num_actions + 1))}

    def apply(params, observation):
        x = observation.reshape(observation.shape[0], -1) @ params["first"]
        return outputs(jax.nn.relu(x) @ params["second"])

    return Functions(init, apply)


fixed = pair(num_actions=7, observation_shape=(6, 7, 2))


def faulty(logits=lambda x: x, value=lambda x: x, params=lambda params: params):
    """A kind of network whose outputs or parameters are changed by a function."""

    def make(num_actions, observation_shape):
        init, apply = pair(num_actions, observation_shape)

        def changed(params, observation):
            one, two = apply(params, observation)
            return logits(one), value(two)

        return (lambda key, observation: params(init(key, observation))), changed

    return make


column = faulty(value=lambda x: x[:, None])
too_few = faulty(logits=lambda x: x[:, :-1])
infinite = faulty(logits=lambda x: x / 0.0)
unbounded = faulty(value=lambda x: x + 2.0)
entangled = faulty(logits=lambda x: x - x.mean(axis=0))
half = faulty(params=lambda params: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params))
nan = faulty(params=lambda params: params | {"first": params["first"] * jnp.nan})
empty = faulty(params=lambda params: {})
listed = faulty(params=lambda params: [*params.values()])
moody = faulty(params=lambda params: params | {"first": params["first"] + next(CALLS)})


def restless(num_actions, observation_shape):
    init, apply = pair(num_actions, observation_shape)
    return init, lambda params, observation: (
        apply(params, observation)[0] + next(CALLS),
        apply(params, observation)[1],
    )


def three(num_actions, observation_shape):
    init, apply = pair(num_actions, observation_shape)
    return init, lambda params, observation: (*apply(params, observation), 0)


def nothing(num_actions):
    return None


def wrong_dimensions(num_actions, observation_shape):
    init, _ = pair(num_actions, observation_shape)
    return init, lambda params, observation: outputs(observation @ params["first"])


class Batchnorm(nn.Module):
    num_actions: int

    @nn.compact
    def __call__(self, observation):
        return outputs(nn.BatchNorm(use_running_average=False)(observation.reshape(observation.shape[0], -1)))


class Dropout(nnx.Module):
    def __init__(self, num_actions, *, rngs):
        self.dropout = nnx.Dropout(0.1, rngs=rngs)


def demanding(num_actions, depth):
    return None


number = 3


class Doubled(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.sow("metrics", "seen", x)
        return 2 * x


class Sowing(nn.Module):
    num_actions: int

    @nn.compact
    def __call__(self, observation):
        doubled = Doubled(name="twice")
        x = doubled(doubled(observation.reshape(observation.shape[0], -1)))
        self.sow("metrics", "first", x[:, 0])
        return nn.Dense(self.num_actions, kernel_init=SMALL)(x), jnp.zeros(x.shape[0])
