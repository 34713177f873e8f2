"""The ResNet whose tower OpenVINO computes, beside the same network by XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_parameters import random_parameters

from podzero.config import ResNetConfig
from podzero.core.importing import import_openvino
from podzero.core.types import EnvSpec
from podzero.learner.openvino_tower import host_resnet, make_tower
from podzero.networks import make_network
from podzero.networks.layers import convolve

SPEC = EnvSpec("connect_four", (6, 7, 2), "bool", 7)
CONFIG = ResNetConfig(channels=16, blocks=2, value_hidden=16)
BATCH = 32


def cosine(first, second):
    first, second = np.ravel(first), np.ravel(second)
    return first @ second / (np.linalg.norm(first) * np.linalg.norm(second))


def xla_tower(x, kernels, biases):
    for layer in range(0, len(kernels), 2):
        y = convolve(jax.nn.relu(x), kernels[layer], biases[layer])
        x = x + convolve(jax.nn.relu(y), kernels[layer + 1], biases[layer + 1])
    return x


@pytest.mark.parametrize(("board", "channels", "layers"), [((6, 7), 16, 4), ((3, 3), 8, 2), ((9, 5), 8, 6)])
def test_the_tower_and_its_gradients_are_those_of_xla_up_to_rounding(board, channels, layers):
    rng = np.random.default_rng(0)
    x, weights = (jnp.asarray(rng.normal(size=(BATCH, *board, channels)), jnp.float32) for _ in range(2))
    kernels = jnp.asarray(rng.normal(size=(layers, 3, 3, channels, channels)) / np.sqrt(9 * channels), jnp.float32)
    biases = jnp.asarray(rng.normal(size=(layers, channels)), jnp.float32)

    def results(tower):
        def loss(*inputs):
            y = tower(*inputs)
            return jnp.sum(jnp.tanh(y) * weights), y

        gradients, y = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(x, kernels, biases)
        return [y, *gradients]

    computed = results(lambda x, *weights: make_tower(1)(x, weights))
    for found, expected in zip(computed, results(xla_tower), strict=True):
        assert found.shape == expected.shape
        assert cosine(found, expected) > 0.999
        assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(expected), rel=0.02)


@pytest.mark.parametrize(("board", "pools", "blocks"), [((6, 7), False, 2), ((6, 7), True, 2), ((5, 5), True, 4)])
def test_the_network_and_its_gradients_are_those_of_the_float32_network_up_to_rounding(board, pools, blocks):
    config = CONFIG.model_copy(update={"blocks": blocks, "global_pooling": pools})
    spec = SPEC._replace(observation_shape=(*board, 2))
    network, plain = host_resnet(config, spec), make_network(config, spec)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * rng.normal(size=leaf.shape).astype(np.float32), jax.jit(plain.init)(jax.random.key(0))
    )
    observation = jax.random.bernoulli(jax.random.key(1), 0.3, (BATCH, *spec.observation_shape))
    made = jax.eval_shape(network.init, jax.random.key(0))
    assert jax.tree.structure(made) == jax.tree.structure(params)

    def loss(apply, params):
        logits, value = apply(params, observation)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1)) + jnp.mean(jnp.square(value - 0.5)), (logits, value)

    found, outputs = jax.jit(jax.grad(lambda p: loss(network.apply, p), has_aux=True))(params)
    expected, expected_outputs = jax.jit(jax.grad(lambda p: loss(plain.apply, p), has_aux=True))(params)
    for output, reference in zip(outputs, expected_outputs, strict=True):
        np.testing.assert_allclose(output, reference, atol=0.05)
    whole = [jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (found, expected)]
    assert cosine(*whole) > 0.999
    for name in [f"block_{number}" for number in range(blocks)]:
        parts = [[*map(np.ravel, jax.tree.leaves(tree[name]))] for tree in (found, expected)]
        for one, other in zip(*parts, strict=True):
            assert cosine(one, other) > 0.99, name
    # Where the CPU has no instructions for bfloat16, OpenVINO computes in float32.
    if "BF16" in import_openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        assert any(np.any(output != reference) for output, reference in zip(outputs, expected_outputs, strict=True))


def test_auxiliary_heads_are_those_of_the_float32_network_up_to_rounding():
    config = CONFIG.model_copy(update={"auxiliary": True})
    network, plain = host_resnet(config, SPEC), make_network(config, SPEC)
    params = random_parameters(plain)
    observation = jax.random.bernoulli(jax.random.key(1), 0.3, (BATCH, *SPEC.observation_shape))
    found, expected = (jax.jit(one.apply_all)(params, observation) for one in (network, plain))
    for output, reference in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(output, reference, atol=0.05)


def test_the_values_of_one_player_have_their_distribution():
    spec = SPEC._replace(players=1)
    network, plain = host_resnet(CONFIG, spec), make_network(CONFIG, spec)
    params = random_parameters(plain)
    observation = jax.random.bernoulli(jax.random.key(1), 0.3, (BATCH, *SPEC.observation_shape))
    found, expected = (jax.jit(one.apply_all)(params, observation) for one in (network, plain))
    assert network.values_from == plain.values_from == "distribution"
    for output, reference in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(output, reference, atol=0.05)


def test_where_jax_has_an_accelerator_xla_computes_the_whole_network(monkeypatch):
    network, plain = host_resnet(CONFIG, SPEC), make_network(CONFIG, SPEC)
    params, observation = random_parameters(plain), jnp.ones((2, *SPEC.observation_shape), bool)
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    for found, expected in zip(*(jax.jit(one.apply)(params, observation) for one in (network, plain)), strict=True):
        np.testing.assert_array_equal(found, expected)
