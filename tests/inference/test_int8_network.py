"""The network with its tower in int8 as a JAX program, on real positions, beside the same network without int8."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_parameters import random_parameters

from podzero.config import ResNetConfig
from podzero.core.types import EnvSpec
from podzero.inference.agreement import CalibrationPositions, RecentPositions, agreement
from podzero.inference.int8_network import Int8Network, Int8Params, float_evaluation, quantize
from podzero.networks import make_inference, make_network


def side_by_side(evaluation):
    logits, value = evaluation
    return np.concatenate([logits, np.asarray(value)[:, None]], axis=1)


@pytest.fixture(scope="session")
def published(config, env):
    """Parameters as the learner publishes them."""
    return random_parameters(make_network(config, env.spec), 1)


@pytest.fixture
def network(config, env, played):
    return Int8Network(config, env.spec, lambda: RecentPositions(played, every=1))


def test_evaluations_agree_with_those_without_int8(network, published, config, env, apply, played, positions):
    """What is reported is measured on every fourth position, which is held back from calibration."""
    found = network
    params = found.fold(published)
    assert isinstance(params, Int8Params)
    assert {layer.kernel.dtype for layer in params.tower.values()} == {np.dtype("int8")}
    assert len(params.tower) == 2 * config.blocks
    evaluated = side_by_side(jax.jit(found.apply)(params, positions))
    expected = side_by_side(apply(jax.jit(make_inference(config, env.spec)[0])(published), positions))
    measured = agreement(expected[3::4], evaluated[3::4], played.legal[3::4])
    assert 0 < measured.policy_kl < 1e-3
    assert measured.value_error < 0.02
    assert measured.same_move > 0.9
    reported = found.metrics()
    assert reported.pop("int8/quantized") == 1.0
    expected = {f"int8/{name}": value for name, value in measured._asdict().items()}
    assert reported == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("global_pooling", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("actions", [81, 82])
def test_the_float_evaluation_is_that_of_the_network(actions, dtype, global_pooling):
    """Parameters as if some steps had been taken; heads of the squares, with and without another action."""
    spec, draw = EnvSpec("go_9x9", (9, 9, 17), "bool", actions), np.random.default_rng(0)
    config = ResNetConfig(channels=16, blocks=2, global_pooling=global_pooling, compute_dtype=dtype)
    fold, network = make_inference(config, spec)
    start = random_parameters(make_network(config, spec))
    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * draw.standard_normal(leaf.shape).astype(np.float32), jax.jit(fold)(start)
    )
    boards = draw.random((32, 9, 9, 17)) < 0.3
    expected = side_by_side(network.apply(params, boards))
    evaluation, largest = float_evaluation(config, spec, params, boards)
    np.testing.assert_allclose(side_by_side(evaluation), expected, rtol=1e-5, atol=1e-5)
    assert min(largest.values()) > 0
    played = CalibrationPositions(boards, np.ones((32, actions), bool))
    int8 = Int8Network(config, spec, lambda: RecentPositions(played))
    evaluated = side_by_side(jax.jit(int8.apply)(quantize(params, largest), boards))
    assert agreement(expected, evaluated, played.legal).policy_kl < 0.02


def test_a_version_beyond_the_limits_is_evaluated_without_int8_with_one_warning(
    network, published, config, env, apply, positions, caplog, limits
):
    limits(1e-12)
    found = network
    with caplog.at_level(logging.WARNING):
        versions = [found.fold(published) for _ in range(2)]
    (warning,) = caplog.messages
    assert "int8 differs too much from float32" in warning
    assert "at most 1e-12" in warning
    assert found.metrics()["int8/quantized"] == 0.0
    expected = apply(jax.jit(make_inference(config, env.spec)[0])(published), positions)
    for params in versions:
        np.testing.assert_allclose(
            side_by_side(jax.jit(found.apply)(params, positions)), side_by_side(expected), rtol=1e-4, atol=1e-4
        )


def test_products_are_those_of_rounded_kernels_and_inputs():
    """One block whose second convolution is zero but for its bias: what is quantized first can be computed by hand."""
    spec, draw = EnvSpec("test", (3, 3, 2), "bool", 9), np.random.default_rng(1)
    config = ResNetConfig(channels=4, blocks=1, compute_dtype="float32")
    fold, network = make_inference(config, spec)
    params = jax.device_get(jax.jit(fold)(random_parameters(make_network(config, spec))))
    kernel = params["block_0"]["conv_0"]["kernel"]
    scale = np.abs(kernel).max(axis=(0, 1, 2)) / 127
    largest = {"block_0/conv_0": jnp.float32(2.0), "block_0/conv_1": jnp.float32(1.0)}
    quantized = quantize(params, largest)
    convolution = quantized.tower["block_0/conv_0"]
    np.testing.assert_array_equal(convolution.kernel, np.rint(kernel / scale))
    assert np.abs(convolution.kernel).max() == 127
    np.testing.assert_allclose(convolution.unit, 2.0 / 127, rtol=1e-6)
    np.testing.assert_allclose(convolution.scale, 2.0 / 127 * scale, rtol=1e-6)
    boards = draw.random((4, 3, 3, 2)) < 0.5
    played = CalibrationPositions(boards, np.ones((4, 9), bool))
    int8 = Int8Network(config, spec, lambda: RecentPositions(played))
    stem = params | {"block_0": {"conv_0": params["block_0"]["conv_0"], "conv_1": zeroed(params, "conv_1")}}
    without = side_by_side(jax.jit(network.apply)(stem, boards))
    np.testing.assert_allclose(
        side_by_side(jax.jit(int8.apply)(quantize(stem, largest), boards)), without, rtol=1e-5, atol=1e-5
    )  # fmt: skip


def zeroed(params, name):
    layer = params["block_0"][name]
    return {"kernel": np.zeros_like(layer["kernel"]), "bias": layer["bias"]}


def test_shapes_are_known_without_calibration(network, published):
    found = network
    folded = found.fold(published)
    shapes = jax.eval_shape(found.init, jax.random.key(0))
    assert jax.tree.structure(shapes) == jax.tree.structure(folded)
    for shape, leaf in zip(jax.tree.leaves(shapes), jax.tree.leaves(folded), strict=True):
        assert (shape.shape, shape.dtype) == (leaf.shape, leaf.dtype)


def test_what_only_held_back_positions_show_counts_as_an_error(config, env, published, played):
    """Every fourth position is held back. Ranges of empty boards alone clip what other boards need."""
    held_back, errors = np.arange(len(played.legal)) % 4 == 3, []
    for boards in (played.observation, played.observation & held_back[:, None, None, None]):
        recent = RecentPositions(CalibrationPositions(boards, played.legal))
        int8 = Int8Network(config, env.spec, lambda recent=recent: recent)
        int8.fold(published)
        errors.append(int8.metrics()["int8/value_error"])
    assert errors[1] > 3 * errors[0]


def test_later_versions_are_calibrated_on_what_was_recorded(network, published, played, positions):
    found = network
    before = found.fold(published).tower["block_0/conv_0"].unit
    found.record(CalibrationPositions(np.zeros_like(positions), played.legal))
    after = found.fold(published).tower["block_0/conv_0"].unit
    assert after < before
