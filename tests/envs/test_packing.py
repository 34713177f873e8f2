"""Packing states into bytes: unpacking restores exactly the same states."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import SimulatorConfig
from podzero.envs import make_env, pack_states, unpack_states
from podzero.envs.packing import packed_bytes
from podzero.envs.registry import GAMES

SLOW_TO_TRACE = ("animal_shogi", "chess", "gardner_chess", "shogi")


def first_moves(env):
    """Plays the first legal action in each of some states."""

    def play(states):
        action = jnp.argmax(jax.vmap(env.view)(states).legal, axis=-1).astype(jnp.int32)
        return jax.vmap(env.step)(states, action)

    return jax.jit(play)


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        assert content(got) == content(wanted)


def content(leaf):
    key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if key else leaf).tobytes()


@pytest.mark.parametrize("env", ["tic_tac_toe", "connect_four", SimulatorConfig(name="open_spiel", id="tic_tac_toe")])
def test_unpacked_states_are_the_same_and_can_be_played_on(env):
    env = make_env(env)
    like = jax.eval_shape(env.init, jax.random.key(0))
    states, play = jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(0), 3)), first_moves(env)
    for _ in range(3):
        states = play(states)
    rows = jax.jit(pack_states)(states)
    assert rows.dtype == np.uint8
    assert rows.shape == (3, env.spec.state_bytes)
    back = jax.jit(lambda packed: unpack_states(packed, like))(np.asarray(rows))
    assert_same(back, states)
    assert_same(play(back), play(states))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW_TO_TRACE else ()) for name in GAMES]
)
def test_every_bit_pattern_of_every_leaf_survives(name):
    """States with the shapes of each game are filled with random bits, which include NaN."""
    env = make_env(name)
    like = jax.eval_shape(env.init, jax.random.key(0))
    random = np.random.default_rng(0)

    def noise(leaf):
        if leaf.dtype == np.bool_:
            return random.random((2, *leaf.shape)) < 0.5
        bits = random.integers(0, 256, 2 * math.prod(leaf.shape) * leaf.dtype.itemsize, np.uint8)
        return bits.view(leaf.dtype).reshape(2, *leaf.shape)

    states = jax.tree.map(noise, like)
    rows = np.asarray(jax.jit(pack_states)(states))
    assert rows.shape == (2, env.spec.state_bytes)
    assert_same(jax.jit(lambda packed: unpack_states(packed, like))(rows), states)


def test_leaves_of_all_dtypes_are_packed_in_tree_order():
    states = {
        "a": jnp.array([[True, False], [False, True]]),
        "b": jnp.array([-1, 2], jnp.int32),
        "c": jnp.array([[1.5], [-0.0]], jnp.bfloat16),
        "d": jnp.array([7, 8], jnp.uint8),
        "e": jnp.zeros((2, 0), jnp.float32),
        "f": jax.random.split(jax.random.key(3), 2),
    }
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), states)
    rows = pack_states(states)
    assert rows.shape == (2, packed_bytes(like)) == (2, 1 + 4 + 2 + 1 + 0 + 8)
    np.testing.assert_array_equal(rows[0, :8], [0b10000000, 255, 255, 255, 255, 0xC0, 0x3F, 7])
    assert_same(unpack_states(rows, like), states)
