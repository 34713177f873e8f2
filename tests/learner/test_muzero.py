"""The unrolled loss against numbers worked out by hand, and a small problem that it must solve."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from podzero.config import MuZeroConfig, MuZeroMLPConfig
from podzero.learner.muzero import muzero_loss
from podzero.networks import make_model_network
from podzero.types import EnvSpec, ModelNetwork, Window

K, N, A = 2, 1, 2
compiled = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""As `jax.jit`, but compiles in a fraction of the time: nothing here computes much."""
CONFIG = MuZeroConfig(unroll_steps=K, td_steps=N)
UNIT = {"policy": jnp.array([np.log(3.0), 0.0]), "value": jnp.zeros(3), "reward": jnp.zeros(3)}
"""A policy of (3/4, 1/4), and uniform distributions over the bins -1, 0 and 1."""


def saying(**changes):
    """A network that says the same of every latent state; a step multiplies the latent state by `rate`."""
    params = UNIT | {"rate": jnp.float32(1.0), "start": jnp.float32(1.0)} | changes

    def spread(leaf, latent):
        return jnp.broadcast_to(leaf, (latent.shape[0], *leaf.shape))

    return params, ModelNetwork(
        init=lambda key: params,
        represent=lambda params, observation: params["start"] * observation,
        predict=lambda params, latent: (spread(params["policy"], latent), spread(params["value"], latent)),
        dynamics=lambda params, latent, action: (params["rate"] * latent, spread(params["reward"], latent)),
        project=lambda params, latent, predicted: latent,
        encode=lambda x: jax.nn.one_hot(jnp.asarray(x + 1, jnp.int32), 3),
        decode=lambda logits: jax.nn.softmax(logits) @ jnp.array([-1.0, 0.0, 1.0]),
        observe=lambda params, observations: params,
    )


def window(batch=1, length=K + N, terminated=False, **changes):
    """Rewards and values of zero; the policy to learn is (1/2, 1/2)."""
    acted = np.arange(K + 1) < length
    return Window(
        observation=jnp.ones((batch, K + 1, 2)),
        action=jnp.zeros((batch, K), jnp.int32),
        reward=jnp.zeros((batch, K + N)),
        value=jnp.zeros((batch, K + N + 1)),
        policy=jnp.tile(jnp.where(acted[:, None], 0.5, 0.0)[None, :, :], (batch, 1, A)),
        candidates=jnp.zeros((batch, K + 1, 0)),
        length=jnp.full(batch, length, jnp.int32),
        terminated=jnp.full(batch, terminated),
        version=jnp.zeros(batch, jnp.int32),
    )._replace(**changes)


def loss_of(window, config=CONFIG, weight=None, value_weight=1.0, **changes):
    params, network = saying(**changes)
    return compiled(partial(muzero_loss, network, config, value_weight, 0.5))(params, window, weight)


CROSS = 0.8369882
"""-(ln(3/4) + ln(1/4)) / 2."""


def test_all_unrolled_steps_weigh_as_much_as_the_first_position():
    loss = loss_of(window())
    np.testing.assert_allclose(loss.policy, CROSS + (CROSS + CROSS) / 2, rtol=1e-6)
    np.testing.assert_allclose(loss.policy_kl, 2 * (CROSS - np.log(2)), rtol=1e-5)
    # A uniform guess among three bins costs ln 3; rewards have no first position.
    np.testing.assert_allclose(loss.value, 2 * np.log(3), rtol=1e-6)
    np.testing.assert_allclose(loss.reward, np.log(3), rtol=1e-6)
    np.testing.assert_allclose(loss.total, 2 * CROSS + 3 * np.log(3), rtol=1e-6)
    # Entropy of (3/4, 1/4).
    np.testing.assert_allclose(loss.entropy, 2 * 0.5623351, rtol=1e-6)
    assert loss.consistency == 0.0


def test_parts_are_weighted_as_configured():
    config = CONFIG.model_copy(update={"reward_weight": 3.0, "entropy_weight": 0.5, "consistency_weight": 0.25})
    loss = loss_of(window(), config, value_weight=2.0)
    # The latent state stays where it is, so it points where the observations do: a cosine of 1 at each step.
    np.testing.assert_allclose(loss.consistency, -1.0, rtol=1e-6)
    expected = 2 * CROSS + 2 * 2 * np.log(3) + 3 * np.log(3) - 0.5 * 2 * 0.5623351 - 0.25
    np.testing.assert_allclose(loss.total, expected, rtol=1e-6)


def test_a_true_end_teaches_values_and_rewards_beyond_it_and_a_time_limit_nothing():
    over, cut = loss_of(window(length=1, terminated=True)), loss_of(window(length=1))
    for loss in (over, cut):
        np.testing.assert_allclose(loss.policy, CROSS, rtol=1e-6)
        np.testing.assert_allclose(loss.policy_kl, CROSS - np.log(2), rtol=1e-5)
    np.testing.assert_allclose(over.value, 2 * np.log(3), rtol=1e-6)
    np.testing.assert_allclose(over.reward, np.log(3), rtol=1e-6)
    np.testing.assert_allclose(cut.value, np.log(3), rtol=1e-6)
    np.testing.assert_allclose(cut.reward, np.log(3) / 2, rtol=1e-6)


def test_what_is_beyond_an_absorbing_end_is_learned_as_zero():
    """The network is sure of bin 0 and pays only for the position before the end, whose value is 1."""
    sure = jnp.array([0.0, 20.0, 0.0])
    reward = jnp.zeros((1, K + N)).at[0, 0].set(1.0)
    loss = loss_of(window(length=1, terminated=True, reward=reward), value=sure, reward=sure)
    np.testing.assert_allclose(loss.value, 20.0, rtol=1e-5)
    np.testing.assert_allclose(loss.reward, 20.0 / 2, rtol=1e-5)


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("length", [1, 2])
def test_nothing_beyond_the_end_matters(length, terminated):
    """Observations, policies, rewards and values of positions that do not exist may hold anything."""
    config = CONFIG.model_copy(update={"consistency_weight": 1.0, "entropy_weight": 1.0})
    clean = window(length=length, terminated=terminated)
    acted, exists = np.arange(K + 1) < length, np.arange(K + 1) <= length
    dirty = clean._replace(
        observation=jnp.where(exists[None, :, None], clean.observation, -7.0),
        policy=jnp.where(acted[None, :, None], clean.policy, 7.0),
        reward=jnp.where(np.arange(K + N) < length, clean.reward, 7.0),
        value=jnp.where(np.arange(K + N + 1) < length + (not terminated), clean.value, 7.0),
    )
    for one, other in zip(loss_of(clean, config), loss_of(dirty, config), strict=True):
        np.testing.assert_array_equal(one, other)


def test_errors_are_those_of_the_first_value():
    # The return is 0 + 0.5 * 1; the network says 0.
    value = jnp.zeros((1, K + N + 1)).at[0, N].set(1.0)
    np.testing.assert_allclose(loss_of(window(value=value)).errors, [0.5], atol=1e-6)


def test_importance_weights_are_linear():
    batch = window(batch=3)._replace(policy=jax.random.dirichlet(jax.random.key(0), jnp.ones(A), (3, K + 1)))
    params, network = saying()
    loss = compiled(partial(muzero_loss, network, CONFIG, 1.0, 0.5))
    weight = np.array([0.5, 2.0, 0.0])
    alone, together = [loss(params, batch, one) for one in np.eye(3)], loss(params, batch, weight)
    for name in ("total", "policy", "policy_kl", "value", "reward", "entropy"):
        expected = sum(w * getattr(one, name) for w, one in zip(weight, alone, strict=True))
        np.testing.assert_allclose(getattr(together, name), expected, rtol=1e-5)
    assert len({float(one.policy) for one in alone}) == 3
    np.testing.assert_array_equal(together.errors, alone[0].errors)
    np.testing.assert_allclose(loss_of(batch).total, loss(params, batch, np.ones(3)).total, rtol=1e-6)


def test_each_step_of_the_unroll_halves_the_gradient_of_what_came_before():
    """The value's loss is made the latent state itself; s_k = rate^k start, with a rate of 3 and a start of 5.

    Of `s_0 + (s_1 + s_2) / 2`, with one half at the start of each step: the derivative by start is
    `1 + (3/2 + 9/4) / 2`, and by rate `(s_0 + (s_1 + 3 s_0 / 2)) / 2 = (5 + 15 + 7.5) / 2`.
    """
    params, network = saying(rate=jnp.float32(3.0), start=jnp.float32(5.0), reward=jnp.zeros(2))
    network = network._replace(
        predict=lambda params, latent: (jnp.zeros((latent.shape[0], A)), latent),
        # Targets lie in the second of two bins, and the logits are (10 s, 0): the loss is 10 s for s of 5 and more.
        encode=lambda x: jnp.broadcast_to(jnp.array([0.0, 1.0]), (*x.shape, 2)),
        decode=lambda logits: logits[..., 0],
    )

    @compiled
    @jax.grad
    def slope(params):
        return muzero_loss(network, CONFIG, 1.0, 0.5, params, window(observation=jnp.array([[[10.0, 0.0]]]))).value

    found = slope(params)
    np.testing.assert_allclose(found["start"], 10 * (1 + (3 / 2 + 9 / 4) / 2), rtol=1e-5)
    np.testing.assert_allclose(found["rate"], 10 * (5 + 15 + 7.5) / 2, rtol=1e-5)


def test_consistency_teaches_the_prediction_and_never_the_target():
    config = CONFIG.model_copy(update={"consistency_weight": 1.0})
    params, network = saying()
    predicted = {"predicted": jnp.array([1.0, 2.0]), "seen": jnp.array([2.0, 1.0])}
    network = network._replace(
        project=lambda params, latent, predicted: latent * params["predicted" if predicted else "seen"]
    )

    def objective(params):
        return muzero_loss(network, config, 1.0, 0.5, params, window()).consistency

    value, slope = compiled(jax.value_and_grad(objective))(params | predicted)
    # (1, 2) and (2, 1) have a cosine of 4/5.
    np.testing.assert_allclose(value, -0.8, rtol=1e-6)
    np.testing.assert_array_equal(slope["seen"], 0.0)
    # d cos / d p = (t / |t| - cos * p / |p|) / |p| = ((2, 1) - 0.8 (1, 2)) / 5.
    np.testing.assert_allclose(slope["predicted"], [-1.2 / 5, 0.6 / 5], rtol=1e-5)


def test_the_last_observation_of_an_episode_is_predicted_too():
    config = CONFIG.model_copy(update={"consistency_weight": 1.0})
    np.testing.assert_allclose(loss_of(window(length=1, terminated=True), config).consistency, -0.5, rtol=1e-6)


def test_density_of_continuous_actions_by_hand():
    """Candidates 0 and 2, weighted 3/4 and 1/4, under a Gaussian of mean 1 and standard deviation 2.

    -log N = ln 2 + ln(2 pi) / 2 + (1/2)^2 / 2 = 1.7370857 for both; the entropy is ln 2 + ln(2 pi e) / 2 = 2.1120857.
    """
    policy = jnp.array([[1.0], [np.log(2.0)]])
    seen = window(
        policy=jnp.tile(jnp.array([0.75, 0.25]), (1, K + 1, 1)),
        candidates=jnp.tile(jnp.array([[0.0], [2.0]]), (1, K + 1, 1, 1)),
        action=jnp.zeros((1, K, 1)),
    )
    loss = loss_of(seen, policy=policy)
    np.testing.assert_allclose(loss.policy, 2 * 1.7370857, rtol=1e-6)
    np.testing.assert_allclose(loss.entropy, 2 * 2.1120857, rtol=1e-6)

    params, network = saying(policy=policy)
    slope = compiled(jax.grad(lambda p: muzero_loss(network, CONFIG, 1.0, 0.5, p, seen).policy))(params)["policy"]
    # By the mean: (mean - weighted mean of candidates) / variance, twice; by log std: 1 - 1/4, twice.
    np.testing.assert_allclose(slope, [[2 * (1.0 - 0.5) / 4], [2 * 0.75]], rtol=1e-5)


# A problem: a corridor of five cells, in which only leaving the last one to the right pays.

CELLS, GAMMA = 5, 0.8
SPEC = EnvSpec("corridor", (CELLS,), "float32", 2, players=1)
NETWORK = MuZeroMLPConfig(name="muzero_mlp", latent=16, width=32, layers=1, support=3, projection=8, normalize=False)
LEARN = MuZeroConfig(unroll_steps=2, td_steps=2, consistency_weight=0.5)


def corridor(batch, seed):
    """Windows of walks that always go right, whose values are therefore known: `0.8^(4 - x)` in cell x."""
    k, n = LEARN.unroll_steps, LEARN.td_steps
    start = np.random.default_rng(seed).integers(0, CELLS, batch)
    cell = start[:, None] + np.arange(k + n + 1)
    inside = cell < CELLS
    return Window(
        observation=jax.nn.one_hot(cell[:, : k + 1], CELLS),
        action=np.ones((batch, k), np.int32) * inside[:, :k],
        reward=(cell[:, :-1] == CELLS - 1).astype(np.float32),
        value=np.zeros((batch, k + n + 1), np.float32),
        policy=np.array([0.1, 0.9], np.float32) * inside[:, : k + 1, None],
        candidates=np.zeros((batch, k + 1, 0), np.float32),
        length=np.minimum(CELLS - start, k + n).astype(np.int32),
        terminated=CELLS - start <= k + n,
        version=np.zeros(batch, np.int32),
    )


@pytest.fixture(scope="module")
def trained():
    """Parameters after 300 steps on fresh windows, with each step's loss.

    The values to bootstrap from are the network's own, as in a run: what is two steps from the end is learned from the
    reward, the rest from there.
    """
    network = make_model_network(NETWORK, SPEC)
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, 300))

    @compiled
    def step(params, state, window):
        own = network.decode(network.predict(params, network.represent(params, jnp.eye(CELLS)))[1])
        cell = jnp.argmax(window.observation[:, 0], axis=-1)[:, None] + jnp.arange(window.value.shape[1])
        window = window._replace(value=jnp.where(cell < CELLS, own[jnp.minimum(cell, CELLS - 1)], 0.0))

        def objective(params):
            loss = muzero_loss(network, LEARN, 1.0, GAMMA, params, window)
            return loss.total, loss

        gradient, loss = jax.grad(objective, has_aux=True)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, loss

    params = compiled(network.init)(jax.random.key(0))
    state, losses = optimizer.init(params), []
    for seed in range(300):
        params, state, loss = step(params, state, corridor(64, seed))
        losses.append(loss)
    return network, params, losses


def test_values_are_learned_by_bootstrapping(trained):
    network, params, _ = trained
    value = network.decode(network.predict(params, network.represent(params, jnp.eye(CELLS)))[1])
    np.testing.assert_allclose(value, GAMMA ** np.arange(CELLS - 1, -1, -1), atol=0.05)


def test_the_model_foretells_rewards_and_the_end(trained):
    network, params, _ = trained

    @compiled
    def foretell(params, latent):
        latent, reward = network.dynamics(params, latent, jnp.ones(1, jnp.int32))
        return latent, network.decode(reward)[0], network.decode(network.predict(params, latent)[1])[0]

    latent, told = network.represent(params, jnp.eye(CELLS)[3:4]), []
    for _ in range(2):
        latent, reward, value = foretell(params, latent)
        told.append((float(reward), float(value)))
    # From the last cell but one: to the last one, worth 1, and out of it for 1, after which there is nothing.
    np.testing.assert_allclose(told, [(0.0, 1.0), (1.0, 0.0)], atol=0.1)


def test_every_part_of_the_loss_falls(trained):
    _, _, losses = trained
    for name in ("total", "policy_kl", "value", "reward", "consistency"):
        first, last = float(getattr(losses[0], name)), float(np.mean([getattr(loss, name) for loss in losses[-20:]]))
        assert last < first, name
    assert np.mean([loss.policy_kl for loss in losses[-20:]]) < 0.05


def test_a_batch_of_continuous_actions_is_learned_by_heart():
    network = make_model_network(NETWORK, SPEC._replace(num_actions=0, action_bounds=((-1.0,), (1.0,))))
    random, batch, k, n = np.random.default_rng(0), 8, LEARN.unroll_steps, LEARN.td_steps
    spots = np.array([[-0.5], [1.5]], np.float32)
    seen = corridor(batch, 0)._replace(
        observation=random.normal(size=(batch, k + 1, CELLS)).astype(np.float32),
        action=random.uniform(-1, 1, (batch, k, 1)).astype(np.float32),
        reward=random.integers(-1, 2, (batch, k + n)).astype(np.float32),
        value=random.integers(-1, 2, (batch, k + n + 1)).astype(np.float32),
        policy=np.array([[0.2, 0.8], [0.8, 0.2]], np.float32)[random.integers(0, 2, (batch, k + 1))],
        candidates=np.tile(spots, (batch, k + 1, 1, 1)),
        length=np.full(batch, k + n, np.int32),
    )
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, 200))

    @compiled
    def step(params, state):
        def objective(params):
            loss = muzero_loss(network, LEARN, 1.0, GAMMA, params, seen)
            return loss.total, loss

        gradient, loss = jax.grad(objective, has_aux=True)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, loss

    params = compiled(network.init)(jax.random.key(0))
    state, losses = optimizer.init(params), []
    for _ in range(200):
        params, state, loss = step(params, state)
        losses.append(loss)
    assert losses[-1].errors.max() < 0.3 < losses[0].errors.max()
    assert losses[-1].reward < 0.7 * losses[0].reward
    assert losses[-1].policy < losses[0].policy - 0.2
