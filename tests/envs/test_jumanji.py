"""Environments of jumanji: played as jumanji plays them, and refused where tree search cannot play them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import JumanjiConfig
from podzero.envs import make_env
from podzero.errors import ConfigError

jumanji = pytest.importorskip("jumanji")

CUBE = "RubiksCube-partly-scrambled-v0"


@pytest.fixture(scope="module")
def cube():
    return make_env(JumanjiConfig(name="jumanji", id=CUBE, reward_scale=0.5))


def test_the_spec_follows_from_what_jumanji_describes(cube):
    """54 stickers of 6 colours and 21 counts of turns, one-hot; 6 faces, 1 depth, 3 directions."""
    spec = cube.spec
    assert (spec.name, spec.players, spec.max_plies) == (f"jumanji/{CUBE}", 1, 20)
    assert (spec.observation_shape, spec.observation_dtype, spec.num_actions) == ((54 * 6 + 21,), "float32", 18)


def test_an_episode_is_that_of_jumanji(cube):
    """The same turns give the same stickers; the reward at the end is scaled."""
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


@pytest.mark.parametrize(
    ("identifier", "reason"),
    [
        ("Snake-v1", "chance"),
        ("Minesweeper-v0", "hides"),
        ("Connector-v3", "several agents"),
        ("Cleaner-v0", "several agents"),
        ("SearchAndRescue-v0", "BoundedArray"),
        ("RubiksCube-v9", "registry.*RubiksCube-v0"),
    ],
)
def test_what_tree_search_cannot_play_is_refused(identifier, reason):
    with pytest.raises(ConfigError, match=f"{identifier}.*{reason}"):
        make_env(JumanjiConfig(name="jumanji", id=identifier))


def test_arguments_that_jumanji_refuses_are_named():
    with pytest.raises(ConfigError, match="time_limit"):
        make_env(JumanjiConfig(name="jumanji", id=CUBE, kwargs={"time_limit": 0}))
