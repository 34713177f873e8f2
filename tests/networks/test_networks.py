"""Properties of single networks beyond the shared contract."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podzero.config import NestedConfig, OwnNetworkConfig, ResNetConfig, TransformerConfig
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec
from podzero.networks import check_network, make_inference, make_network
from podzero.networks.layers import (
    RELU_GAIN,
    decode_value,
    encode_value,
    expected_outcome,
    fold,
    pooled,
    standardize,
)
from podzero.networks.nested import mish
from podzero.networks.resnet import residual_start

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
BOARD = EnvSpec("connect_four", (6, 7, 2), "bool", 7)
TINY = {"channels": 16, "blocks": 2, "value_hidden": 16}
RESNET = ResNetConfig(name="resnet", **TINY)
NESTED = NestedConfig(name="nested", **TINY | {"blocks": 3})
HAIKU = OwnNetworkConfig(name=f"{CONFIGS / 'own_haiku_net.py'}:HaikuResNet", channels=16, blocks=2)
TRANSFORMER = TransformerConfig(name="transformer", width=16, layers=1, heads=2, mlp_ratio=2, value_hidden=16)


def test_standardized_kernel_by_hand():
    kernel = jnp.array([1.0, 3.0]).reshape(1, 1, 2, 1)  # mean 2, variance 1, fan-in 2
    expected = RELU_GAIN * 0.5 * np.array([-1.0, 1.0]) / np.sqrt(2.0)
    np.testing.assert_allclose(standardize(kernel, jnp.array([0.5])).ravel(), expected, rtol=1e-6)


STANDARDIZED = jax.jit(lambda kernel: standardize(kernel, jnp.ones(2)))


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**31 - 1), scale=st.floats(0.1, 100.0), shift=st.floats(-3.0, 3.0))
def test_standardized_kernel_ignores_scale_and_mean(seed, scale, shift):
    kernel = np.random.default_rng(seed).standard_normal((3, 3, 4, 2), np.float32)
    one, two = (STANDARDIZED(np.float32(k)) for k in (kernel, scale * (kernel + shift)))
    np.testing.assert_allclose(one, two, atol=1e-4)
    np.testing.assert_allclose(one.sum(axis=(0, 1, 2)), 0.0, atol=1e-4)
    np.testing.assert_allclose((one**2).sum(axis=(0, 1, 2)), RELU_GAIN**2, rtol=1e-4)


def test_pooled_features_by_hand():
    """Four squares, so b = 2: (2 - 14) / 10 times the mean."""
    features = jnp.array([[[1.0, -4.0], [2.0, 0.0], [3.0, 0.0], [6.0, 0.0]]])
    np.testing.assert_allclose(pooled(features), [[3.0, -1.0, -3.6, 1.2, 6.0, 0.0]], rtol=1e-6)


def test_pooled_parameters_do_not_depend_on_the_size_of_the_board():
    config = RESNET.model_copy(update={"global_pooling": True})
    small, large = (make_network(config, EnvSpec("go", (side, side, 17), "bool", side**2 + 1)) for side in (9, 13))
    params = jax.eval_shape(small.init, jax.random.key(0))
    logits, value = jax.eval_shape(large.apply, params, np.ones((2, 13, 13, 17), bool))
    assert (logits.shape, value.shape) == ((2, 170), (2,))


def test_other_actions_than_squares_have_dense_heads():
    network = make_network(RESNET.model_copy(update={"global_pooling": True}), BOARD)
    params = jax.eval_shape(network.init, jax.random.key(0))
    assert "policy_logits" in params["heads"]
    assert "pooling" in params["block_1"]
    assert "pooling" not in params["block_0"]


def test_every_third_nested_block_pools_in_its_first_pair():
    params = jax.eval_shape(make_network(NESTED, BOARD).init, jax.random.key(0))
    paths = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(params)
    ]
    assert {path for path in paths if "pooling" in path} == {
        f"block_2/pair_0/pooling/{leaf}" for leaf in ("bias", "kernel")
    }
    shapes = {name: params["block_0"][name]["kernel"].shape for name in ("down", "up")}
    assert shapes == {"down": (1, 1, 16, 8), "up": (1, 1, 8, 16)}
    assert params["block_0"]["pair_1"]["conv_1"]["kernel"].shape == (3, 3, 8, 8)


def test_nested_parameters_fit_boards_of_any_size_where_actions_are_squares():
    small, large = (make_network(NESTED, EnvSpec("go", (side, side, 17), "bool", side**2 + 1)) for side in (9, 13))
    params = jax.eval_shape(small.init, jax.random.key(0))
    logits, _ = jax.eval_shape(large.apply, params, np.ones((2, 13, 13, 17), bool))
    assert logits.shape == (2, 170)


def test_mish_is_x_times_tanh_of_softplus_with_a_finite_gradient():
    x = np.array([-1e4, -100.0, -20.0, -5.0, -1.0, 0.0, 0.5, 5.0, 19.9, 20.0, 20.1, 100.0, 1e4], np.float32)
    by_definition = lambda x: x * jnp.tanh(jax.nn.softplus(x))  # noqa: E731
    for dtype, tolerance in (("float32", 1e-6), ("bfloat16", 2e-2)):
        values = x.astype(jnp.dtype(dtype))
        exact = np.float64(values) * np.tanh(np.logaddexp(0.0, np.float64(values)))
        np.testing.assert_allclose(np.float64(jax.jit(mish)(values)), exact, rtol=tolerance, atol=1e-30)
    slopes, expected = (jax.jit(jax.vmap(jax.grad(each)))(x) for each in (mish, by_definition))
    np.testing.assert_allclose(slopes, expected, rtol=1e-5, atol=1e-6)


def test_the_value_of_an_outcome_is_the_probability_of_a_win_minus_that_of_a_loss():
    logits = np.log(np.float32([[0.2, 0.3, 0.5], [1.0, 1.0, 1.0], [0.6, 0.4, 0.0001]]))
    expected = [0.3, 0.0, (0.0001 - 0.6) / 1.0001]
    np.testing.assert_allclose(expected_outcome(jnp.asarray(logits)), expected, rtol=1e-5, atol=1e-7)


def test_the_distribution_of_a_value_decodes_to_the_value_also_near_zero_and_at_the_ends():
    values = jnp.float32([0.0, 1e-4, -0.003, 0.25, 1.0, -1.0])
    logits = jnp.log(jax.jit(encode_value)(values) + 1e-30)
    np.testing.assert_allclose(jax.jit(decode_value)(logits), values, rtol=1e-4, atol=1e-7)


def test_a_resnet_predicts_the_distribution_of_the_values_of_one_player_alone():
    alone, both = make_network(RESNET, BOARD._replace(players=1)), make_network(RESNET, BOARD)
    assert (alone.values_from, both.values_from) == ("distribution", None)
    params, board = jax.jit(alone.init)(jax.random.key(0)), jax.random.bernoulli(jax.random.key(1), 0.3, (4, 6, 7, 2))
    logits, value = jax.jit(alone.apply)(params, board)
    same_logits, same_value, predicted = jax.jit(alone.apply_all)(params, board)
    np.testing.assert_array_equal(logits, same_logits)
    np.testing.assert_array_equal(value, same_value)
    np.testing.assert_allclose(decode_value(predicted.distribution), value, atol=1e-6)
    # The untrained network expects about nothing, and the network for acting predicts the same.
    assert np.abs(value).max() < 0.01
    fold, acting = make_inference(RESNET, BOARD._replace(players=1))
    np.testing.assert_allclose(jax.jit(acting.apply)(jax.jit(fold)(params), board)[1], value, atol=1e-6)


@pytest.mark.parametrize("several", [{"players": 3, "values": 3}, {"players": 1}])
@pytest.mark.parametrize("make", [make_network, make_inference])
def test_outcomes_are_those_of_games_for_two(make, several):
    with pytest.raises(ConfigError, match="zero-sum game for two"):
        make(NESTED, BOARD._replace(**several))


def test_a_constant_kernel_has_finite_gradients():
    gradient = jax.jit(jax.grad(lambda k: standardize(k, np.ones(2, np.float32)).sum()))
    assert np.isfinite(gradient(np.ones((3, 3, 4, 2), np.float32))).all()


@pytest.mark.parametrize(("config", "convolutions"), [(RESNET, 2), (NESTED, 6)], ids=["resnet", "nested"])
def test_folding_removes_every_gain_and_nothing_else(config, convolutions):
    params = jax.eval_shape(make_network(config, BOARD).init, jax.random.key(0))
    names, folded = (
        {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (params, jax.eval_shape(fold, params))
    )
    assert names - folded == {name for name in names if "gain" in name}
    assert len(names - folded) == 1 + convolutions * config.blocks
    assert folded < names


@pytest.mark.parametrize("config", [RESNET, NESTED], ids=lambda config: config.name)
def test_inference_runs_without_standardizing(config):
    """The folded program does not contain the normalization."""
    _, inference = make_inference(config, BOARD)
    assert "rsqrt" not in program(inference)
    assert "rsqrt" in program(make_network(config, BOARD))


def program(network):
    params = jax.eval_shape(network.init, jax.random.key(0))
    return str(jax.make_jaxpr(network.apply)(params, jnp.zeros((2, *BOARD.observation_shape), bool)))


def test_the_example_in_haiku_fulfils_the_contract_of_networks():
    network = make_network(HAIKU, BOARD)
    check_network(network._replace(init=jax.jit(network.init), apply=jax.jit(network.apply)), BOARD, "it")


@pytest.mark.parametrize(
    "config", [RESNET, NESTED, HAIKU, TRANSFORMER], ids=["resnet", "nested", "own_haiku_net.py", "transformer"]
)
def test_networks_overfit_a_small_batch(config):
    network = make_network(config, BOARD)
    key = jax.random.key(0)
    observation = jax.random.bernoulli(key, 0.4, (6, *BOARD.observation_shape))
    action = jax.random.randint(key, (6,), 0, 7)
    outcome = jax.random.choice(key, jnp.array([-0.9, 0.0, 0.9]), (6,))
    optimizer = optax.adamw(1e-2)

    def loss(params):
        logits, value = network.apply(params, observation)
        policy_loss = optax.softmax_cross_entropy_with_integer_labels(logits, action).mean()
        value_loss = jnp.mean((value - outcome) ** 2)
        return policy_loss + value_loss, (policy_loss, value_loss)

    def step(carry, _):
        params, state = carry
        gradients, losses = jax.grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(gradients, state, params)
        return (optax.apply_updates(params, updates), state), losses

    @jax.jit
    def trained(key):
        params = network.init(key)
        return jax.lax.scan(step, (params, optimizer.init(params)), length=31)[1]

    policy_loss, value_loss = trained(key)
    assert policy_loss[-1] < 0.2
    assert value_loss[-1] < 0.05


@pytest.mark.parametrize("config", [RESNET, NESTED, TRANSFORMER], ids=lambda config: config.name)
@pytest.mark.parametrize("make", [make_network, make_inference])
def test_observations_that_are_not_boards_are_refused(config, make):
    cart_pole = EnvSpec("cart_pole", (4,), "float32", 2)
    with pytest.raises(ConfigError, match=r"(?s)'cart_pole' have shape \[4\].*board"):
        make(config, cart_pole)


def test_building_a_network_initializes_no_backend(monkeypatch):
    def taken():
        raise AssertionError("the backend was asked for")

    monkeypatch.setattr(jax, "default_backend", taken)
    for config in (RESNET, NESTED, HAIKU, TRANSFORMER):
        make_inference(config, BOARD)
        make_network(config, BOARD)


@pytest.mark.parametrize("blocks", [1, 4, 40])
def test_the_initial_scale_of_activations_hardly_depends_on_depth(blocks):
    growth_of_variance = (1 + residual_start(blocks) ** 2) ** blocks
    assert 2 <= growth_of_variance < np.e
