import jax.numpy as jnp
import numpy as np
import optax
import pytest

from podzero.config import OptimizerConfig
from podzero.learner.optimizers import decayed, make_optimizer, make_schedule


def rates(steps, **config):
    schedule = make_schedule(OptimizerConfig(**config))
    return [float(schedule(step)) for step in steps]


def test_the_constant_schedule_is_constant():
    assert rates([0, 10, 10_000], learning_rate=0.5) == pytest.approx([0.5, 0.5, 0.5])


def test_the_linear_schedule_falls_linearly_to_the_final_fraction_and_stays_there():
    # From 1 to 0.2 over 8 steps: 0.1 a step.
    values = rates([0, 1, 4, 8, 100], learning_rate=1.0, schedule="linear", decay_steps=8, final_fraction=0.2)
    assert values == pytest.approx([1.0, 0.9, 0.6, 0.2, 0.2])


def test_the_cosine_schedule_is_halfway_at_half_of_its_steps():
    # final + (1 - final) * (1 + cos(pi t / T)) / 2: 1, (1 + 0.5) / 2 + ..., 0.5.
    values = rates([0, 50, 100, 200], learning_rate=1.0, schedule="cosine", decay_steps=100, final_fraction=0.5)
    assert values == pytest.approx([1.0, 0.75, 0.5, 0.5])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "warmup_cosine"])
def test_warmup_rises_linearly_from_a_positive_first_rate(schedule):
    values = rates([0, 1, 2, 3, 4], learning_rate=2.0, schedule=schedule, warmup_steps=4, decay_steps=1000)
    assert values == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])


def test_decay_begins_after_warmup():
    values = rates([4, 8, 12], learning_rate=1.0, schedule="linear", warmup_steps=4, decay_steps=8, final_fraction=0.0)
    assert values == pytest.approx([1.0, 0.5, 0.0])


def test_weight_decay_applies_to_matrices_and_kernels_only():
    params = {"kernel": jnp.ones((3, 3, 2, 4)), "matrix": jnp.ones((2, 4)), "bias": jnp.ones(4), "scale": jnp.ones(())}
    assert decayed(params) == {"kernel": True, "matrix": True, "bias": False, "scale": False}


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion"])
def test_without_a_gradient_matrices_shrink_by_rate_times_decay(name):
    optimizer = make_optimizer(OptimizerConfig(name=name, learning_rate=0.1, weight_decay=0.5))
    params = {"matrix": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    zero = {"matrix": jnp.zeros((2, 2)), "bias": jnp.zeros(2)}
    updates, _ = optimizer.update(zero, optimizer.init(params), params)
    np.testing.assert_allclose(updates["matrix"], -0.05, rtol=1e-6)
    np.testing.assert_array_equal(updates["bias"], 0.0)


def test_gradients_are_clipped_to_the_global_norm():
    # (3, 4) has norm 5; clipped to 1 it is (0.6, 0.8), and SGD's first step is -rate times that.
    config = OptimizerConfig(name="sgd", learning_rate=1.0, weight_decay=0.0, max_gradient_norm=1.0)
    optimizer = make_optimizer(config)
    params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    updates, _ = optimizer.update({"a": jnp.array([3.0]), "b": jnp.array([4.0])}, optimizer.init(params), params)
    np.testing.assert_allclose([updates["a"][0], updates["b"][0]], [-0.6, -0.8], rtol=1e-6)


def test_sgd_accumulates_momentum():
    # Two gradients of 1 with momentum 0.5 give steps of 1 and 1.5.
    config = OptimizerConfig(name="sgd", learning_rate=1.0, weight_decay=0.0, momentum=0.5)
    optimizer = make_optimizer(config)
    params = {"a": jnp.zeros(1)}
    state = optimizer.init(params)
    for expected in (-1.0, -2.5):
        updates, state = optimizer.update({"a": jnp.ones(1)}, state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(params["a"], [expected], rtol=1e-6)
