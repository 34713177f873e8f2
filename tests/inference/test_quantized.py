"""The quantized network on real positions, beside the same network in float32."""

from __future__ import annotations

import logging
import sys
import threading
from functools import partial

import jax
import numpy as np
import pytest
from random_parameters import random_parameters

from podzero.config import ResNetConfig, SearchConfig
from podzero.core.errors import ConfigError
from podzero.core.machine import has_int8_instructions
from podzero.core.types import EnvSpec, Exploration
from podzero.envs import make_env
from podzero.inference import QuantizedNetwork
from podzero.inference.agreement import EVERY, CalibrationPositions, agreement
from podzero.inference.openvino_network import quantize_weights
from podzero.networks import make_inference, make_network
from podzero.search import make_search, network_evaluation, rules_model

from .conftest import BATCH

needs_int8 = pytest.mark.skipif(
    not has_int8_instructions(), reason="without these instructions podzero evaluates in float32, and sums saturate"
)


def side_by_side(logits, value):
    return np.concatenate([logits, np.asarray(value)[:, None]], axis=1)


def after_random_moves(env, size=BATCH):
    """States of connect four after six random moves."""
    states = jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(0), size))
    step, view = jax.jit(jax.vmap(env.step)), jax.jit(jax.vmap(env.view))
    for ply in range(6):
        logits = np.where(view(states).legal, 0.0, -np.inf)
        states = step(states, jax.random.categorical(jax.random.key(ply), logits).astype(np.int32))
    return states


def evaluate_all(network, token, positions):
    return np.concatenate([network.evaluate(token, batch) for batch in np.split(positions, len(positions) // BATCH)])


def test_quantized_evaluations_agree_with_float32(quantized, folded, apply, played, positions):
    """What is reported is measured on every fourth position, which is held back from calibration."""
    network = quantized()
    found, expected = evaluate_all(network, network.load(folded), positions), side_by_side(*apply(folded, positions))
    measured = agreement(expected[3::4], found[3::4], played.legal[3::4])
    assert measured.policy_kl < 1e-3
    assert measured.value_error < 0.02
    assert measured.same_move > 0.9
    assert np.any(found != expected)
    reported = network.metrics()
    assert reported.pop("int8/quantized") == 1.0
    assert reported.pop("int8/cached") < 0.5
    expected = {f"int8/{name}": value for name, value in measured._asdict().items()}
    assert reported == pytest.approx(expected, abs=1e-5)


@needs_int8
@pytest.mark.parametrize("actions", [81, 82])
def test_global_pooling_agrees_with_float32(actions, limits):
    """Heads of the squares, with and without another action; parameters as if some steps had been taken."""
    spec = EnvSpec("go_9x9", (9, 9, 17), "bool", actions)
    config, draw = ResNetConfig(channels=16, blocks=2, global_pooling=True), np.random.default_rng(0)
    fold, network = make_inference(config, spec)
    start = random_parameters(make_network(config, spec))
    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * draw.standard_normal(leaf.shape).astype(np.float32), jax.jit(fold)(start)
    )
    boards = draw.random((BATCH, 9, 9, 17)) < 0.3
    played = CalibrationPositions(boards, np.ones((BATCH, actions), bool))
    limits(1e-12)
    quantized = QuantizedNetwork(spec, 16.0, 1, 16, played)
    expected = side_by_side(*jax.jit(network.apply)(params, boards))
    np.testing.assert_allclose(quantized.evaluate(quantized.load(params), boards), expected, rtol=1e-3, atol=1e-3)
    limits(1.0)
    quantized = QuantizedNetwork(spec, 16.0, 1, 16, played)
    measured = agreement(expected, quantized.evaluate(quantized.load(params), boards), played.legal)
    assert quantized.metrics()["int8/quantized"] == 1.0
    assert measured.policy_kl < 0.01
    assert measured.value_error < 0.03


def test_the_values_of_one_player_are_those_of_their_distribution(limits):
    """In float32, since the limits refuse int8; with large kernels, so that values differ."""
    spec, draw = EnvSpec("own", (4, 4, 18), "bool", 4, players=1), np.random.default_rng(0)
    config = ResNetConfig(channels=16, blocks=1)
    fold, network = make_inference(config, spec)
    params = jax.jit(fold)(random_parameters(make_network(config, spec)))
    params["heads"]["value"]["kernel"] *= 20.0
    boards = draw.random((BATCH, 4, 4, 18)) < 0.3
    limits(1e-12)
    quantized = QuantizedNetwork(spec, 16.0, 1, 16, CalibrationPositions(boards, np.ones((BATCH, 4), bool)))
    expected = side_by_side(*jax.jit(network.apply)(params, boards))
    assert np.ptp(expected[:, 4]) > 0.01
    np.testing.assert_allclose(quantized.evaluate(quantized.load(params), boards), expected, rtol=1e-3, atol=1e-5)


def test_a_version_beyond_the_limits_is_evaluated_in_float32_with_one_warning(
    quantized, folded, apply, positions, caplog, limits
):
    limits(1e-12)
    network = quantized()
    with caplog.at_level(logging.WARNING):
        tokens = [network.load(folded) for _ in range(2)]
    (warning,) = caplog.messages
    assert "int8 differs too much from float32" in warning
    assert "at most 1e-12" in warning
    assert network.metrics()["int8/quantized"] == 0.0
    expected = side_by_side(*apply(folded, positions))
    for token in tokens:
        np.testing.assert_allclose(evaluate_all(network, token, positions), expected, rtol=1e-4, atol=1e-4)


def test_a_network_in_jax_programs_gives_what_the_host_gives(quantized, folded, env):
    network, states = quantized(cache_mib=0), after_random_moves(env)
    token, evaluate = network.load(folded), jax.jit(network.evaluation(env))
    expected = network.evaluate(token, jax.jit(jax.vmap(env.view))(states).observation)
    np.testing.assert_array_equal(side_by_side(*evaluate(token, jax.random.key(0), states)), expected)


def test_what_only_held_back_positions_show_counts_as_an_error(env, trained, positions):
    """Every fourth position is held back. Ranges of empty boards alone clip what other boards need."""
    legal, empty = np.ones((len(positions), 7), bool), np.zeros_like(positions)
    held_back = np.arange(len(positions)) % 4 == 3
    errors = []
    for boards in (positions, np.where(held_back[:, None, None, None], positions, empty)):
        network = QuantizedNetwork(env.spec, 16.0, 1, 16, CalibrationPositions(boards, legal))
        network.load(trained)
        errors.append(network.metrics()["int8/value_error"])
    assert errors[1] > 3 * errors[0]


def test_searches_give_positions_for_later_calibrations(quantized, trained, env):
    network = quantized()
    token, states = network.load(trained), after_random_moves(env)
    before = network.metrics()["int8/policy_kl"]
    evaluate = jax.jit(network.evaluation(env))
    for _ in range(4 * EVERY):
        jax.block_until_ready(evaluate(token, jax.random.key(0), states))
    network.load(trained)
    calibration, held_back = network._positions.split()
    seen = jax.jit(jax.vmap(env.view))(states)
    np.testing.assert_array_equal(held_back.observation, np.tile(seen.observation[3::4], (4, 1, 1, 1)))
    np.testing.assert_array_equal(held_back.legal, np.tile(seen.legal[3::4], (4, 1)))
    assert len(calibration.legal) == 3 * len(held_back.legal)
    assert network.metrics()["int8/policy_kl"] != before


@pytest.fixture
def two_versions(env):
    """Folded parameters of two networks, of which the second has other preferences."""
    config = ResNetConfig(channels=8, blocks=1)
    fold, _ = make_inference(config, env.spec)
    first = jax.jit(fold)(random_parameters(make_network(config, env.spec)))

    def moved(leaf):
        return leaf + 0.3 * jax.random.normal(jax.random.key(leaf.size), leaf.shape)

    return first, jax.jit(partial(jax.tree.map, moved))(first)


def test_evaluations_while_a_version_is_loaded_are_of_the_version_of_their_token(quantized, two_versions, positions):
    network, batch = quantized(cache_mib=0), positions[:BATCH]
    old = network.load(two_versions[0])
    before = network.evaluate(old, batch)
    tokens = []
    loading = threading.Thread(target=lambda: tokens.append(network.load(two_versions[1])))
    loading.start()
    count = 0
    while loading.is_alive() or count < 10:
        np.testing.assert_array_equal(network.evaluate(old, batch), before)
        count += 1
    loading.join()
    np.testing.assert_array_equal(network.evaluate(old, batch), before)
    assert np.abs(network.evaluate(tokens[0], batch) - before).max() > 0.1


def test_only_the_two_newest_versions_are_kept(quantized, two_versions, positions):
    network, batch = quantized(), positions[:BATCH]
    first, second, third = (network.load(params) for params in (*two_versions, two_versions[0]))
    network.evaluate(second, batch)
    network.evaluate(third, batch)
    with pytest.raises(KeyError):
        network.evaluate(first, batch)


@needs_int8
def test_a_search_in_int8_chooses_mostly_the_same_moves(quantized, trained, apply, env):
    """Without noise, from 512 positions after some random moves."""
    count = 16 * BATCH
    roots, network, still = after_random_moves(env, count), quantized(), np.zeros(count, np.float32)
    sides = {
        "int8": (network.evaluation(env), network.load(trained)),
        "float32": (network_evaluation(env, apply), trained),
    }
    found = {}
    for side, (evaluate, params) in sides.items():
        search = make_search(SearchConfig(simulations=16), rules_model(env, evaluate))
        found[side] = jax.jit(search)(params, jax.random.key(1), roots, Exploration(still, still))
    assert np.mean(found["int8"].action == found["float32"].action) >= 0.9
    assert np.mean(np.abs(found["int8"].value - found["float32"].value)) < 0.05


def test_a_board_of_real_numbers_is_quantized_as_well(played, positions):
    spec = make_env("connect_four").spec._replace(observation_dtype="float32")
    config = ResNetConfig(channels=8, blocks=1)
    fold, inference = make_inference(config, spec)
    params = jax.jit(fold)(random_parameters(make_network(config, spec)))
    boards = positions.astype(np.float32) - 0.5
    network = QuantizedNetwork(spec, 16.0, 1, 16, CalibrationPositions(boards, played.legal))
    found = evaluate_all(network, network.load(params), boards)
    assert agreement(side_by_side(*jax.jit(inference.apply)(params, boards)), found, played.legal).policy_kl < 1e-3


def test_weights_are_rounded_to_half_a_scale_of_their_channel():
    kernel = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    kernel *= np.array([9.0, 1.0, 0.0, 1.0], np.float32).reshape(4, 1, 1, 1)
    values, scale = quantize_weights(kernel)
    assert values.dtype == np.int8
    assert scale.shape == (4, 1, 1, 1)
    np.testing.assert_array_equal(np.abs(values).max(axis=(1, 2, 3)), [127, 127, 0, 127])
    assert np.all(np.abs(values * scale - kernel) <= 0.5001 * scale)


def test_without_openvino_the_message_names_the_extra(quantized, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ConfigError, match=r"actors\.inference.* int8 .*--extra openvino"):
        quantized()
