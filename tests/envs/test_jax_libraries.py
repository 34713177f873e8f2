"""Environments of jumanji and gymnax: played as the libraries do, and refused where tree search cannot play them."""

import sys
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import JaxLibraryConfig
from podzero.core.errors import ConfigError
from podzero.envs import make_env

pytestmark = pytest.mark.skipif(not find_spec("jumanji") or not find_spec("gymnax"), reason="needs jumanji and gymnax")

CUBE = "RubiksCube-partly-scrambled-v0"


def made(library, identifier, **settings):
    return make_env(JaxLibraryConfig(name=library, id=identifier, **settings))


@pytest.fixture(scope="module")
def cube():
    return made("jumanji", CUBE, reward_scale=0.5)


def test_the_spec_follows_from_what_jumanji_describes(cube):
    """54 stickers of 6 colours and 21 counts of turns, one-hot; 6 faces, 1 depth, 3 directions."""
    spec = cube.spec
    assert (spec.name, spec.players, spec.max_plies) == (f"jumanji/{CUBE}", 1, 20)
    assert (spec.observation_shape, spec.observation_dtype, spec.num_actions) == ((54 * 6 + 21,), "float32", 18)


def test_an_episode_is_that_of_jumanji(cube):
    """The same turns give the same stickers; the reward at the end is scaled."""
    import jumanji  # here, because tests are collected before it is needed

    puzzle = jumanji.make(CUBE)
    key, actions = jax.random.key(3), np.random.default_rng(0).integers(18, size=20)
    theirs, _ = puzzle.reset(key)
    step, their_step, ours = jax.jit(cube.step), jax.jit(puzzle.step), cube.init(key)
    for action in actions:
        ours, (theirs, timestep) = (
            step(ours, jnp.int32(action)),
            their_step(theirs, jnp.stack(jnp.unravel_index(action, (6, 1, 3)))),
        )
        view = cube.view(ours)
        stickers = np.asarray(view.observation)[: 54 * 6].reshape(6, 3, 3, 6).argmax(-1)
        np.testing.assert_array_equal(stickers, theirs.cube)
        assert view.rewards.tolist() == [0.5 * float(timestep.reward), 0.0]
        assert bool(view.done) == bool(timestep.last())
    assert view.done
    assert not view.truncated


def test_a_solved_cube_ends_the_episode_with_the_scaled_reward(cube):
    """A solved cube, turned once and back, is solved; from then on nothing changes and there is no reward."""
    from jumanji.environments.logic.rubiks_cube.utils import make_solved_cube, rotate_cube

    there, back = jnp.int32(0), jnp.int32(1)
    start = cube.init(jax.random.key(0))
    turned = start._replace(state=start.state.replace(cube=rotate_cube(make_solved_cube(3), there)))
    solved = cube.step(turned, back)
    view = cube.view(solved)
    assert view.done
    assert view.rewards.tolist() == [0.5, 0.0]
    after = cube.view(cube.step(solved, there))
    assert after.done
    assert after.rewards.tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(after.observation, view.observation)


@pytest.fixture(scope="module")
def cart_pole():
    return made("gymnax", "CartPole-v1", reward_scale=0.125, kwargs={"max_steps_in_episode": 8})


def test_an_episode_is_that_of_gymnax(cart_pole):
    """The same pushes give the same observations and scaled rewards; the limit of eight steps truncates."""
    import gymnax  # here, because tests are collected before it is needed

    env, params = gymnax.make("CartPole-v1")
    key = jax.random.key(5)
    ours, (observation, theirs) = cart_pole.init(key), env.reset_env(key, params)
    for ply in range(8):
        view = cart_pole.view(ours)
        np.testing.assert_allclose(view.observation, observation, rtol=1e-6)
        assert not view.done, ply
        ours = cart_pole.step(ours, jnp.int32(ply % 2))
        observation, theirs, reward, terminated, _ = env.step_env(key, theirs, ply % 2, params)
        assert cart_pole.view(ours).rewards.tolist() == [0.125 * float(reward), 0.0]
    view = cart_pole.view(ours)
    assert (bool(view.done), bool(view.truncated), bool(terminated)) == (True, True, False)
    after = cart_pole.view(cart_pole.step(ours, jnp.int32(0)))
    assert after.rewards.tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(after.observation, view.observation)


def test_a_pole_that_falls_ends_the_episode_without_truncation():
    env = made("gymnax", "CartPole-v1", reward_scale=0.002)
    state, step = env.init(jax.random.key(0)), jax.jit(env.step)
    for _ in range(40):
        state = step(state, jnp.int32(1))
    view = env.view(state)
    assert view.done
    assert not view.truncated


@pytest.mark.parametrize(
    ("identifier", "shape", "actions", "plies"),
    [("DeepSea-bsuite", (8, 8), 2, 8), ("Breakout-MinAtar", (10, 10, 4), 3, 1000)],
)
def test_observations_of_gymnax_keep_their_shape(identifier, shape, actions, plies):
    spec = made("gymnax", identifier, reward_scale=0.01).spec
    assert (spec.observation_shape, spec.observation_dtype) == (shape, "float32")
    assert (spec.num_actions, spec.players, spec.max_plies) == (actions, 1, plies)


@pytest.mark.parametrize(
    ("library", "identifier", "reason"),
    [
        ("jumanji", "Snake-v1", "chance"),
        ("jumanji", "Minesweeper-v0", "hides"),
        ("jumanji", "Connector-v3", "several agents"),
        ("jumanji", "Cleaner-v0", "several agents"),
        ("jumanji", "SearchAndRescue-v0", "BoundedArray"),
        ("jumanji", "RubiksCube-v9", "registry.*RubiksCube-v0"),
        ("gymnax", "FourRooms-misc", "chance"),
        ("gymnax", "MemoryChain-bsuite", "hides"),
        ("gymnax", "Pendulum-v1", "Box"),
        ("gymnax", "CartPole-v9", "registry.*CartPole-v1"),
    ],
)
def test_what_tree_search_cannot_play_is_refused(library, identifier, reason):
    with pytest.raises(ConfigError, match=f"{identifier}.*{reason}"):
        made(library, identifier)


@pytest.mark.parametrize(
    ("library", "identifier", "argument", "value"),
    [
        ("jumanji", CUBE, "time_limit", 0),
        ("gymnax", "DeepSea-bsuite", "depth", 3),
        ("gymnax", "CartPole-v1", "max_steps_in_episode", "many"),
    ],
)
def test_arguments_that_the_library_refuses_are_named(library, identifier, argument, value):
    with pytest.raises(ConfigError, match=f"{identifier}.*{argument}"):
        made(library, identifier, kwargs={argument: value})


def test_a_library_that_is_missing_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(ConfigError, match=r"CartPole-v1.*--no-deps gymnax"):
        made("gymnax", "CartPole-v1")


@pytest.mark.parametrize(
    ("library", "identifier"), [("gymnax", "FourRooms-misc"), ("jumanji", "Snake-v1"), ("gymnax", "MemoryChain-bsuite")]
)
def test_chance_and_hidden_states_are_allowed_where_a_model_is_learned(library, identifier):
    assert made(library, identifier, model="learned").spec.name == f"{library}/{identifier}, learned"
    with pytest.raises(ConfigError):
        made(library, identifier)


def test_the_steps_of_a_learned_environment_differ_with_the_key_of_its_state():
    """Two rooms with the same start and another key: the wind blows elsewhere."""
    env = made("gymnax", "FourRooms-misc", model="learned")

    @jax.jit
    def places(key):
        start = env.init(jax.random.key(0))._replace(key=jax.random.key_data(key))
        return jax.lax.scan(lambda state, _: (env.step(state, 2),) * 2, start, length=30)[1].game.observation

    one, same, other = (np.asarray(places(jax.random.key(seed))) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
