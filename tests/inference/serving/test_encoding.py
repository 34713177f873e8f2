"""Positions travel in few bytes, and arrive as the observations that they were."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import SimulatorConfig
from podzero.envs import make_env
from podzero.inference.serving import encoding_of

EXPECTED = {"tic_tac_toe": 3, "connect_four": 11, "othello": 16, "go_9x9": 173}
"""A bit for each bool. `hex`, `chess`: the packed state is smaller than the observation."""


def positions(env, count=64, plies=6):
    """Positions after a few random plies."""

    @jax.jit
    def after(states, key):
        legal = jax.vmap(env.view)(states).legal
        return jax.vmap(env.step)(states, jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf)))

    states = jax.jit(jax.vmap(env.init))(jax.random.split(jax.random.key(0), count))
    for ply in range(plies):
        states = after(states, jax.random.key(ply))
    return states


@pytest.mark.parametrize("game", [*EXPECTED, "hex", pytest.param("chess", marks=pytest.mark.slow)])
def test_the_server_sees_the_observations_of_the_actor(game):
    env = make_env(game)
    encoding, states = encoding_of(env), positions(env)
    rows = jax.jit(encoding.encode)(states)
    assert rows.shape == (64, encoding.row_bytes)
    assert rows.dtype == np.uint8
    seen = jax.jit(jax.vmap(env.view))(states).observation
    decoded = jax.jit(encoding.decode)(np.asarray(rows))
    assert decoded.shape == seen.shape
    np.testing.assert_array_equal(np.asarray(decoded, seen.dtype), seen)
    assert encoding.row_bytes <= np.asarray(seen)[0].nbytes
    if game in EXPECTED:
        assert encoding.row_bytes == EXPECTED[game]


@pytest.mark.parametrize(
    ("game", "row_bytes"),
    [
        ("tic_tac_toe", 3 + 2),
        ("connect_four", 11 + 1),
        ("hex", 46 + 16),
        pytest.param("chess", 699, marks=pytest.mark.slow),
    ],
)
def test_legal_actions_travel_where_they_are_asked_for(game, row_bytes):
    """A bit for each action; the packed state of chess tells them by itself."""
    env = make_env(game)
    encoding, states = encoding_of(env, with_legal=True), positions(env)
    rows, view = np.asarray(jax.jit(encoding.encode)(states)), jax.jit(jax.vmap(env.view))(states)
    assert rows.shape == (64, encoding.row_bytes) == (64, row_bytes)
    np.testing.assert_array_equal(jax.jit(encoding.legal)(rows), view.legal)
    np.testing.assert_array_equal(jax.jit(encoding.decode)(rows), view.observation)


def test_games_on_the_host_send_their_observations():
    """Their states hold handles and the observation."""
    pytest.importorskip("pyspiel")
    env = make_env(SimulatorConfig(name="open_spiel", id="tic_tac_toe"))
    encoding, states = encoding_of(env), jax.vmap(env.init)(jax.random.split(jax.random.key(0), 3))
    seen = jax.vmap(env.view)(states).observation
    assert encoding.row_bytes == seen[0].nbytes
    np.testing.assert_array_equal(encoding.decode(np.asarray(encoding.encode(states))), seen)
