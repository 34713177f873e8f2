"""The network on the devices of a server."""

import jax
import numpy as np
import pytest
from random_parameters import random_parameters

from podzero.config import ResNetConfig
from podzero.core.errors import ConfigError
from podzero.core.types import Versioned
from podzero.envs import make_env
from podzero.inference.build import NetworkDevice
from podzero.inference.serving import encoding_of
from podzero.networks import make_inference, make_network

from .test_encoding import positions

SIZES = (4, 16)
INITIAL = np.zeros(3, np.uint8)
"""The row of an empty board."""


@pytest.fixture(scope="module")
def parts():
    env, config = make_env("tic_tac_toe"), ResNetConfig(channels=4, blocks=1)
    fold, network = make_inference(config, env.spec)
    params = [jax.jit(fold)(random_parameters(make_network(config, env.spec), seed)) for seed in range(2)]
    return env, encoding_of(env), network, params


@pytest.fixture
def compilations():
    """The seconds of each compilation so far."""
    seconds = []

    def heard(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seconds.append(duration)

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield seconds
    jax.monitoring.unregister_event_duration_listener(heard)


def test_it_evaluates_what_the_network_does_with_the_newest_parameters(parts):
    env, encoding, network, params = parts
    device = NetworkDevice(encoding, network.apply, SIZES, jax.devices()[:1], INITIAL)
    assert device.version == -1
    assert device.known.size == 0
    states = positions(env, count=16, plies=3)
    rows, seen = np.asarray(encoding.encode(states)), jax.vmap(env.view)(states).observation
    for version, own in enumerate(params):
        device.load(Versioned(version, own))
        assert device.version == version
        logits, value = network.apply(own, seen)
        np.testing.assert_allclose(device.known, device.evaluate(np.tile(INITIAL, (SIZES[0], 1)))[1][0], atol=1e-5)
        for size in SIZES:
            by, evaluations = device.evaluate(rows[:size])
            assert by == version
            assert evaluations.dtype == np.float32
            np.testing.assert_allclose(evaluations[:, :-1], logits[:size], atol=1e-5)
            np.testing.assert_allclose(evaluations[:, -1], value[:size], atol=1e-5)


def test_all_sizes_are_compiled_before_the_first_request(parts, compilations):
    _, encoding, network, params = parts
    device = NetworkDevice(encoding, network.apply, SIZES, jax.devices()[:1], INITIAL)
    device.load(Versioned(0, params[0]))
    assert len(compilations) >= len(SIZES)
    compilations.clear()
    for size in SIZES:
        device.evaluate(np.zeros((size, encoding.row_bytes), np.uint8))
    device.load(Versioned(1, params[1]))
    device.evaluate(np.zeros((SIZES[0], encoding.row_bytes), np.uint8))
    assert not compilations


def test_parameters_of_another_kind_are_compiled_before_they_are_used(parts, compilations):
    """As those that are not in int8 when others were."""
    _, encoding, network, params = parts
    seen = []

    def apply(own, observation):
        return network.apply(own[0] if isinstance(own, tuple) else own, observation)

    device = NetworkDevice(encoding, apply, SIZES, jax.devices()[:1], INITIAL, seen.append)
    device.load(Versioned(0, params[0]))
    compilations.clear()
    device.load(Versioned(1, (params[1],)))
    assert len(compilations) >= len(SIZES)
    compilations.clear()
    rows = np.zeros((SIZES[0], encoding.row_bytes), np.uint8)
    assert device.evaluate(rows)[0] == 1
    assert not compilations
    assert [shown is rows for shown in seen] == [True]


def test_sizes_that_the_devices_cannot_share_are_refused(parts):
    _, encoding, network, _ = parts
    with pytest.raises(ConfigError, match=r"6 positions .*4 devices.*multiples of 4"):
        NetworkDevice(encoding, network.apply, (4, 6), jax.devices() * 4, INITIAL)


def test_a_batch_that_does_not_fit_into_memory_is_named(parts):
    _, encoding, network, params = parts

    def too_large(own, observation):
        if observation.shape[0] == SIZES[1]:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory while trying to allocate")
        return network.apply(own, observation)

    device = NetworkDevice(encoding, too_large, SIZES, jax.devices()[:1], INITIAL)
    with pytest.raises(ConfigError, match=r"16 positions .*memory"):
        device.load(Versioned(0, params[0]))
