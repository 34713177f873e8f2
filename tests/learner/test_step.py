from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import LearnerConfig, MeshConfig, OptimizerConfig
from podzero.core.types import Network, PackedBatch, Sample
from podzero.learner.objectives import alphazero_objective, make_augment
from podzero.learner.optimizers import make_optimizer, make_rate
from podzero.learner.sharding import SAMPLE_AXES, batch_sharding, make_mesh, put_batch, state_shardings
from podzero.learner.step import (
    TrainStepSpec,
    ema_decay_at,
    init_state,
    make_train_step,
    with_progress,
    with_relative_weights,
)

METRICS = ("loss", "policy_kl", "policy_loss", "value_loss")


def one_device(packing, network, ema=0.9, microbatches=1, compiled=None, unpack=None, **optimizer):
    """A new state on one device, and a function that trains a state on the host batches of a dispatch."""
    config = OptimizerConfig(**optimizer)
    transform, rate = make_optimizer(config), make_rate(config)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    state = init_state(network.init, transform, jax.random.key(0))
    shardings = state_shardings(mesh, state, MeshConfig())
    name = (ema, microbatches, *optimizer.items())
    step = {} if compiled is None else compiled
    if name not in step:
        objective = alphazero_objective(network, LearnerConfig(), make_augment([], 9))
        spec = TrainStepSpec(
            objective, unpack or partial(packing.unpack, xp=jnp), METRICS, transform, rate, ema, microbatches
        )
        step[name] = make_train_step(spec, mesh, shardings)
    return jax.device_put(state, shardings), lambda state, host: step[name](
        state, put_batch(host, batch_sharding(mesh))
    )


@pytest.fixture(scope="module")
def compiled():
    """Train steps by their configuration, each compiled once for all tests."""
    return {}


@pytest.fixture
def training(packing, network, compiled):
    """`one_device` with a small network."""
    return partial(one_device, packing, network, compiled=compiled)


def host(tree):
    return jax.tree.map(np.array, tree)


def assert_equal(left, right):
    jax.tree.map(np.testing.assert_array_equal, host(left), host(right))


def test_overfits_one_batch(training, make_dispatch):
    state, train = training(learning_rate=1e-2, weight_decay=0.0)
    batch = make_dispatch(10, 8)
    batch = jax.tree.map(lambda leaf: np.repeat(leaf[:1], 10, axis=0), batch)
    for _ in range(60):
        state, sums, _ = train(state, batch)
    assert float(sums.steps) == 10
    assert float(sums.metrics["policy_kl"]) / 10 < 0.01
    assert float(sums.metrics["value_loss"]) / 10 < 0.01


def test_the_learning_rate_follows_the_progress_of_the_run(training, make_dispatch):
    """The first update of SGD is the rate times the gradient, so at the end of a fall to a tenth the parameters
    move a tenth as far as at its beginning."""
    optimizer = {"name": "sgd", "weight_decay": 0.0, "learning_rate": 0.5}
    falling, batch, moved, rates = {"schedule": "linear", "final_fraction": 0.1}, make_dispatch(1, 8), [], []
    for progress in (0.0, 1.0):
        state, train = training(**optimizer, **falling)
        before = host(state.params)
        state, sums, _ = train(with_progress(state, progress), batch)
        moved.append(jax.tree.map(np.subtract, host(state.params), before))
        rates.append(float(sums.learning_rate))
        assert float(state.progress) == progress
    assert rates == pytest.approx([0.5, 0.05])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(0.1 * a, b, atol=1e-7), *moved)


def test_a_step_on_packed_rows_equals_the_step_on_the_samples(training, network, packing):
    """Up to the rounding of policies to float16: they are the only field that packing changes."""
    rng = np.random.default_rng(0)
    observation, legal = rng.random((8, 3, 3, 2)) > 0.5, np.ones((8, 9), bool)
    policy = rng.dirichlet(np.full(9, 0.3), 8).astype(np.float32)
    value = rng.uniform(-1, 1, 8).astype(np.float32)
    samples = Sample(observation, legal, policy, value, np.zeros(8, np.int32))
    batch = PackedBatch(packing.pack(jax.tree.map(lambda leaf: leaf[None], samples)))
    found, train = training(name="sgd")
    expected, train_dense = one_device(packing, network, unpack=lambda rows: samples, name="sgd")
    found, sums, (errors,) = train(found, batch)
    expected, dense_sums, (dense_errors,) = train_dense(expected, batch)
    np.testing.assert_array_equal(errors, dense_errors)
    for one, other in ((found.params, expected.params), (sums, dense_sums)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-5), host(one), host(other))


def test_every_field_of_the_samples_is_sharded_as_their_rows(packing, network, make_dispatch):
    """Else XLA shards parts of a sample over the `model` axis too, and gathers them again in the step."""
    state, train = one_device(packing, network)
    batch = make_dispatch(1, 8)
    traced = jax.make_jaxpr(lambda state: train(state, batch))(state)
    found = [e.params["sharding"].spec for e in equations(traced.jaxpr) if e.primitive.name == "sharding_constraint"]
    samples = jax.eval_shape(partial(packing.unpack, xp=jnp), batch.rows[0])
    assert found.count(jax.sharding.PartitionSpec(SAMPLE_AXES)) == len(jax.tree.leaves(samples)) > 1


def equations(jaxpr):
    """All equations, those of inner programs too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in equation.params.values():
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def test_one_dispatch_of_k_steps_equals_k_dispatches_of_one(training, make_dispatch):
    batch = make_dispatch(4, 8)
    together, train = training()
    one_by_one, _ = training()
    together, sums, _ = train(together, batch)
    losses = []
    for k in range(4):
        one_by_one, single, _ = train(one_by_one, jax.tree.map(lambda leaf, k=k: leaf[k : k + 1], batch))
        losses.append(float(single.metrics["loss"]))
    assert int(together.step) == int(one_by_one.step) == 4
    assert float(sums.metrics["loss"]) == pytest.approx(sum(losses), rel=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), host(together.params), host(one_by_one.params)
    )


@pytest.mark.parametrize("weight", [None, np.array([[4.0, 0.5, 1.0, 2.0, 0.25, 1.0, 3.0, 0.5]], np.float32)])
def test_microbatches_give_the_step_of_the_whole_batch(training, make_dispatch, weight):
    batch = make_dispatch(1, 8)._replace(weight=weight)  # the largest weight is in one of the microbatches
    whole, train_whole = training(name="sgd", weight_decay=0.0)
    parts, train_parts = training(name="sgd", weight_decay=0.0, microbatches=4)
    whole, whole_sums, (whole_errors,) = train_whole(whole, batch)
    parts, parts_sums, (parts_errors,) = train_parts(parts, batch)
    for one, other in ((whole.params, parts.params), (whole_sums, parts_sums), (whole_errors, parts_errors)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), host(one), host(other))


def test_importance_weights_are_divided_by_the_largest_of_their_batch(make_dispatch, packing):
    """Values v and targets z of two samples: v takes an SGD step along `mean(2 w (z - v))`.

    With z = (1, 1/2) and v = 0 the weights (1/2, 2) count as (1/4, 1): the mean is (1/2 + 1) / 2 = 3/4. In the other
    batch of the dispatch the weights (8, 8) count as (1, 1): the mean is (2 + 1) / 2 = 3/2, and 3/2 - 2 v from v. The
    second step has 0.9 of the first as momentum.
    """
    network = Network(
        lambda key: {"value": jnp.zeros(())},
        lambda params, x: (jnp.zeros((x.shape[0], 9)), jnp.broadcast_to(params["value"], x.shape[:1])),
    )
    state, train = one_device(packing, network, name="sgd", learning_rate=0.1, weight_decay=0.0)
    batch = make_dispatch(2, 2, value_target=(slice(None), [1.0, 0.5]))
    batch = batch._replace(weight=np.array([[0.5, 2.0], [8.0, 8.0]], np.float32))
    state, sums, _ = train(state, batch)
    first = 0.1 * 3 / 4
    np.testing.assert_allclose(with_relative_weights(batch).weight, [[1 / 4, 1], [1, 1]])
    np.testing.assert_allclose(state.params["value"], first + 0.9 * first + 0.1 * (3 / 2 - 2 * first), rtol=1e-6)
    # (1/4 * 1 + 1 * 1/4) / (1/4 + 1), then the mean of the squared errors (1 - v)^2 and (1/2 - v)^2.
    np.testing.assert_allclose(sums.metrics["value_loss"], 0.4 + ((1 - first) ** 2 + (0.5 - first) ** 2) / 2)


def test_weights_scaled_by_any_constant_give_the_same_step(training, make_dispatch):
    batch = make_dispatch(2, 8)
    weight = np.random.default_rng(0).uniform(0.1, 3.0, (2, 8)).astype(np.float32)

    def trained(weight):
        state, train = training(name="sgd", weight_decay=0.0)
        state, sums, _ = train(state, batch._replace(weight=weight))
        return host((state.params, state.ema, sums))

    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7)
    for scale in (1e-3, 1e3):
        jax.tree.map(close, trained(weight * np.float32(scale)), trained(weight))
    jax.tree.map(close, trained(np.full((2, 8), 3.0, np.float32)), trained(None))


@pytest.mark.parametrize("field", ["value_target", "policy_target"])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_step_that_is_not_finite_is_skipped_and_counted(training, make_dispatch, field, poison):
    state, train = training()
    batch = make_dispatch(1, 8)
    state, *_ = train(state, batch)
    before = host((state.params, state.ema, state.opt_state))
    state, sums, _ = train(state, make_dispatch(1, 8, **{field: ((0, 3), poison)}))
    assert float(sums.skipped) == 1
    assert float(sums.steps) == float(sums.metrics["loss"]) == float(sums.gradient_norm) == 0.0
    assert int(state.step) == 2
    assert_equal((state.params, state.ema, state.opt_state), before)


def test_a_skipped_step_does_not_affect_the_others_of_its_dispatch(training, make_dispatch):
    state, train = training()
    batch = make_dispatch(3, 8, value_target=((1, 0), np.nan))
    state, sums, _ = train(state, batch)
    reference, train = training()
    for k in (0, 2):
        reference, *_ = train(reference, jax.tree.map(lambda leaf, k=k: leaf[k : k + 1], batch))
    assert (float(sums.steps), float(sums.skipped)) == (2.0, 1.0)
    assert np.isfinite(float(sums.metrics["loss"]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), host(state.params), host(reference.params))


def test_the_average_uses_the_warmed_up_decay(training, make_dispatch):
    state, train = training(ema=0.9)
    start = host(state.params)
    state, *_ = train(state, make_dispatch(1, 8))
    # Step 0 has decay 1/10: a tenth of the initial weights, nine tenths of the weights after the step.
    expected = jax.tree.map(lambda old, new: 0.1 * old + 0.9 * new, start, host(state.params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), host(state.ema), expected)


def test_with_a_decay_of_zero_the_average_equals_the_raw_weights(training, make_dispatch):
    state, train = training(ema=0.0)
    state, *_ = train(state, make_dispatch(3, 8))
    assert_equal(state.ema, state.params)


def test_the_decay_is_warmed_up_and_capped():
    assert float(ema_decay_at(0, 0.99)) == pytest.approx(0.1)
    assert float(ema_decay_at(8, 0.99)) == pytest.approx(0.5)
    assert float(ema_decay_at(10_000, 0.99)) == pytest.approx(0.99)


def test_the_gradient_norm_is_measured_before_clipping(training, make_dispatch):
    batch = make_dispatch(1, 8)
    norms = []
    for bound in (1e-3, 1e3):
        state, train = training(max_gradient_norm=bound)
        norms.append(float(train(state, batch)[1].gradient_norm))
    assert norms[0] == pytest.approx(norms[1])
    assert norms[0] > 1e-2


def test_the_state_is_donated(training, make_dispatch):
    state, train = training()
    kernel = state.params["heads"]["kernel"]
    train(state, make_dispatch(1, 8))
    assert kernel.is_deleted()


def test_each_step_has_a_new_augmentation_key(training, make_dispatch):
    state, train = training()
    first = np.array(jax.random.key_data(state.key))
    state, *_ = train(state, make_dispatch(1, 8))
    assert (np.array(jax.random.key_data(state.key)) != first).any()
    assert jnp.issubdtype(state.key.dtype, jax.dtypes.prng_key)
