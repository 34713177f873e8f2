"""Symmetries map games to games: tested by playing transformed games."""

import jax
import numpy as np
import pytest

from podzero.envs import GAMES, make_env

FOLLOWERS = slice(4, None)
COUNTS = {"tic_tac_toe": 7, "connect_four": 1, "othello": 7, "go_9x9": 7, "go_19x19": 7, "hex": 1}


def with_symmetries(trace):
    if not trace.env.symmetries:
        pytest.skip("the game has no symmetry but the identity")
    return trace.env.symmetries


@pytest.mark.parametrize("name", GAMES)
def test_number_of_symmetries(name):
    assert len(make_env(name).symmetries) == COUNTS.get(name, 0)


def test_transformed_games_have_transformed_observations(trace):
    for row, symmetry in enumerate(with_symmetries(trace), start=FOLLOWERS.start):
        leader, follower = trace.views.observation[:, 0], trace.views.observation[:, row]
        np.testing.assert_array_equal(jax.vmap(symmetry.observation)(leader), follower)


def test_transformed_games_have_transformed_legal_moves(trace):
    for row, symmetry in enumerate(with_symmetries(trace), start=FOLLOWERS.start):
        np.testing.assert_array_equal(trace.views.legal[:, 0][:, symmetry.actions], trace.views.legal[:, row])


def test_transformed_games_have_the_same_result(trace):
    with_symmetries(trace)
    for field in ("rewards", "done", "player"):
        values = getattr(trace.views, field)
        np.testing.assert_array_equal(values[:, FOLLOWERS], np.broadcast_to(values[:, :1], values[:, FOLLOWERS].shape))


@pytest.mark.parametrize("name", COUNTS)
def test_symmetries_are_a_group_with_the_identity(name):
    env = make_env(name)
    identity = tuple(range(env.spec.num_actions))
    group = {identity} | {tuple(s.actions.tolist()) for s in env.symmetries}
    assert len(group) == 1 + len(env.symmetries)
    for first in group:
        assert sorted(first) == list(identity)
        for second in group:
            assert tuple(first[action] for action in second) in group


@pytest.mark.parametrize("name", COUNTS)
def test_symmetries_move_the_board_as_they_move_the_actions(name):
    """The cell of an action moves to the entry of the new policy that belongs to the same action."""
    env = make_env(name)
    rows, columns, *_ = env.spec.observation_shape
    for symmetry in env.symmetries:
        assert symmetry.actions.dtype == np.int32
        cells = np.arange(rows * columns).reshape(rows, columns)
        moved = np.asarray(symmetry.observation(cells))
        if name == "connect_four":
            np.testing.assert_array_equal(moved[0], symmetry.actions)
        else:
            np.testing.assert_array_equal(moved.ravel(), symmetry.actions[: rows * columns])
