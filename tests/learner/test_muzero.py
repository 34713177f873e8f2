"""The unrolled loss compared with numbers computed by hand, and a small problem that it must solve."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from podzero.config import MuZeroConfig, MuZeroMLPConfig
from podzero.core.types import EnvSpec, ModelNetwork, Window
from podzero.learner.losses import muzero_loss
from podzero.networks import make_model_network

K, N, A = 2, 1, 2
CONFIG = MuZeroConfig(unroll_steps=K, td_steps=N)
UNIT = {"policy": np.float32([np.log(3.0), 0.0]), "value": np.zeros(3, np.float32), "reward": np.zeros(3, np.float32)}
"""A policy of (3/4, 1/4), and uniform distributions over the bins -1, 0 and 1."""


def _spread(leaf, latent):
    return jnp.broadcast_to(leaf, (latent.shape[0], *leaf.shape))


CONSTANT = ModelNetwork(
    init=lambda key: UNIT,
    represent=lambda params, observation: params["start"] * observation,
    predict=lambda params, latent: (_spread(params["policy"], latent), _spread(params["value"], latent)),
    dynamics=lambda params, latent, action: (params["rate"] * latent, _spread(params["reward"], latent)),
    project=lambda params, latent, predicted: latent,
    encode=lambda x: jax.nn.one_hot(jnp.asarray(x + 1, jnp.int32), 3),
    decode=lambda logits: jax.nn.softmax(logits) @ jnp.array([-1.0, 0.0, 1.0]),
    observe=lambda params, observations: params,
)
"""A network with equal outputs for every latent state; its dynamics multiply the latent state by `rate`."""


def params_of(**changes):
    return UNIT | {"rate": np.float32(1.0), "start": np.float32(1.0)} | changes


def window(batch=1, length=K + N, terminated=False, **changes):
    """Rewards and values of zero, and a search policy of (1/2, 1/2)."""
    acted = np.arange(K + 1) < length
    return Window(
        observation=np.ones((batch, K + 1, 2), np.float32),
        action=np.zeros((batch, K), np.int32),
        reward=np.zeros((batch, K + N), np.float32),
        value=np.zeros((batch, K + N + 1), np.float32),
        policy=np.tile(np.float32(np.where(acted[:, None], 0.5, 0.0))[None, :, :], (batch, 1, A)),
        candidates=np.zeros((batch, K + 1, 0), np.float32),
        length=np.full(batch, length, np.int32),
        terminated=np.full(batch, terminated),
        version=np.zeros(batch, np.int32),
    )._replace(**changes)


LOSS = jax.jit(muzero_loss, static_argnums=(0, 1, 2, 3))
"""One program for each shape of a window, each config and each weight of the value."""


def loss_of(window, config=CONFIG, weight=None, value_weight=1.0, **changes):
    return LOSS(CONSTANT, config, value_weight, 0.5, params_of(**changes), window, weight)


CROSS = 0.8369882
"""-(ln(3/4) + ln(1/4)) / 2."""


def test_all_unrolled_steps_together_weigh_as_much_as_position_0():
    loss = loss_of(window())
    np.testing.assert_allclose(loss.metrics["policy_loss"], CROSS + (CROSS + CROSS) / 2, rtol=1e-6)
    np.testing.assert_allclose(loss.metrics["policy_kl"], 2 * (CROSS - np.log(2)), rtol=1e-5)
    # A uniform distribution over three bins has cross-entropy ln 3; position 0 has no reward.
    np.testing.assert_allclose(loss.metrics["value_loss"], 2 * np.log(3), rtol=1e-6)
    np.testing.assert_allclose(loss.metrics["reward_loss"], np.log(3), rtol=1e-6)
    np.testing.assert_allclose(loss.total, 2 * CROSS + 3 * np.log(3), rtol=1e-6)
    # Entropy of (3/4, 1/4).
    np.testing.assert_allclose(loss.metrics["policy_entropy"], 2 * 0.5623351, rtol=1e-6)
    assert "consistency_loss" not in loss.metrics


def test_parts_are_weighted_as_configured():
    config = CONFIG.model_copy(update={"reward_weight": 3.0, "entropy_weight": 0.5, "consistency_weight": 0.25})
    loss = loss_of(window(), config, value_weight=2.0)
    # The dynamics do not change the latent state, so its cosine with that of each observation is 1.
    np.testing.assert_allclose(loss.metrics["consistency_loss"], -1.0, rtol=1e-6)
    expected = 2 * CROSS + 2 * 2 * np.log(3) + 3 * np.log(3) - 0.5 * 2 * 0.5623351 - 0.25
    np.testing.assert_allclose(loss.total, expected, rtol=1e-6)


def test_values_and_rewards_are_trained_after_termination_and_not_after_truncation():
    terminated, truncated = loss_of(window(length=1, terminated=True)), loss_of(window(length=1))
    for loss in (terminated, truncated):
        np.testing.assert_allclose(loss.metrics["policy_loss"], CROSS, rtol=1e-6)
        np.testing.assert_allclose(loss.metrics["policy_kl"], CROSS - np.log(2), rtol=1e-5)
    np.testing.assert_allclose(terminated.metrics["value_loss"], 2 * np.log(3), rtol=1e-6)
    np.testing.assert_allclose(terminated.metrics["reward_loss"], np.log(3), rtol=1e-6)
    np.testing.assert_allclose(truncated.metrics["value_loss"], np.log(3), rtol=1e-6)
    np.testing.assert_allclose(truncated.metrics["reward_loss"], np.log(3) / 2, rtol=1e-6)


def test_targets_after_termination_are_zero():
    """The network predicts zero with certainty, which is wrong only for the position before the end, of value 1."""
    zero, reward = np.float32([0.0, 20.0, 0.0]), np.eye(1, K + N, dtype=np.float32)
    loss = loss_of(window(length=1, terminated=True, reward=reward), value=zero, reward=zero)
    np.testing.assert_allclose(loss.metrics["value_loss"], 20.0, rtol=1e-5)
    np.testing.assert_allclose(loss.metrics["reward_loss"], 20.0 / 2, rtol=1e-5)


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("length", [1, 2])
def test_entries_after_the_end_are_ignored(length, terminated):
    """Observations, policies, rewards and values of positions that do not exist have no effect."""
    config = CONFIG.model_copy(update={"consistency_weight": 1.0, "entropy_weight": 1.0})
    clean = window(length=length, terminated=terminated)
    acted, exists = np.arange(K + 1) < length, np.arange(K + 1) <= length
    dirty = clean._replace(
        observation=np.where(exists[None, :, None], clean.observation, np.float32(-7)),
        policy=np.where(acted[None, :, None], clean.policy, np.float32(7)),
        reward=np.where(np.arange(K + N) < length, clean.reward, np.float32(7)),
        value=np.where(np.arange(K + N + 1) < length + (not terminated), clean.value, np.float32(7)),
    )
    jax.tree.map(np.testing.assert_array_equal, loss_of(clean, config), loss_of(dirty, config))


def test_errors_are_those_of_the_value_at_position_0():
    # The return is 0 + 0.5 * 1; the network's value is 0.
    value = np.eye(1, K + N + 1, N, dtype=np.float32)
    np.testing.assert_allclose(loss_of(window(value=value)).errors, [0.5], atol=1e-6)


def test_the_share_of_value_targets_at_the_outermost_bins_is_told():
    """Of three positions the first has the return 0.5 * 2, the largest that three bins can tell."""
    value = 2 * np.eye(1, K + N + 1, N, dtype=np.float32)
    np.testing.assert_allclose(loss_of(window(value=value)).metrics["clipped_values"], 1 / 3, rtol=1e-6)
    assert loss_of(window()).metrics["clipped_values"] == 0


def test_the_loss_is_the_mean_with_importance_weights_and_metrics_are_divided_by_their_sum():
    policy = np.random.default_rng(0).dirichlet(np.ones(A), (3, K + 1)).astype(np.float32)
    batch, weight = window(batch=3)._replace(policy=policy), np.float32([0.5, 2.0, 0.0])
    single = [loss_of(batch, weight=one) for one in np.eye(3, dtype=np.float32)]
    weighted = loss_of(batch, weight=weight)
    assert weighted.metrics.keys() == {
        "loss", "policy_loss", "policy_kl", "policy_entropy", "value_loss", "reward_loss", "clipped_values"
    }  # fmt: skip
    for name, found in weighted.metrics.items():
        summed = sum(w * one.metrics[name] for w, one in zip(weight, single, strict=True))
        np.testing.assert_allclose(found, summed / 2.5, rtol=1e-5)
    # Three samples, whose weights add up to 2.5.
    np.testing.assert_allclose(weighted.total, weighted.metrics["loss"] * 2.5 / 3, rtol=1e-6)
    assert len({float(one.metrics["policy_loss"]) for one in single}) == 3
    np.testing.assert_array_equal(weighted.errors, single[0].errors)
    np.testing.assert_allclose(loss_of(batch).total, loss_of(batch, weight=np.ones(3, np.float32)).total, rtol=1e-6)


def test_each_unrolled_step_halves_the_gradient_of_earlier_steps():
    """The value loss is proportional to the latent state; s_k = rate^k start, with a rate of 3 and a start of 5.

    Of `s_0 + (s_1 + s_2) / 2`, with one half at the start of each step: the derivative by start is
    `1 + (3/2 + 9/4) / 2`, and by rate `(s_0 + (s_1 + 3 s_0 / 2)) / 2 = (5 + 15 + 7.5) / 2`.
    """
    params = params_of(rate=np.float32(3.0), start=np.float32(5.0), reward=np.zeros(2, np.float32))
    network = CONSTANT._replace(
        predict=lambda params, latent: (jnp.zeros((latent.shape[0], A)), latent),
        # Targets lie in the second of two bins, and the logits are (10 s, 0): the loss is 10 s for s of 5 and more.
        encode=lambda x: jnp.broadcast_to(jnp.array([0.0, 1.0]), (*x.shape, 2)),
        decode=lambda logits: logits[..., 0],
    )

    @jax.jit
    @jax.grad
    def slope(params):
        loss = muzero_loss(network, CONFIG, 1.0, 0.5, params, window(observation=np.float32([[[10.0, 0.0]]])))
        return loss.metrics["value_loss"]

    found = slope(params)
    np.testing.assert_allclose(found["start"], 10 * (1 + (3 / 2 + 9 / 4) / 2), rtol=1e-5)
    np.testing.assert_allclose(found["rate"], 10 * (5 + 15 + 7.5) / 2, rtol=1e-5)


def test_consistency_has_a_gradient_of_the_prediction_and_none_of_the_target():
    config = CONFIG.model_copy(update={"consistency_weight": 1.0})
    predicted = {"predicted": np.float32([1.0, 2.0]), "observed": np.float32([2.0, 1.0])}
    network = CONSTANT._replace(
        project=lambda params, latent, predicted: latent * params["predicted" if predicted else "observed"]
    )

    def objective(params):
        return muzero_loss(network, config, 1.0, 0.5, params, window()).metrics["consistency_loss"]

    value, slope = jax.jit(jax.value_and_grad(objective))(params_of() | predicted)
    # (1, 2) and (2, 1) have a cosine of 4/5.
    np.testing.assert_allclose(value, -0.8, rtol=1e-6)
    np.testing.assert_array_equal(slope["observed"], 0.0)
    # d cos / d p = (t / |t| - cos * p / |p|) / |p| = ((2, 1) - 0.8 (1, 2)) / 5.
    np.testing.assert_allclose(slope["predicted"], [-1.2 / 5, 0.6 / 5], rtol=1e-5)


def test_consistency_includes_the_last_observation_of_an_episode():
    config = CONFIG.model_copy(update={"consistency_weight": 1.0})
    loss = loss_of(window(length=1, terminated=True), config)
    np.testing.assert_allclose(loss.metrics["consistency_loss"], -0.5, rtol=1e-6)


def test_the_policy_loss_of_continuous_actions_by_hand():
    """Candidates 0 and 2, weighted 3/4 and 1/4, under a Gaussian of mean 1 and standard deviation 2.

    -log N = ln 2 + ln(2 pi) / 2 + (1/2)^2 / 2 = 1.7370857 for both; the entropy is ln 2 + ln(2 pi e) / 2 = 2.1120857.
    """
    policy = np.float32([[1.0], [np.log(2.0)]])
    seen = window(
        policy=np.tile(np.float32([0.75, 0.25]), (1, K + 1, 1)),
        candidates=np.tile(np.float32([[0.0], [2.0]]), (1, K + 1, 1, 1)),
        action=np.zeros((1, K, 1), np.float32),
    )
    loss = loss_of(seen, policy=policy)
    np.testing.assert_allclose(loss.metrics["policy_loss"], 2 * 1.7370857, rtol=1e-6)
    np.testing.assert_allclose(loss.metrics["policy_entropy"], 2 * 2.1120857, rtol=1e-6)

    @jax.jit
    @jax.grad
    def slope(params):
        return muzero_loss(CONSTANT, CONFIG, 1.0, 0.5, params, seen).metrics["policy_loss"]

    # By the mean: (mean - weighted mean of candidates) / variance, twice; by log std: 1 - 1/4, twice.
    np.testing.assert_allclose(
        slope(params_of(policy=policy))["policy"], [[2 * (1.0 - 0.5) / 4], [2 * 0.75]], rtol=1e-5
    )


# A corridor of five cells, in which only leaving the last one to the right gives a reward.

CELLS, GAMMA = 5, 0.8
SPEC = EnvSpec("corridor", (CELLS,), "float32", 2, players=1)
NETWORK = MuZeroMLPConfig(name="muzero_mlp", latent=16, width=32, layers=1, support=3, projection=8, normalize=False)
LEARN = MuZeroConfig(unroll_steps=2, td_steps=2, consistency_weight=0.5)


def corridor(batch, seed):
    """Windows of walks that always go right, so that cell x has the value `0.8^(4 - x)`."""
    k, n = LEARN.unroll_steps, LEARN.td_steps
    start = np.random.default_rng(seed).integers(0, CELLS, batch)
    cell = start[:, None] + np.arange(k + n + 1)
    inside = cell < CELLS
    return Window(
        observation=(cell[:, : k + 1, None] == np.arange(CELLS)).astype(np.float32),
        action=np.ones((batch, k), np.int32) * inside[:, :k],
        reward=(cell[:, :-1] == CELLS - 1).astype(np.float32),
        value=np.zeros((batch, k + n + 1), np.float32),
        policy=np.array([0.1, 0.9], np.float32) * inside[:, : k + 1, None],
        candidates=np.zeros((batch, k + 1, 0), np.float32),
        length=np.minimum(CELLS - start, k + n).astype(np.int32),
        terminated=CELLS - start <= k + n,
        version=np.zeros(batch, np.int32),
    )


def adam_step(network, optimizer, params, state, window):
    def objective(params):
        loss = muzero_loss(network, LEARN, 1.0, GAMMA, params, window)
        return loss.total, loss

    gradient, loss = jax.grad(objective, has_aux=True)(params)
    updates, state = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, updates), state, loss


@pytest.fixture(scope="module")
def trained():
    """Parameters after 300 steps on new windows, with the loss of each step.

    Targets bootstrap from the network's own values, as in training: values two steps from the end are learned from the
    reward, and the others from these.
    """
    network = make_model_network(NETWORK, SPEC)
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, 300))

    @jax.jit
    def values_of(params):
        return network.decode(network.predict(params, network.represent(params, jnp.eye(CELLS)))[1])

    @jax.jit
    def step(params, state, window):
        own = values_of(params)
        cell = jnp.argmax(window.observation[:, 0], axis=-1)[:, None] + jnp.arange(window.value.shape[1])
        value = jnp.where(cell < CELLS, own[jnp.minimum(cell, CELLS - 1)], 0.0)
        return adam_step(network, optimizer, params, state, window._replace(value=value))

    params = jax.jit(network.init)(jax.random.key(0))
    state, losses = jax.jit(optimizer.init)(params), []
    for seed in range(300):
        params, state, loss = step(params, state, corridor(64, seed))
        losses.append(loss)
    return network, params, losses, values_of(params)


def test_values_are_learned_by_bootstrapping(trained):
    np.testing.assert_allclose(trained[3], GAMMA ** np.arange(CELLS - 1, -1, -1), atol=0.05)


def test_the_model_predicts_rewards_and_termination(trained):
    network, params, *_ = trained

    @jax.jit
    def predict(params, latent):
        latent, reward = network.dynamics(params, latent, np.ones(1, np.int32))
        return latent, network.decode(reward)[0], network.decode(network.predict(params, latent)[1])[0]

    latent, found = jax.jit(network.represent)(params, np.eye(CELLS, dtype=np.float32)[3:4]), []
    for _ in range(2):
        latent, reward, value = predict(params, latent)
        found.append((float(reward), float(value)))
    # The fourth cell leads to the last one, of value 1, and that out of the corridor with reward 1.
    np.testing.assert_allclose(found, [(0.0, 1.0), (1.0, 0.0)], atol=0.1)


def test_every_part_of_the_loss_decreases(trained):
    losses = trained[2]
    for name in ("loss", "policy_kl", "value_loss", "reward_loss", "consistency_loss"):
        assert np.mean([loss.metrics[name] for loss in losses[-20:]]) < losses[0].metrics[name], name
    assert np.mean([loss.metrics["policy_kl"] for loss in losses[-20:]]) < 0.05


def test_a_network_of_continuous_actions_overfits_a_batch():
    network = make_model_network(NETWORK, SPEC._replace(num_actions=0, action_bounds=((-1.0,), (1.0,))))
    random, batch, k, n = np.random.default_rng(0), 8, LEARN.unroll_steps, LEARN.td_steps
    candidates = np.array([[-0.5], [1.5]], np.float32)
    seen = corridor(batch, 0)._replace(
        observation=random.normal(size=(batch, k + 1, CELLS)).astype(np.float32),
        action=random.uniform(-1, 1, (batch, k, 1)).astype(np.float32),
        reward=random.integers(-1, 2, (batch, k + n)).astype(np.float32),
        value=random.integers(-1, 2, (batch, k + n + 1)).astype(np.float32),
        policy=np.array([[0.2, 0.8], [0.8, 0.2]], np.float32)[random.integers(0, 2, (batch, k + 1))],
        candidates=np.tile(candidates, (batch, k + 1, 1, 1)),
        length=np.full(batch, k + n, np.int32),
    )
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, 200))
    step = jax.jit(partial(adam_step, network, optimizer))
    params = jax.jit(network.init)(jax.random.key(0))
    state, losses = jax.jit(optimizer.init)(params), []
    for _ in range(200):
        params, state, loss = step(params, state, seen)
        losses.append(loss)
    assert losses[-1].errors.max() < 0.3 < losses[0].errors.max()
    assert losses[-1].metrics["reward_loss"] < 0.7 * losses[0].metrics["reward_loss"]
    assert losses[-1].metrics["policy_loss"] < losses[0].metrics["policy_loss"] - 0.2
