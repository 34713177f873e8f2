import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from podzero.config import (
    MLPConfig,
    MuZeroMLPConfig,
    MuZeroResNetConfig,
    NestedConfig,
    OptimizerConfig,
    ResNetConfig,
    TransformerConfig,
)
from podzero.core.types import EnvSpec
from podzero.learner.optimizers import decayed, make_optimizer, make_rate, matrices
from podzero.networks import make_model_network, make_network


def rates(steps, progress=0.0, **config):
    rate = make_rate(OptimizerConfig(**config))
    return [float(rate(step, at)) for step, at in np.broadcast(steps, progress)]


def first_updates(optimizer, gradients, params):
    """The updates of the first step."""
    return jax.jit(lambda gradients, params: optimizer.update(gradients, optimizer.init(params), params)[0])(
        gradients, params
    )


def test_the_constant_schedule_is_constant():
    assert rates([0, 10, 10_000], [0.0, 0.5, 1.0], learning_rate=0.5) == pytest.approx([0.5, 0.5, 0.5])


def test_the_linear_schedule_falls_linearly_over_the_run_to_the_final_fraction():
    """From 1 to 0.2: 0.1 for each eighth of the run, whatever the step."""
    values = rates(7, [0.0, 0.125, 0.5, 1.0], learning_rate=1.0, schedule="linear", final_fraction=0.2)
    assert values == pytest.approx([1.0, 0.9, 0.6, 0.2])


def test_the_cosine_schedule_is_halfway_in_the_middle_of_the_run():
    """f + (1 - f) * (1 + cos(pi p)) / 2 with f = 0.5; at a third of the run cos is 1/2."""
    values = rates(7, [0.0, 1 / 3, 0.5, 1.0], learning_rate=1.0, schedule="cosine", final_fraction=0.5)
    assert values == pytest.approx([1.0, 0.875, 0.75, 0.5])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_warmup_rises_linearly_from_a_positive_first_rate(schedule):
    values = rates([0, 1, 2, 3, 4], learning_rate=2.0, schedule=schedule, warmup_steps=4)
    assert values == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])


def test_decay_steps_begin_after_the_warmup_and_take_the_place_of_the_run():
    """From 1 to 0.2 over 8 steps, and the final rate after them."""
    config = {"schedule": "linear", "warmup_steps": 4, "decay_steps": 8, "final_fraction": 0.2}
    values = rates([3, 4, 8, 12, 100], [0.0, 0.0, 1.0, 0.0, 0.5], learning_rate=1.0, **config)
    assert values == pytest.approx([1.0, 1.0, 0.6, 0.2, 0.2])


def test_weight_decay_applies_to_matrices_and_kernels_only():
    params = {"kernel": jnp.ones((3, 3, 2, 4)), "matrix": jnp.ones((2, 4)), "bias": jnp.ones(4), "scale": jnp.ones(())}
    assert decayed(params) == {"kernel": True, "matrix": True, "bias": False, "scale": False}


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion", "muon"])
def test_without_a_gradient_matrices_shrink_by_rate_times_decay(name):
    """The rate is 1 here; the train step multiplies by it."""
    optimizer = make_optimizer(OptimizerConfig(name=name, weight_decay=0.5))
    params = {name: np.ones((2, 2), np.float32) for name in ("matrix", "heads")} | {"bias": np.ones(2, np.float32)}
    updates = first_updates(optimizer, jax.tree.map(np.zeros_like, params), params)
    np.testing.assert_allclose([updates["matrix"], updates["heads"]], -0.5, rtol=1e-6)
    np.testing.assert_array_equal(updates["bias"], 0.0)


def test_gradients_are_clipped_to_the_global_norm():
    # (3, 4) has norm 5; clipped to 1 it is (0.6, 0.8), and SGD's first step is minus that.
    config = OptimizerConfig(name="sgd", weight_decay=0.0, max_gradient_norm=1.0)
    optimizer = make_optimizer(config)
    params = {"a": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)}
    updates = first_updates(optimizer, {"a": np.float32([3.0]), "b": np.float32([4.0])}, params)
    np.testing.assert_allclose([updates["a"][0], updates["b"][0]], [-0.6, -0.8], rtol=1e-6)


def test_sgd_accumulates_momentum():
    # Two gradients of 1 with momentum 0.9 give steps of 1 and 1.9.
    config = OptimizerConfig(name="sgd", weight_decay=0.0)
    optimizer = make_optimizer(config)
    params = {"a": jnp.zeros(1)}
    state = optimizer.init(params)
    for expected in (-1.0, -2.9):
        updates, state = optimizer.update({"a": jnp.ones(1)}, state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(params["a"], [expected], rtol=1e-6)


def test_muon_orthogonalizes_matrices_at_the_size_of_adamw_s_updates():
    """Updates of a [6, 4] matrix have singular values of about 0.2 * sqrt(6), whatever those of the gradient: their
    root mean square is then 0.2. Kernels of convolutions are matrices of inputs and outputs, q, k and v three of them.
    """
    optimizer = make_optimizer(OptimizerConfig(name="muon", weight_decay=0.0, max_gradient_norm=1e9))
    random = np.random.default_rng(0)
    params = {
        "attention": {"qkv": {"kernel": random.normal(size=(6, 3, 2, 2))}},
        "conv": {"kernel": random.normal(size=(3, 1, 2, 4))},
        "dense": {"kernel": random.normal(size=(6, 4)), "bias": np.full(4, 3.0)},
        "value": {"kernel": np.full((6, 4), 3.0)},
    }
    params = jax.tree.map(np.float32, params)
    gradients = jax.tree.map(lambda leaf: leaf * np.arange(1, 1 + leaf.shape[-1], dtype=np.float32), params)
    updates = jax.device_get(first_updates(optimizer, gradients, params))
    qkv = np.moveaxis(updates["attention"]["qkv"]["kernel"], 1, 0).reshape(3, 6, 4)
    for matrix in (*qkv, updates["conv"]["kernel"].reshape(6, 4), updates["dense"]["kernel"]):
        singular = np.linalg.svd(matrix, compute_uv=False) / (0.2 * 6**0.5)
        assert (singular > 0.6).all()
        assert (singular < 1.3).all()
    # Adam's first step has the sign of the gradient, and one size; heads are Adam's.
    bias = updates["dense"]["bias"]
    assert (bias < 0).all()
    np.testing.assert_allclose(bias, bias[0], rtol=1e-5)
    np.testing.assert_allclose(updates["value"]["kernel"], bias[0], rtol=1e-5)


BOARD = EnvSpec("board", (5, 5, 3), "bool", 26)
CONTROL = EnvSpec("control", (8, 8, 3), "float32", 0, players=1, action_bounds=((-1.0,), (1.0,)))
CONVOLUTIONS = ["block_0.conv_0", "block_0.conv_1"]
PROJECTION = [f"projection.{name}" for name in ("predictor", "predictor_hidden", "projector", "projector_hidden")]


@pytest.mark.parametrize(
    ("network", "hidden"),
    [
        (ResNetConfig(channels=4, blocks=1, auxiliary=True), CONVOLUTIONS),
        (ResNetConfig(channels=4, blocks=1, global_pooling=True), CONVOLUTIONS),
        (
            NestedConfig(name="nested", channels=4, blocks=1),
            ["block_0.down", "block_0.up", *(f"block_0.pair_{pair}.conv_{i}" for pair in (0, 1) for i in (0, 1))],
        ),
        (
            TransformerConfig(name="transformer", width=8, layers=1, heads=2),
            ["layer_0.attention.out", "layer_0.attention.qkv", "layer_0.mlp.hidden", "layer_0.mlp.out"],
        ),
        (MLPConfig(name="mlp", width=8, layers=2), ["dense_1"]),
        (MLPConfig(name="mlp", width=8, layers=1), []),
        (
            MuZeroMLPConfig(name="muzero_mlp", layers=2),
            ["dynamics.change", "dynamics.trunk.hidden_1", "prediction.trunk.hidden_0", "prediction.trunk.hidden_1",
             *PROJECTION, "representation.latent", "representation.trunk.hidden_1"],
        ),
        (
            MuZeroResNetConfig(name="muzero_resnet", blocks=1, downsample=4),
            [*(f"dynamics.tower.{name}" for name in CONVOLUTIONS), *PROJECTION, "representation.halving_1",
             *(f"representation.stage_{stage}.conv_{half}" for stage in (0, 1) for half in (0, 1)),
             *(f"representation.tower.{name}" for name in CONVOLUTIONS)],
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)  # fmt: skip
def test_muon_leaves_first_layers_embeddings_and_heads_to_adamw(network, hidden):
    make, spec = (make_model_network, CONTROL) if network.name.startswith("muzero") else (make_network, BOARD)
    params = jax.eval_shape(make(network, spec).init, jax.random.key(0))
    numbers = jax.tree_util.tree_leaves_with_path(matrices(params), is_leaf=lambda leaf: hasattr(leaf, "output_axis"))
    names = [jax.tree_util.keystr(path, simple=True, separator=".").replace("/", ".") for path, _ in numbers]
    assert sorted(names) == sorted(f"{name}.kernel" for name in hidden)
    jax.eval_shape(make_optimizer(OptimizerConfig(name="muon")).init, params)


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion", "muon"])
def test_settings_that_may_change_at_a_resumption_keep_the_structure_of_the_state(name):
    """A resumed run keeps its moments and step count; the learning rate is not one of them."""
    changed = {"learning_rate": 0.5, "weight_decay": 0.0, "max_gradient_norm": 1e9}
    params = {"kernel": np.ones((2, 2), np.float32), "bias": np.ones(2, np.float32)}
    old, new = make_optimizer(OptimizerConfig(name=name)), make_optimizer(OptimizerConfig(name=name, **changed))
    first = jax.eval_shape(new.init, params)
    _, state = jax.eval_shape(old.update, params, jax.eval_shape(old.init, params), params)
    _, after = jax.eval_shape(new.update, params, state, params)
    shapes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), found) for found in (state, after, first)]
    assert jax.tree.structure(state) == jax.tree.structure(first)
    assert shapes[0] == shapes[1] == shapes[2]
