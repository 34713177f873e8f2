"""One contract that every network fulfils on every kind of observation."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import MLPConfig, NetworkConfig, OwnNetworkConfig, ResNetConfig, TransformerConfig
from podzero.core.types import EnvSpec
from podzero.networks import check_network, make_inference, make_network
from podzero.networks.contract import ROWS as BATCH
from podzero.networks.contract import observations as boards

OWN = Path(__file__).with_name("own_nets.py")
CONFIGS: dict[str, NetworkConfig] = {
    "resnet": ResNetConfig(channels=8, blocks=1, value_hidden=8),
    "resnet with auxiliary heads and global pooling": ResNetConfig(
        channels=8, blocks=2, value_hidden=8, auxiliary=True, global_pooling=True
    ),
    "transformer": TransformerConfig(name="transformer", width=16, layers=1, heads=2, mlp_ratio=2, value_hidden=8),
    "mlp": MLPConfig(name="mlp", width=32, layers=2),
    "own Flax Linen module": OwnNetworkConfig(name=f"{OWN}:Linen", width=16),
    "own Flax NNX module": OwnNetworkConfig(name=f"{OWN}:Nnx", width=16),
}
SPECS = {
    "connect_four": EnvSpec("connect_four", (6, 7, 2), "bool", 7),
    "many planes and actions": EnvSpec("large", (8, 8, 119), "float32", 1000),
}


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS, scope="module")
def config(request):
    return request.param


@pytest.fixture(params=SPECS.values(), ids=SPECS, scope="module")
def spec(request):
    return request.param


@pytest.fixture(scope="module")
def network(config, spec):
    """Compiled once for all the tests of this pair."""
    network = make_network(config, spec)
    return network._replace(init=jax.jit(network.init), apply=jax.jit(network.apply))


@pytest.fixture(scope="module")
def params(network):
    return network.init(jax.random.key(0))


@pytest.fixture(scope="module")
def trained(params):
    """Parameters with no leaf at its special start: as if some steps had been taken."""
    noise = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: np.asarray(leaf) + 0.1 * noise.standard_normal(leaf.shape, np.float32), params)


def test_the_contract_holds_at_init_and_for_trained_parameters(network, trained, spec):
    check_network(network, spec, "it")
    check_network(network, spec, "it", trained)


@pytest.mark.parametrize("config", [each for name, each in CONFIGS.items() if "auxiliary" not in name])
def test_a_game_may_have_a_value_for_each_player(config):
    spec = SPECS["connect_four"]._replace(players=3, values=3)
    network = make_network(config, spec)
    check_network(network._replace(init=jax.jit(network.init), apply=jax.jit(network.apply)), spec, "it")
    fold, inference = make_inference(config, spec)
    values = inference.apply(fold(network.init(jax.random.key(0))), boards(spec))[1]
    assert values.shape == (BATCH, 3)


def test_auxiliary_heads_leave_policy_and_value_as_they_are(config, network, trained, spec):
    if network.apply_all is None:
        assert not getattr(config, "auxiliary", False)
        return
    logits, value, prediction = network.apply_all(trained, boards(spec))
    for one, two in zip((logits, value), network.apply(trained, boards(spec)), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)
    assert [leaf.shape for leaf in prediction] == [(BATCH, 3), (BATCH,), (BATCH, spec.num_actions)]
    assert {leaf.dtype for leaf in prediction} == {jnp.dtype("float32")}
    assert np.all(prediction.moves_left >= 0)


def test_outputs_depend_on_the_observation(network, trained, spec):
    one, two = network.apply(trained, boards(spec)), network.apply(trained, boards(spec, seed=1))
    assert not np.allclose(one[0][1], two[0][1], atol=1e-3)


def test_other_keys_give_other_parameters(network, params):
    other = network.init(jax.random.key(1))
    assert any(not np.allclose(a, b) for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(other), strict=True))


def test_untrained_policies_are_nearly_uniform_and_values_near_zero(network, params, spec):
    logits, value = network.apply(params, boards(spec))
    assert np.abs(value).max() < 0.3
    probabilities = np.asarray(jax.nn.softmax(logits))
    entropy = -np.sum(probabilities * np.log(probabilities), axis=-1)
    assert entropy.min() > 0.95 * np.log(spec.num_actions)


def test_every_leaf_gets_a_gradient(config, trained, spec):
    def loss(params):
        network = make_network(config, spec)
        logits, value, *auxiliary = (network.apply_all or network.apply)(params, boards(spec))
        others = sum(jnp.mean(leaf[..., (0, -1)] if leaf.ndim > 1 else leaf) for leaf in jax.tree.leaves(auxiliary))
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - logits[:, 1]) + jnp.mean((value - 0.5) ** 2) + others

    for path, gradient in jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(trained)):
        assert np.isfinite(gradient).all(), path
        assert np.any(np.asarray(gradient) != 0), path


def test_folded_equals_unfolded(config, network, trained, spec):
    fold, inference = make_inference(config, spec)
    folded = jax.jit(lambda params, observation: inference.apply(fold(params), observation))
    for one, two in zip(network.apply(trained, boards(spec)), folded(trained, boards(spec)), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)


def test_inference_networks_initialize_folded_parameters(config, network, params, spec):
    fold, inference = make_inference(config, spec)
    assert jax.eval_shape(inference.init, jax.random.key(0)) == jax.eval_shape(fold, params)


def test_bfloat16_is_close_and_outputs_are_float32(config, network, trained, spec):
    half = make_network(config.model_copy(update={"compute_dtype": "bfloat16"}), spec)
    logits, value = jax.jit(half.apply)(trained, boards(spec))
    exact_logits, exact_value = network.apply(trained, boards(spec))
    assert logits.dtype == value.dtype == jnp.float32
    np.testing.assert_allclose(value, exact_value, atol=0.2)
    assert np.abs(logits - exact_logits).mean() < 0.1 * np.abs(exact_logits).mean()
    assert np.any(np.asarray(logits != exact_logits)), "nothing was computed in bfloat16"
    made = jax.eval_shape(half.init, jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(made)} == {jnp.dtype("float32")}


def test_vmap_over_batches_equals_one_batch(config, network, trained, spec):
    grouped = jax.jit(jax.vmap(make_network(config, spec).apply, in_axes=(None, 0)))
    shaped = boards(spec).reshape(2, BATCH // 2, *spec.observation_shape)
    for one, two in zip(grouped(trained, shaped), network.apply(trained, boards(spec)), strict=True):
        np.testing.assert_allclose(one.reshape(two.shape), two, atol=1e-4)
