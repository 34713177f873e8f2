"""One contract that every network fulfils on every kind of observation."""

import math
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import MLPConfig, NestedConfig, NetworkConfig, OwnNetworkConfig, ResNetConfig, TransformerConfig
from podzero.core.types import EnvSpec, Network
from podzero.networks import check_network, make_inference, make_network
from podzero.networks.contract import ROWS as BATCH
from podzero.networks.contract import observations as boards
from podzero.networks.layers import values_of

OWN = Path(__file__).with_name("own_nets.py")
CONFIGS: dict[str, NetworkConfig] = {
    "resnet": ResNetConfig(channels=8, blocks=1, value_hidden=8),
    "resnet with auxiliary heads and global pooling": ResNetConfig(
        channels=8, blocks=2, value_hidden=8, auxiliary=True, ownership=True, global_pooling=True
    ),
    "nested with auxiliary heads": NestedConfig(name="nested", channels=16, blocks=3, value_hidden=8, auxiliary=True),
    "transformer": TransformerConfig(name="transformer", width=16, layers=1, heads=2, mlp_ratio=2, value_hidden=8),
    "mlp": MLPConfig(name="mlp", width=32, layers=2),
    "own Flax Linen module": OwnNetworkConfig(name=f"{OWN}:Linen", width=16),
    "own Flax NNX module": OwnNetworkConfig(name=f"{OWN}:Nnx", width=16),
}
SPEC = EnvSpec("connect_four", (6, 7, 2), "bool", 7)
LARGE = EnvSpec("large", (8, 8, 119), "float32", 1000)
"""Many planes and actions."""


class Compiled(NamedTuple):
    """A network for `SPEC`, compiled once for all laws."""

    network: Network
    run: Any
    """`(params, observations)` to what the laws compare."""
    made: Any
    """Parameters of `init`."""
    trained: Any
    """Parameters with no leaf at its special start: as if some steps had been taken."""

    def outputs(self, params, seed=0):
        return jax.device_get(self.run(params, boards(SPEC, seed)))


@cache
def compiled(name):
    config = CONFIGS[name]
    network, (fold, inference) = make_network(config, SPEC), make_inference(config, SPEC)
    half_config = config.model_copy(update={"compute_dtype": "bfloat16"})
    half, (fold_half, half_inference) = make_network(half_config, SPEC), make_inference(half_config, SPEC)

    def loss(params, observation):
        logits, value, *auxiliary = (network.apply_all or network.apply)(params, observation)
        others = sum(jnp.mean(leaf[..., (0, -1)] if leaf.ndim > 1 else leaf) for leaf in jax.tree.leaves(auxiliary))
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - logits[:, 1]) + jnp.mean((value - 0.5) ** 2) + others

    @jax.jit
    def run(params, observation):
        grouped = observation.reshape(2, BATCH // 2, *SPEC.observation_shape)
        return {
            "plain": network.apply(params, observation),
            "with auxiliary": network.apply_all and network.apply_all(params, observation),
            "folded": inference.apply(fold(params), observation),
            "half": half.apply(params, observation),
            "half, folded": half_inference.apply(fold_half(params), observation),
            "grouped": jax.vmap(network.apply, in_axes=(None, 0))(params, grouped),
            "gradient": jax.grad(loss)(params, observation),
        }

    jitted = network._replace(
        init=jax.jit(network.init), apply=lambda params, observation: run(params, observation)["plain"]
    )
    made, noise = jitted.init(jax.random.key(0)), np.random.default_rng(1)
    trained = jax.tree.map(lambda leaf: np.asarray(leaf) + 0.1 * noise.standard_normal(leaf.shape, np.float32), made)
    return Compiled(jitted, run, made, trained)


@pytest.fixture(params=CONFIGS)
def name(request):
    return request.param


@pytest.fixture
def laws(name):
    return compiled(name)


def test_the_contract_holds_at_init_and_for_trained_parameters(laws):
    check_network(laws.network, SPEC, "it")
    check_network(laws.network._replace(init=lambda key: laws.trained), SPEC, "it")


def test_the_contract_holds_for_many_planes_and_actions(name):
    network = make_network(CONFIGS[name], LARGE)
    check_network(network._replace(init=jax.jit(network.init), apply=jax.jit(network.apply)), LARGE, "it")


@pytest.mark.parametrize("name", [name for name in CONFIGS if "auxiliary" not in name])
def test_a_game_may_have_a_value_for_each_player(name):
    spec = SPEC._replace(players=3, values=3)
    network, (fold, inference) = make_network(CONFIGS[name], spec), make_inference(CONFIGS[name], spec)
    params = jax.eval_shape(network.init, jax.random.key(0))
    for found in (
        jax.eval_shape(network.apply, params, boards(spec)),
        jax.eval_shape(lambda params, seen: inference.apply(fold(params), seen), params, boards(spec)),
    ):
        assert (found[1].shape, found[1].dtype) == ((BATCH, 3), jnp.float32)


def test_values_lie_between_minus_one_and_one_for_any_number_of_players():
    np.testing.assert_allclose(values_of(jnp.array([[9.0], [-0.5]])), np.tanh([9.0, -0.5]), rtol=1e-6)
    several = np.array([[9.0, -9.0, 0.5]], np.float32)
    np.testing.assert_allclose(values_of(jnp.asarray(several)), np.tanh(several), rtol=1e-6)


def test_auxiliary_heads_leave_policy_and_value_as_they_are(name, laws):
    found = laws.outputs(laws.trained)
    if found["with auxiliary"] is None:
        assert not getattr(CONFIGS[name], "auxiliary", False)
        return
    logits, value, prediction = found["with auxiliary"]
    for one, two in zip((logits, value), found["plain"], strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)
    owners = [(BATCH, math.prod(SPEC.observation_shape[:2]), 3)] if CONFIGS[name].ownership else []
    found = jax.tree.leaves(prediction)
    assert [leaf.shape for leaf in found] == [(BATCH, 3), (BATCH,), (BATCH, SPEC.num_actions), *owners]
    assert {leaf.dtype for leaf in found} == {np.dtype("float32")}
    assert np.all(prediction.moves_left >= 0)


def test_outputs_depend_on_the_observation(laws):
    one, two = (laws.outputs(laws.trained, seed)["plain"] for seed in (0, 1))
    assert not np.allclose(one[0][1], two[0][1], atol=1e-3)


def test_other_keys_give_other_parameters(laws):
    other = laws.network.init(jax.random.key(1))
    assert any(not np.allclose(a, b) for a, b in zip(jax.tree.leaves(laws.made), jax.tree.leaves(other), strict=True))


def test_untrained_policies_are_nearly_uniform_and_values_near_zero(laws):
    logits, value = laws.outputs(laws.made)["plain"]
    assert np.abs(value).max() < 0.3
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    entropy = -np.sum(probabilities * np.log(probabilities), axis=-1)
    assert entropy.min() > 0.95 * np.log(SPEC.num_actions)


def test_every_leaf_gets_a_gradient(laws):
    for path, gradient in jax.tree_util.tree_leaves_with_path(laws.outputs(laws.trained)["gradient"]):
        assert np.isfinite(gradient).all(), path
        assert np.any(gradient != 0), path


def test_folded_equals_unfolded(laws):
    found = laws.outputs(laws.trained)
    for one, two in zip(found["plain"], found["folded"], strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)


def test_inference_networks_initialize_folded_parameters(name, laws):
    fold, inference = make_inference(CONFIGS[name], SPEC)
    assert jax.eval_shape(inference.init, jax.random.key(0)) == jax.eval_shape(fold, laws.made)


def test_bfloat16_is_close_and_outputs_are_float32(name, laws):
    found = laws.outputs(laws.trained)
    (logits, value), (exact_logits, exact_value) = found["half"], found["plain"]
    assert logits.dtype == value.dtype == np.float32
    np.testing.assert_allclose(value, exact_value, atol=0.2)
    assert np.abs(logits - exact_logits).mean() < 0.1 * np.abs(exact_logits).mean()
    assert np.any(logits != exact_logits), "nothing was computed in bfloat16"
    half = make_network(CONFIGS[name].model_copy(update={"compute_dtype": "bfloat16"}), SPEC)
    made = jax.eval_shape(half.init, jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(made)} == {jnp.dtype("float32")}


def test_acting_weights_have_the_dtype_that_the_network_computes_with(name, laws):
    """Those of convolutions and hidden layers: the last layers and layer normalization compute in float32."""
    found = laws.outputs(laws.trained)
    for one, two in zip(found["half, folded"], found["half"], strict=True):
        np.testing.assert_allclose(one, two, atol=1e-2)
    fold, inference = make_inference(CONFIGS[name].model_copy(update={"compute_dtype": "bfloat16"}), SPEC)
    folded = jax.eval_shape(fold, laws.made)
    dtypes = {jax.tree_util.keystr(path): leaf.dtype for path, leaf in jax.tree_util.tree_leaves_with_path(folded)}
    last = {name for name in dtypes if any(part in name for part in ("logits", "'value'", "norm", "policy_"))}
    assert {dtypes[name] for name in set(dtypes) - last} == {jnp.dtype("bfloat16")}
    assert jnp.dtype("float32") in {dtypes[name] for name in last}
    program = jax.make_jaxpr(inference.apply)(folded, boards(SPEC))
    weights = {f"f32{list(leaf.shape)}" for leaf in jax.tree.leaves(folded)}
    casts = [str(eqn.invars[0].aval) for eqn in program.eqns if eqn.primitive.name == "convert_element_type"]
    assert not [cast for cast in casts if cast in weights]


def test_vmap_over_batches_equals_one_batch(laws):
    found = laws.outputs(laws.trained)
    for one, two in zip(found["grouped"], found["plain"], strict=True):
        np.testing.assert_allclose(one.reshape(two.shape), two, atol=1e-4)
