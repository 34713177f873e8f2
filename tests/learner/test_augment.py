import jax
import jax.numpy as jnp
import numpy as np

from podzero.envs import make_env
from podzero.learner.augment import make_augment
from podzero.types import Sample, Symmetry

# A game on a strip of three squares; actions are squares. One symmetry mirrors it, one (for the test) turns it by one.
MIRROR = Symmetry(lambda x: jnp.flip(x, axis=0), np.array([2, 1, 0], np.int32))
TURN = Symmetry(lambda x: jnp.roll(x, 1, axis=0), np.array([2, 0, 1], np.int32))


def strip(batch):
    """Samples whose legal mask and policy repeat what the observation shows, square by square."""
    return Sample(
        observation=jnp.tile(jnp.array([1.0, 0.0, 3.0]), (batch, 1)),
        legal=jnp.tile(jnp.array([True, False, True]), (batch, 1)),
        policy_target=jnp.tile(jnp.array([0.25, 0.0, 0.75]), (batch, 1)),
        value_target=jnp.arange(batch, dtype=jnp.float32),
        version=jnp.arange(batch, dtype=jnp.int32),
    )


def test_legal_and_policy_move_with_the_observation():
    seen = jax.jit(make_augment([MIRROR, TURN], 3))(jax.random.key(0), strip(64))
    np.testing.assert_array_equal(np.asarray(seen.observation) > 0, seen.legal)
    np.testing.assert_allclose(np.asarray(seen.observation) / 4.0, seen.policy_target)


def test_value_and_version_stay_where_they_are():
    seen = make_augment([MIRROR, TURN], 3)(jax.random.key(0), strip(16))
    np.testing.assert_array_equal(seen.value_target, np.arange(16))
    np.testing.assert_array_equal(seen.version, np.arange(16))


def test_identity_and_each_symmetry_come_with_the_same_chance():
    seen = make_augment([MIRROR, TURN], 3)(jax.random.key(3), strip(3000))
    kinds, counts = np.unique(np.asarray(seen.observation), axis=0, return_counts=True)
    assert len(kinds) == 3
    # Binomial with p = 1/3 and n = 3000 has a standard deviation of 26.
    assert (abs(counts - 1000) < 5 * 26).all()


def test_another_key_gives_other_draws():
    augment = make_augment([MIRROR], 3)
    first, second = (augment(jax.random.key(k), strip(64)).observation for k in (0, 1))
    assert (np.asarray(first) != np.asarray(second)).any()


def test_without_symmetries_samples_pass_untouched():
    batch = strip(4)
    assert make_augment([], 3)(jax.random.key(0), batch) is batch


def test_mirrored_connect_four_has_the_legal_columns_of_the_mirrored_game():
    env = make_env("connect_four")
    state, step = jax.jit(env.init)(jax.random.key(0)), jax.jit(env.step)
    for _ in range(6):  # fills the leftmost column
        state = step(state, jnp.int32(0))
    view = env.view(state)
    policy = np.array([0, 1, 2, 3, 4, 5, 6], np.float32) / 21
    batch = Sample(
        *(jnp.tile(jnp.asarray(x), (32,) + (1,) * jnp.ndim(x)) for x in (view.observation, view.legal, policy, 0.0, 0))
    )
    seen = make_augment(env.symmetries, 7)(jax.random.key(0), batch)
    full = np.asarray(seen.observation).any(axis=-1).all(axis=1)  # [B, columns]
    np.testing.assert_array_equal(full, ~np.asarray(seen.legal))
    assert set(full.argmax(axis=1)) == {0, 6}
    heaviest = np.where(full.argmax(axis=1) == 0, 6, 0)
    np.testing.assert_array_equal(np.asarray(seen.policy_target).argmax(axis=1), heaviest)
