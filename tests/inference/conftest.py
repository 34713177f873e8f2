"""Networks for connect four, untrained and trained for a few steps, and real positions."""

from __future__ import annotations

from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from random_parameters import random_parameters

from podzero.config import ResNetConfig
from podzero.envs import make_env
from podzero.inference import QuantizedNetwork, random_positions
from podzero.networks import make_inference, make_network

BATCH = 32
POSITIONS = 128


@pytest.fixture(scope="session")
def env():
    return make_env("connect_four")


@pytest.fixture(scope="session")
def played(env):
    """Positions of random play, with their legal actions."""
    return random_positions(env, jax.random.key(0), POSITIONS)


@pytest.fixture(scope="session")
def positions(played):
    """Their observations."""
    return played.observation


@pytest.fixture(scope="session")
def config():
    return ResNetConfig(channels=16, blocks=2)


@pytest.fixture(scope="session")
def untrained(config, env):
    """Folded parameters as they are initialized."""
    return jax.jit(make_inference(config, env.spec)[0])(random_parameters(make_network(config, env.spec), 1))


@pytest.fixture(scope="session")
def trained(config, env, positions):
    """Folded parameters after some steps: full columns are preferred, own stones are worth more than others."""
    network, (fold, _) = make_network(config, env.spec), make_inference(config, env.spec)
    return jax.jit(fold)(_train(network.apply, random_parameters(network, 1), positions))


@pytest.fixture(scope="session", params=["untrained", "trained"])
def folded(request, untrained, trained):
    """Both of them."""
    return {"untrained": untrained, "trained": trained}[request.param]


@pytest.fixture(scope="session")
def apply(config, env):
    """The folded network in float32."""
    return jax.jit(make_inference(config, env.spec)[1].apply)


@pytest.fixture
def limits(monkeypatch):
    """Sets the limits of the errors of int8."""
    module = import_module("podzero.inference.agreement")  # a function has the same name

    def limit(policy_kl, value_error=1.0):
        monkeypatch.setattr(module, "MAX_POLICY_KL", policy_kl)
        monkeypatch.setattr(module, "MAX_VALUE_ERROR", value_error)

    return limit


@pytest.fixture
def quantized(env, played):
    """Makes a `QuantizedNetwork` with a cache of the given size."""

    def make(cache_mib=16.0):
        return QuantizedNetwork(env.spec, cache_mib, threads=1, batch=16, positions=played)

    return make


def _train(apply, params, positions):
    stones = positions.sum(axis=(1, 3))
    policy, value = jax.nn.softmax(stones.astype(np.float32)), np.tanh(positions[..., 0].sum((1, 2)) / 4 - 1)
    optimizer = optax.adam(1e-3)

    def loss(params):
        logits, predicted = apply(params, positions)
        return jnp.mean(optax.softmax_cross_entropy(logits, policy)) + jnp.mean((predicted - value) ** 2)

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for _ in range(40):
        params, state = step(params, state)
    return params
