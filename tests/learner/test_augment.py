import jax
import jax.numpy as jnp
import numpy as np

from podzero.core.types import Sample, Symmetry
from podzero.envs import make_env
from podzero.learner.objectives import make_augment

# A game on a strip of three squares; actions are squares. One symmetry mirrors the strip, the other rotates it by one.
MIRROR = Symmetry(lambda x: jnp.flip(x, axis=0), np.array([2, 1, 0], np.int32))
ROTATION = Symmetry(lambda x: jnp.roll(x, 1, axis=0), np.array([2, 0, 1], np.int32))


AUGMENT = jax.jit(make_augment([MIRROR, ROTATION], 3))


def strip(batch):
    """Samples whose legal mask and policy follow from the observation, square by square."""
    return Sample(
        observation=np.tile(np.float32([1.0, 0.0, 3.0]), (batch, 1)),
        legal=np.tile([True, False, True], (batch, 1)),
        policy_target=np.tile(np.float32([0.25, 0.0, 0.75]), (batch, 1)),
        value_target=np.arange(batch, dtype=np.float32),
        version=np.arange(batch, dtype=np.int32),
    )


def test_only_what_depends_on_the_squares_is_transformed_all_alike():
    augmented = AUGMENT(jax.random.key(0), strip(64))
    np.testing.assert_array_equal(np.asarray(augmented.observation) > 0, augmented.legal)
    np.testing.assert_allclose(np.asarray(augmented.observation) / 4.0, augmented.policy_target)
    np.testing.assert_array_equal(augmented.value_target, np.arange(64))
    np.testing.assert_array_equal(augmented.version, np.arange(64))


def test_replies_are_transformed_as_actions_are():
    """The reply is the square with the 3, wherever it is moved; -1 stays."""
    batch = strip(64)._replace(reply=np.full(64, 2, np.int32))
    augmented = AUGMENT(jax.random.key(0), batch)
    np.testing.assert_array_equal(np.asarray(augmented.observation).argmax(axis=1), augmented.reply)
    assert set(np.asarray(augmented.reply).tolist()) == {0, 2}
    none = AUGMENT(jax.random.key(0), batch._replace(reply=np.full(64, -1, np.int32)))
    np.testing.assert_array_equal(none.reply, np.full(64, -1))


def test_owners_move_with_their_squares():
    augmented = AUGMENT(jax.random.key(0), strip(64)._replace(ownership=np.tile(np.int8([1, 0, 2]), (64, 1))))
    np.testing.assert_array_equal(np.searchsorted([0.0, 1.0, 3.0], augmented.observation), augmented.ownership)


def test_identity_and_symmetries_are_drawn_uniformly():
    augmented = AUGMENT(jax.random.key(3), strip(3000))
    kinds, counts = np.unique(np.asarray(augmented.observation), axis=0, return_counts=True)
    assert len(kinds) == 3
    # Binomial with p = 1/3 and n = 3000 has a standard deviation of 26.
    assert (abs(counts - 1000) < 5 * 26).all()


def test_another_key_draws_other_symmetries():
    first, second = (AUGMENT(jax.random.key(k), strip(64)).observation for k in (0, 1))
    assert (np.asarray(first) != np.asarray(second)).any()


def test_without_symmetries_samples_are_unchanged():
    batch = strip(4)
    assert make_augment([], 3)(jax.random.key(0), batch) is batch


def test_mirrored_connect_four_has_the_legal_columns_of_the_mirrored_game():
    env = make_env("connect_four")
    state, step = jax.jit(env.init)(jax.random.key(0)), jax.jit(env.step)
    for _ in range(6):  # fill the leftmost column
        state = step(state, jnp.int32(0))
    view = jax.jit(env.view)(state)
    policy = np.array([0, 1, 2, 3, 4, 5, 6], np.float32) / 21
    fields = (view.observation, view.legal, policy, np.float32(0), np.int32(0))
    batch = Sample(*(np.tile(x, (32,) + (1,) * np.ndim(x)) for x in fields))
    augmented = jax.jit(make_augment(env.symmetries, 7))(jax.random.key(0), batch)
    full = np.asarray(augmented.observation).any(axis=-1).all(axis=1)  # [B, columns]
    np.testing.assert_array_equal(full, ~np.asarray(augmented.legal))
    assert set(full.argmax(axis=1)) == {0, 6}
    most_probable = np.where(full.argmax(axis=1) == 0, 6, 0)
    np.testing.assert_array_equal(np.asarray(augmented.policy_target).argmax(axis=1), most_probable)
