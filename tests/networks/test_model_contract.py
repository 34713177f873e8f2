"""One contract that every network of a learned model fulfils, for discrete and continuous actions."""

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import (
    MLPConfig,
    ModelNetworkConfig,
    MuZeroMLPConfig,
    MuZeroResNetConfig,
    OptimizerConfig,
    TransformerConfig,
)
from podzero.core.errors import ConfigError
from podzero.core.types import EnvSpec, ModelNetwork
from podzero.learner.optimizers import make_optimizer
from podzero.networks import make_inference, make_model_network, make_network
from podzero.networks.muzero import LOG_STD_BOUNDS, MEAN_BOUND, merge

CONFIGS: dict[str, ModelNetworkConfig] = {
    "mlp": MuZeroMLPConfig(name="muzero_mlp", latent=8, width=16, layers=1, support=5, projection=16),
    "resnet": MuZeroResNetConfig(
        name="muzero_resnet", channels=8, blocks=1, downsample=4, hidden=8, support=5, projection=16
    ),
}
SPECS = {
    "discrete": EnvSpec("images", (10, 7, 3), "float32", 5, players=1),
    "continuous": EnvSpec("images", (10, 7, 3), "float32", 0, players=1, action_bounds=((-2.0, 0.0), (2.0, 1.0))),
}
BATCH, BINS = 4, 11
PAIRS = [("mlp", "continuous"), ("resnet", "discrete")]
"""The networks that are compiled: what depends on the kind of actions is the same code in both."""


def observations(spec, seed=0):
    return np.random.default_rng(seed).random((BATCH, *spec.observation_shape), np.float32)


def actions(spec):
    if spec.action_shape:
        return np.random.default_rng(2).uniform(-1, 1, (BATCH, *spec.action_shape)).astype(np.float32)
    return np.arange(BATCH, dtype=np.int32)


def anything(network):
    """Random parameters, as if after some steps; the running statistics have their initial values."""
    random = np.random.default_rng(1)

    def leaf(path, shape):
        module, name = path[0].key, path[-1].key
        if "normalization" in module:
            return np.full(shape.shape, name == "variance", np.float32)
        noise = random.standard_normal(shape.shape, np.float32)
        if len(shape.shape) > 1:
            return noise * np.float32(np.sqrt(2 / np.prod(shape.shape[:-1])))
        return 0.1 * noise + (name in {"scale", "gain"})

    return jax.tree_util.tree_map_with_path(leaf, jax.eval_shape(network.init, jax.random.key(0)))


class Compiled(NamedTuple):
    """A network, compiled once for all laws."""

    config: ModelNetworkConfig
    spec: EnvSpec
    network: ModelNetwork
    trained: Any
    """Parameters as if some steps had been taken."""
    run: Any
    """`(params, observations, actions)` to all outputs after one step of the model, and what the laws compare."""

    def outputs(self, params=None, seed=0, turned=0):
        """On the host; `turned` gives the actions to other rows."""
        mine = np.roll(actions(self.spec), turned, axis=0)
        return jax.device_get(self.run(params or self.trained, observations(self.spec, seed), mine))


def all_outputs(network, params, observation, action):
    first = network.represent(params, observation)
    latent, reward = network.dynamics(params, first, action)
    policy, value = network.predict(params, latent)
    projected, predicted = (network.project(params, latent, predicted) for predicted in (False, True))
    return {
        "first": first, "latent": latent, "reward": reward, "policy": policy, "value": value,
        "projected": projected, "predicted": predicted,
    }  # fmt: skip


@cache
def compiled(kind, actions_of):
    config, spec = CONFIGS[kind], SPECS[actions_of]
    network = make_model_network(config, spec)
    half = make_model_network(config.model_copy(update={"compute_dtype": "bfloat16"}), spec)

    def loss(params, observation, action):
        found = all_outputs(network, params, observation, action)
        rest = (found[name] for name in ("policy", "value", "reward", "predicted"))
        return sum(jnp.sum(jnp.sin(leaf + 0.3)) for leaf in rest)

    @jax.jit
    def run(params, observation, action):
        return {
            **all_outputs(network, params, observation, action),
            "half": half.represent(params, observation),
            "gradient": jax.grad(loss)(params, observation, action),
        }

    return Compiled(config, spec, network, anything(network), run)


@pytest.fixture(params=PAIRS, ids="-".join)
def laws(request):
    return compiled(*request.param)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_shapes_and_dtypes(kind, spec):
    network = make_model_network(CONFIGS[kind], spec)
    params = jax.eval_shape(network.init, jax.random.key(0))
    found = jax.eval_shape(partial(all_outputs, network), params, observations(spec), actions(spec))
    assert found["first"].shape == found["latent"].shape
    assert found["reward"].shape == found["value"].shape == (BATCH, BINS)
    assert found["policy"].shape == ((BATCH, 2, 2) if spec.action_shape else (BATCH, 5))
    assert found["projected"].shape == found["predicted"].shape == (BATCH, 16)
    assert {leaf.dtype for leaf in found.values()} == {jnp.dtype("float32")}


def test_latent_states_have_the_range_from_zero_to_one(laws):
    found = laws.outputs()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    for latent in (found["first"], found["latent"]):
        flat = latent.reshape(BATCH, -1)
        np.testing.assert_allclose(flat.min(axis=1), 0.0, atol=1e-6)
        np.testing.assert_allclose(flat.max(axis=1), 1.0, atol=1e-6)


def test_rows_of_a_batch_are_independent(laws):
    mine, mixed = observations(laws.spec), observations(laws.spec, seed=1)
    mixed[2] = mine[2]
    alone, together = (laws.run(laws.trained, seen, actions(laws.spec)) for seen in (mine, mixed))
    for name in ("first", "latent", "reward", "policy", "value", "projected", "predicted"):
        np.testing.assert_allclose(alone[name][2], together[name][2], atol=1e-4, err_msg=name)
    assert not np.allclose(alone["value"][1], together["value"][1], atol=1e-4)


def test_the_next_latent_state_and_the_reward_depend_on_the_action(laws):
    one, other = laws.outputs(), laws.outputs(turned=1)
    for name in ("latent", "reward"):
        assert not np.allclose(one[name], other[name], atol=1e-3), name
    np.testing.assert_array_equal(one["first"], other["first"])


def test_untrained_policies_are_nearly_uniform_and_values_and_rewards_zero(laws):
    found = laws.outputs(jax.jit(laws.network.init)(jax.random.key(0)))
    np.testing.assert_allclose(laws.network.decode(found["value"]), 0.0, atol=1e-5)
    np.testing.assert_allclose(laws.network.decode(found["reward"]), 0.0, atol=1e-5)
    if laws.spec.action_shape:
        assert np.abs(found["policy"][:, 0]).max() < 0.7
        np.testing.assert_allclose(np.exp(found["policy"][:, 1]), 0.9, atol=0.4)
    else:
        probabilities = np.asarray(jax.nn.softmax(found["policy"]))
        assert -np.sum(probabilities * np.log(probabilities), axis=-1).min() > 0.95 * np.log(5)


def test_continuous_policies_stay_within_their_bounds():
    laws = compiled("mlp", "continuous")
    policy = laws.outputs(jax.tree.map(lambda leaf: 100.0 * leaf, laws.trained))["policy"]
    assert np.abs(policy[:, 0]).max() <= MEAN_BOUND
    assert policy[:, 1].min() >= LOG_STD_BOUNDS[0]
    assert policy[:, 1].max() <= LOG_STD_BOUNDS[1]


def test_every_leaf_but_the_statistics_gets_a_gradient(laws):
    for path, gradient in jax.tree_util.tree_leaves_with_path(laws.outputs()["gradient"]):
        assert np.isfinite(gradient).all(), path
        assert np.any(gradient != 0) != ("normalization" in str(path)), path


def test_bfloat16_is_close_and_outputs_are_float32(laws):
    found = laws.outputs()
    assert found["half"].dtype == np.float32
    np.testing.assert_allclose(found["half"], found["first"], atol=0.1)
    assert np.any(found["half"] != found["first"]), "nothing was computed in bfloat16"
    half = make_model_network(laws.config.model_copy(update={"compute_dtype": "bfloat16"}), laws.spec)
    made = jax.eval_shape(half.init, jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(made)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float32"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_observations_may_have_any_dtype(kind, dtype):
    network = make_model_network(CONFIGS[kind], SPECS["discrete"]._replace(observation_dtype=dtype))
    seen = (255 * observations(SPECS["discrete"])).astype(dtype)
    params = jax.eval_shape(network.init, jax.random.key(0))
    assert jax.eval_shape(network.represent, params, seen).dtype == jnp.float32


@pytest.mark.parametrize(("downsample", "side"), [(1, (10, 7)), (2, (5, 4)), (4, (3, 2)), (8, (2, 1)), (16, (1, 1))])
def test_latent_states_have_the_downsampled_sides_rounded_up(downsample, side):
    config = CONFIGS["resnet"].model_copy(update={"downsample": downsample})
    network = make_model_network(config, SPECS["discrete"])
    shape = jax.eval_shape(
        lambda key: network.represent(network.init(key), observations(SPECS["discrete"])), jax.random.key(0)
    ).shape
    assert shape == (BATCH, *side, 8)


def test_gradients_flow_through_average_pooling():
    """Pooling begins at a downsampling of eight."""
    network = make_model_network(CONFIGS["resnet"].model_copy(update={"downsample": 8}), SPECS["discrete"])
    seen = observations(SPECS["discrete"])
    gradients = jax.jit(jax.grad(lambda params: jnp.mean(network.represent(params, seen) ** 2)))(anything(network))
    stem = gradients["representation/halving_0"]["kernel"]
    assert np.isfinite(stem).all()
    assert np.abs(stem).max() > 0


def test_bytes_are_scaled_to_the_range_from_zero_to_one():
    spec = SPECS["discrete"]
    network = make_model_network(CONFIGS["resnet"], spec)
    params = anything(network)
    seen = np.random.default_rng(0).integers(0, 256, (BATCH, 10, 7, 3), np.uint8)
    floats = seen.astype(np.float32) / 255
    found = jax.jit(lambda params, *each: [network.represent(params, one) for one in each])(params, seen, floats)
    np.testing.assert_allclose(*found, atol=1e-4)


# Running statistics.

VECTOR = EnvSpec("vectors", (3,), "float32", 2, players=1)


@pytest.fixture(scope="module")
def vectors():
    network = make_model_network(CONFIGS["mlp"], VECTOR)
    compiled = network._replace(represent=jax.jit(network.represent), observe=jax.jit(network.observe))
    return compiled, anything(network)


def statistics(params):
    return next(leaves for module, leaves in params.items() if "normalization" in module)


def test_statistics_are_those_of_all_observations(vectors):
    network, params = vectors
    seen = np.random.default_rng(0).normal([1.0, -2.0, 0.0], [0.1, 3.0, 1.0], (60, 3)).astype(np.float32)
    for part in np.split(seen, [10, 15]):
        params = network.observe(params, part)
    np.testing.assert_allclose(statistics(params)["count"], [60])
    np.testing.assert_allclose(statistics(params)["mean"], seen.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(statistics(params)["variance"], seen.var(axis=0), rtol=1e-4)


def test_statistics_settle(vectors):
    """400 batches of 256 threes after 2,000,000 ones: 1 + 2 * 102,400 / 2,102,400. A policy that improves changes what
    it observes; the network must not see the same state differently because of it.
    """
    network, params = vectors
    for _ in range(20):
        params = network.observe(params, np.ones((100_000, 3), np.float32))
    params = network.observe(params, np.full((400 * 256, 3), 3.0, np.float32))
    np.testing.assert_allclose(statistics(params)["mean"], 1 + 2 * 102_400 / 2_102_400, rtol=1e-4)


def test_old_observations_decay_exponentially_in_the_end():
    """Beyond 10 million the weight of what came before is that of 10 million."""
    found = {"count": np.array([3e7], np.float32), "mean": np.ones(1), "variance": np.zeros(1)}
    after = merge(found, np.full((100_000, 1), 3.0, np.float32))
    np.testing.assert_allclose(after["mean"], 1 + 2 * 1e5 / (1e7 + 1e5), rtol=1e-5)
    np.testing.assert_allclose(after["count"], 1e7 + 1e5)


def test_a_number_whose_square_overflows_leaves_the_statistics_unchanged(vectors):
    network, params = vectors
    params = network.observe(params, np.ones((8, 3), np.float32))
    huge = np.ones((8, 3), np.float32)
    huge[2, 1] = np.finfo(np.float32).max
    after = statistics(network.observe(params, huge))
    for name in ("mean", "variance"):
        assert np.isfinite(after[name]).all()
        assert after[name][1] == statistics(params)[name][1]


def test_initial_statistics_normalize_nothing(vectors):
    network, params = vectors
    plain = make_model_network(CONFIGS["mlp"].model_copy(update={"normalize": False}), VECTOR)
    seen = np.random.default_rng(0).normal(size=(BATCH, 3)).astype(np.float32)
    np.testing.assert_allclose(network.represent(params, seen), jax.jit(plain.represent)(params, seen), atol=1e-5)
    assert plain.observe(params, seen) is params


def test_observations_are_normalized_and_clipped(vectors):
    """Scale and offset have no effect, and all outliers look alike."""
    network, params = vectors
    seen = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    one, other = network.observe(params, seen), network.observe(params, 100.0 * seen + 7.0)
    np.testing.assert_allclose(
        network.represent(one, seen[:4]), network.represent(other, 100.0 * seen[:4] + 7.0), atol=1e-3
    )
    far = np.array([[1e3, 0, 0], [1e5, 0, 0]], np.float32)
    latent = network.represent(one, far)
    np.testing.assert_array_equal(latent[0], latent[1])


def test_optimizers_do_not_change_the_statistics(vectors):
    network, params = vectors
    params = network.observe(params, np.random.default_rng(0).normal(2.0, 3.0, (50, 3)).astype(np.float32))
    optimizers = {
        name: make_optimizer(OptimizerConfig(name=name, weight_decay=0.1)) for name in ("adamw", "sgd", "lion")
    }
    seen = np.ones((BATCH, 3), np.float32)

    @jax.jit
    def moved(params):
        def step(optimizer, params, state):
            gradient = jax.grad(lambda p: jnp.sum(network.represent(p, seen) ** 2))(params)
            updates, state = optimizer.update(gradient, state, params)
            return jax.tree.map(lambda leaf, update: leaf + 0.1 * update, params, updates), state

        def steps(optimizer):
            start = params, optimizer.init(params)
            return jax.lax.fori_loop(0, 3, lambda _, carry: step(optimizer, *carry), start)[0]

        return {name: steps(optimizer) for name, optimizer in optimizers.items()}

    for name, after in moved(params).items():
        for leaf in ("count", "mean", "variance"):
            np.testing.assert_array_equal(statistics(after)[leaf], statistics(params)[leaf], err_msg=name)
        different = network.represent(after, seen), network.represent(params, seen)
        assert not np.allclose(*different, atol=1e-3), name


# The registry.


def test_networks_for_images_refuse_vectors():
    with pytest.raises(ConfigError, match=r"(?s)'vectors' .*shape \[3\].*network\.name=muzero_mlp"):
        make_model_network(CONFIGS["resnet"], VECTOR)


@pytest.mark.parametrize("make", [make_network, make_inference])
@pytest.mark.parametrize("kind", CONFIGS)
def test_networks_that_learn_the_rules_are_refused_for_games_with_known_rules(kind, make):
    with pytest.raises(ConfigError, match=r"muzero_.*'images'"):
        make(CONFIGS[kind], SPECS["discrete"])


def test_the_mlp_accepts_vectors_and_the_transformer_refuses_them():
    network = make_network(MLPConfig(name="mlp", width=8), VECTOR)
    params = jax.eval_shape(network.init, jax.random.key(0))
    logits, value = jax.eval_shape(network.apply, params, jnp.ones((BATCH, 3)))
    assert (logits.shape, value.shape) == ((BATCH, 2), (BATCH,))
    with pytest.raises(ConfigError, match="board"):
        make_network(TransformerConfig(name="transformer"), VECTOR)


def test_building_a_network_initializes_no_backend(monkeypatch):
    def taken():
        raise AssertionError("the backend was asked for")

    monkeypatch.setattr(jax, "default_backend", taken)
    for config in CONFIGS.values():
        make_model_network(config, SPECS["discrete"])


def test_channels_first_images_give_the_same_latent_states():
    config = CONFIGS["resnet"]
    last = make_model_network(config, SPECS["discrete"])
    spec = SPECS["discrete"]._replace(observation_shape=(3, 10, 7))
    first = make_model_network(config.model_copy(update={"channels_first": True}), spec)
    images = observations(SPECS["discrete"])

    @jax.jit
    def represented(params):
        return first.represent(params, np.moveaxis(images, -1, 1)), last.represent(params, images)

    np.testing.assert_array_equal(*represented(anything(first)))
