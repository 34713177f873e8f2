import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.config import SimulatorConfig
from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.evaluation.solvers import game_values, make_solver


def after(game, moves):
    env = make_env(game)
    state = env.init(jax.random.key(0))
    step = jax.jit(env.step)
    for move in moves:
        state = step(state, jnp.int32(move))
    return np.asarray(env.view(state).observation)[None]


def test_every_first_move_of_tic_tac_toe_draws():
    np.testing.assert_array_equal(make_solver("tic_tac_toe")(after("tic_tac_toe", [])), np.zeros((1, 9)))


def test_tic_tac_toe_scores_a_win_by_the_cells_left():
    # X at 0 1, O at 3 4, X to move: 2 wins with four cells left; everything but 5 loses to O at 5 with three left.
    scores = make_solver("tic_tac_toe")(after("tic_tac_toe", [0, 3, 1, 4]))[0]
    nan = np.nan
    np.testing.assert_array_equal(scores, [nan, nan, 5, nan, nan, scores[5], -4, -4, -4])
    assert scores[5] > -4


def test_center_is_answered_by_a_corner():
    scores = make_solver("tic_tac_toe")(after("tic_tac_toe", [4]))[0]
    np.testing.assert_array_equal(np.flatnonzero(scores == 0), [0, 2, 6, 8])


def test_the_center_alone_wins_connect_four():
    scores = make_solver("connect_four")(after("connect_four", []))
    np.testing.assert_array_equal(game_values(scores), [[-1, -1, 0, 1, 0, -1, -1]])


def test_connect_four_sees_the_board_right_side_up():
    # Yellow on the floor at 0 1 2, red on top of them: yellow wins at 3 at once; only that.
    scores = make_solver("connect_four")(after("connect_four", [0, 0, 1, 1, 2, 2]))[0]
    assert np.nanargmax(scores) == 3
    assert scores[3] == (42 - 6) / 2
    # One more column away, red to move must block.
    scores = make_solver("connect_four")(after("connect_four", [0, 0, 1, 1, 2]))[0]
    np.testing.assert_array_equal(np.flatnonzero(scores == np.nanmax(scores)), [3])


def test_connect_four_leaves_out_full_columns():
    scores = make_solver("connect_four")(after("connect_four", [3] * 6))[0]
    np.testing.assert_array_equal(np.isnan(scores), [False] * 3 + [True] + [False] * 3)


@pytest.mark.parametrize("ply", [10, 16, 24])
def test_connect_four_scores_are_the_negated_best_replies(ply):
    """Negamax across the edge of the book: values of a move and of the position it leads to agree."""
    env, solver = make_env("connect_four"), make_solver("connect_four")
    step, view = jax.jit(env.step), jax.jit(env.view)
    rng = np.random.default_rng(ply)
    state = env.init(jax.random.key(0))
    while int(view(state).observation.sum()) < ply:
        state = step(state, jnp.int32(rng.choice(np.flatnonzero(view(state).legal))))
        if view(state).done:
            state = env.init(jax.random.key(0))
    scores = solver(np.asarray(view(state).observation)[None])[0]
    for column in np.flatnonzero(~np.isnan(scores)):
        child = view(step(state, jnp.int32(column)))
        if not child.done:
            replies = game_values(solver(np.asarray(child.observation)[None]))
            assert np.sign(scores[column]) == -np.nanmax(replies)


def test_a_game_without_solver_is_refused():
    with pytest.raises(ConfigError, match=r"'chess'.*connect_four, tic_tac_toe"):
        make_solver("chess")


@pytest.mark.parametrize(
    ("name", "game", "kwargs", "known"),
    [
        ("open_spiel", "connect_four", {}, "connect_four"),
        ("open_spiel", "connect_four", {"egocentric_obs_tensor": True}, "connect_four"),
        ("open_spiel", "tic_tac_toe", {}, "tic_tac_toe"),
    ],
)
def test_the_same_game_from_another_library_is_solved_alike(name, game, kwargs, known):
    """A random game: the solver of the game in JAX says the same of the same moves."""
    config = SimulatorConfig(name=name, id=game, kwargs=kwargs)
    ours, theirs = make_env(known), make_env(config)
    state, other = ours.init(jax.random.key(0)), theirs.init(jax.random.key(0))
    # Connect four is played up to the moves that the book knows best.
    for move in [3, 3, 2, 4, 0, 3] if known == "connect_four" else [4, 0, 8, 2]:
        solved = make_solver(known)(np.asarray(ours.view(state).observation)[None])
        found = make_solver(theirs.spec.name)(np.asarray(theirs.view(other).observation)[None])
        np.testing.assert_array_equal(found, solved)
        state, other = jax.jit(ours.step)(state, jnp.int32(move)), jax.jit(theirs.step)(other, jnp.int32(move))
