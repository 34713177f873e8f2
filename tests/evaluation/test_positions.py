"""Positions in which moves are judged: distinct, open, solved once, even over the plies; labels of connect four."""

import sys

import jax
import numpy as np
import pytest

from podzero.config import SimulatorConfig
from podzero.core.errors import ConfigError
from podzero.envs import make_env
from podzero.evaluation.solvers import (
    draw_positions,
    game_values,
    judged_positions,
    make_solver,
    read_labels,
    replay,
)


@pytest.fixture(scope="module", params=["tic_tac_toe", "connect_four"])
def game(request):
    env, solver = make_env(request.param), make_solver(request.param)
    max_ply = 8 if request.param == "tic_tac_toe" else 11  # within the book: solved at once
    return env, solver, draw_positions(env, solver, 150, seed=3, max_ply=max_ply)


@pytest.fixture
def without_solver(monkeypatch):
    """A machine on which the extra `solver` is not installed."""
    monkeypatch.setitem(sys.modules, "bitbully", None)
    make_solver.cache_clear()
    yield
    make_solver.cache_clear()


def view_after(env, moves):
    """The view of the positions that the moves lead to."""
    return jax.device_get(jax.jit(jax.vmap(env.view))(replay(env, moves)))


def test_every_position_has_a_better_and_a_worse_move(game):
    *_, positions = game
    values = game_values(positions.scores)
    assert (np.nanmax(values, axis=1) > np.nanmin(values, axis=1)).all()


def test_positions_are_open_and_their_scores_are_those_of_the_replayed_state(game):
    env, solver, positions = game
    view = view_after(env, positions.moves)
    assert not view.done.any()
    np.testing.assert_array_equal(~np.isnan(positions.scores), view.legal)
    np.testing.assert_array_equal(solver(view.observation), positions.scores)
    marks = view.observation.reshape(150, -1).sum(axis=1)
    np.testing.assert_array_equal(marks, positions.plies)


def test_each_position_is_judged_once_whatever_moves_lead_to_it(game):
    env, _, positions = game
    seen = view_after(env, positions.moves).observation
    assert len(np.unique(seen.reshape(150, -1), axis=0)) == 150


def test_more_positions_than_a_game_has_are_refused():
    env = make_env("tic_tac_toe")
    with pytest.raises(ConfigError, match=r"\d+ positions of tic_tac_toe .*500"):
        draw_positions(env, make_solver("tic_tac_toe"), 500, seed=0, max_ply=3)


def test_same_seed_same_positions(game):
    env, solver, positions = game
    max_ply = positions.moves.shape[1]
    again = draw_positions(env, solver, 150, 3, max_ply)
    other = draw_positions(env, solver, 150, 4, max_ply)
    np.testing.assert_array_equal(positions.moves, again.moves)
    assert (positions.moves != other.moves).any()


def test_the_labels_of_tic_tac_toe_are_all_positions_in_which_moves_differ():
    env, labels = make_env("tic_tac_toe"), read_labels("tic_tac_toe", "test")
    view = view_after(env, labels.moves)
    assert not view.done.any()
    np.testing.assert_array_equal(labels.scores, make_solver("tic_tac_toe")(view.observation))
    labelled = {board.tobytes() for board in view.observation}
    assert len(labelled) == len(labels.moves)
    # Every first move draws. Against a stone in the middle, a corner alone draws; against one in a corner, the middle
    # alone; against one on an edge, some do.
    assert np.bincount(labels.plies)[:2].tolist() == [0, 9]
    drawn = draw_positions(env, make_solver("tic_tac_toe"), 150, seed=3, max_ply=8)
    boards = view_after(env, drawn.moves).observation
    assert {board.tobytes() for board in boards} <= labelled
    for part, one in zip(read_labels("tic_tac_toe", "validation"), labels, strict=True):
        np.testing.assert_array_equal(part, one)


def test_a_game_without_solver_has_no_judge():
    with pytest.raises(ConfigError, match="no solver for 'hex_11x11'"):
        judged_positions(make_env("hex"), 10, seed=0)


def test_positions_are_even_over_the_plies_except_where_a_game_has_fewer(game):
    env, _, positions = game
    counts = np.bincount(positions.plies)
    if env.spec.name == "connect_four":  # ply 0 has one position, ply 1 seven; the other 142 are even over ten plies
        assert counts.tolist() == [1, 7, 15, 15, *[14] * 8] or counts[2:].max() - counts[2:].min() <= 1
    first = np.bincount(positions.plies[:40], minlength=len(counts))
    assert (first >= np.minimum(counts, 40 // len(counts))).all()


@pytest.mark.parametrize("part", ["test", "validation", "games"])
def test_the_labels_of_connect_four_are_what_the_solver_says(part):
    env, solver = make_env("connect_four"), make_solver("connect_four")
    labels = read_labels("connect_four", part)
    rows = np.random.default_rng(0).permutation(len(labels.moves))[:30]
    view = view_after(env, labels.moves[rows])
    np.testing.assert_array_equal(labels.scores[rows], solver(view.observation))


def test_training_is_judged_on_other_positions_than_results():
    env = make_env("connect_four")
    parts = [read_labels("connect_four", part) for part in ("test", "validation")]
    boards = [view_after(env, part.moves).observation for part in parts]
    seen = [{board.tobytes() for board in part} for part in boards]
    assert [len(part) for part in seen] == [5000, 1000]
    assert not seen[0] & seen[1]


def test_the_default_judgement_of_connect_four_needs_no_solver(without_solver):
    env = make_env("connect_four")
    first, again, other = (judged_positions(env, 1000, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.moves, again.moves)
    assert (first.moves != other.moves).any()
    counts = np.bincount(first.plies)
    assert counts[3:].max() - counts[3:].min() <= 1
    config = SimulatorConfig(name="open_spiel", id="connect_four")
    np.testing.assert_array_equal(judged_positions(make_env(config), 1000, 0).scores, first.scores)


def test_more_positions_than_have_labels_ask_for_the_solver(without_solver):
    with pytest.raises(ConfigError, match=r"connect four needs .*--extra solver"):
        judged_positions(make_env("connect_four"), 5001, seed=0)
