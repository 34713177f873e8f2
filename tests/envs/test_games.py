"""One contract for all pgx games: the tests run for every name in `GAMES`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podzero.core.errors import ConfigError
from podzero.envs import GAMES, make_env
from podzero.envs.boards import BOARD_GAMES


def test_views_have_the_shapes_and_dtypes_of_the_spec(trace, check_views):
    assert trace.env.spec.name == trace.name
    check_views(trace.env.spec, trace.views)


@pytest.mark.parametrize("name", [name for name in GAMES if name not in BOARD_GAMES])
def test_states_have_no_cached_observation(name):
    env = make_env(name)
    assert jax.eval_shape(env.init, jax.random.key(0)).observation.size == 0


def test_observations_are_those_of_pgx(trace):
    if trace.name in BOARD_GAMES:
        pytest.skip("tests/envs/test_boards.py compares all of each ply")
    np.testing.assert_array_equal(trace.views.observation, trace.reference_observation)


def test_every_position_has_a_legal_action(trace):
    assert trace.views.legal.any(axis=-1).all()


def test_all_actions_are_legal_once_the_game_is_over(trace):
    assert trace.views.legal[trace.views.done].all()


def test_games_are_played_with_legal_actions(trace):
    """Including the transformed actions of the followers: pgx ends a game after an illegal action."""
    played = np.take_along_axis(trace.views.legal[:-1], trace.actions[..., None], axis=-1)
    assert played.all()


def test_players_alternate_while_the_game_lasts(trace):
    before, after = trace.views.player[:-1], trace.views.player[1:]
    going_on = ~trace.views.done[1:]
    assert (after == 1 - before)[going_on].all()


def test_players_are_zero_and_one(trace):
    assert set(np.unique(trace.views.player)) <= {0, 1}


def test_rewards_are_zero_sum(trace):
    np.testing.assert_array_equal(trace.views.rewards.sum(axis=-1), 0)


def test_only_the_last_move_is_rewarded(trace):
    done = trace.views.done
    before = np.concatenate([np.zeros_like(done[:1]), done[:-1]])
    last_move = done & ~before
    assert (trace.views.rewards[~last_move] == 0).all()
    assert np.isin(trace.views.rewards, [-1, 0, 1]).all()


def test_games_end_and_remain_over(trace):
    done = trace.views.done
    assert not done[0].any()
    assert (done[1:] >= done[:-1]).all()
    if trace.plies:
        assert done[-1].all()


def test_steps_do_not_change_a_state_that_is_over(trace):
    before = trace.views.done[:-1]
    for field in ("observation", "legal", "player"):
        values = getattr(trace.views, field)
        np.testing.assert_array_equal(values[1:][before], values[:-1][before])


def test_same_keys_give_the_same_games(trace):
    np.testing.assert_array_equal(trace.actions, trace.again)


@pytest.mark.parametrize("name", ["tic_tac_toe", "connect_four", "othello", "hex"])
def test_vmap_equals_single(name):
    env = make_env(name)
    keys = jax.random.split(jax.random.key(3), 3)
    batched, step, view = jax.vmap(env.init)(keys), jax.jit(env.step), jax.jit(env.view)
    single = [env.init(key) for key in keys]
    step_all, view_all = jax.jit(jax.vmap(env.step)), jax.jit(jax.vmap(env.view))
    for _ in range(6):
        actions = jnp.argmax(view_all(batched).legal, axis=-1).astype(jnp.int32)
        batched = step_all(batched, actions)
        single = [step(state, action) for state, action in zip(single, actions, strict=True)]
        expected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(view, single))
        jax.tree.map(np.testing.assert_array_equal, view_all(batched), expected)


@pytest.mark.parametrize("name", ["tic_tac_toe", "go_9x9", "hex"])
def test_the_key_decides_who_begins(name):
    env = make_env(name)
    players = jax.vmap(lambda key: env.view(env.init(key)).player)(jax.random.split(jax.random.key(0), 64))
    assert 16 < int(players.sum()) < 48


def test_an_unknown_game_is_refused_with_the_closest_name():
    with pytest.raises(ConfigError, match=r"'conect_four'.*'connect_four'"):
        make_env("conect_four")


def test_gardner_chess_shows_the_board_from_the_side_of_white():
    """White's pieces start in the lowest row of the observation: rook, knight, bishop, queen, king."""
    env = make_env("gardner_chess")
    seen = np.asarray(env.view(env.init(jax.random.key(0))).observation)
    pieces = {"pawn": 0, "knight": 1, "bishop": 2, "rook": 3, "queen": 4, "king": 5}
    row = [next(name for name, plane in pieces.items() if seen[4, column, plane]) for column in range(5)]
    assert row == ["rook", "knight", "bishop", "queen", "king"]
    assert seen[3, :, pieces["pawn"]].all()
